"""Model cards are written from a run's own files, and shared with its result."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub.errors import HTTPError

from rewardedit import model_card
from rewardedit.cli import main
from rewardedit.config import dump
from rewardedit.data import DataConfig
from rewardedit.model_card import card, data_of, flat, result_of, write_card
from rewardedit.trainers.reward_conditioned import Config


@pytest.fixture
def run(tmp_path) -> Path:
    """What a run leaves, without its weights."""
    data = DataConfig("magicbrush", path="osunlp/MagicBrush", size=256)
    text = dump(Config("mine", base="vinesmsuic/magicbrush-jul7", data=data))
    (tmp_path / "config.yaml").write_text(text)
    environment = {
        "trainer": "reward_conditioned",
        "packages": {"torch": "2.13.0"},
        "device": "CPU",
        "python": "3.11",
    }
    (tmp_path / "environment.json").write_text(json.dumps(environment))
    metrics = {"oracle": {"base": 3.25, "conditioned_five": 4.5, "ci95": [0.1, 0.2]}, "n": 280}
    metrics["usage"] = {"http://my-machine/v1#m": {"calls": 12}}
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    (tmp_path / "pipeline").mkdir()
    return tmp_path


def test_a_card_says_what_was_trained_on_what_and_how_well(run):
    path = write_card(run, "me/mine", "apache-2.0")
    assert path == run / "pipeline" / "README.md"
    text = path.read_text()
    head = yaml.safe_load(text.split("---")[1])
    assert head["license"] == "apache-2.0"
    assert head["base_model"] == "vinesmsuic/magicbrush-jul7"
    assert head["datasets"] == ["osunlp/MagicBrush"]
    assert head["library_name"] == "diffusers"
    assert "| oracle.conditioned\\_five | 4.5 |" in text
    assert "- vifi\\_clip" in text
    assert 'load_editor("me/mine")' in text
    assert "torch 2.13.0" in text
    assert "my-machine" not in text
    assert "trainer `reward_conditioned` from `vinesmsuic/magicbrush-jul7`" in text


def test_paths_are_no_names_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "rows").mkdir(parents=True)
    for path in ("runs/shapes-editor", "data/captions", "./editor", "mine/rows"):
        settings = {"name": "x", "base": path, "data": {"name": "table", "path": path}}
        head = yaml.safe_load(card(settings, {}, {}, "pipeline", "me/x", "other").split("---")[1])
        assert "base_model" not in head, path
        assert "datasets" not in head, path


def test_a_captioner_is_no_editor():
    settings = {"name": "x", "model": "Qwen/Qwen2.5-VL-7B-Instruct"}
    text = card(settings, {"trainer": "captioner"}, {}, "lora", "me/x", "other")
    assert yaml.safe_load(text.split("---")[1])["library_name"] == "peft"
    assert 'load_vlm("Qwen/Qwen2.5-VL-7B-Instruct", adapter="me/x")' in text
    assert "load_editor" not in text
    text = card(settings, {"trainer": "adiee_scorer"}, {}, "scorer", "me/x", "other")
    assert 'load_scorer("adiee", checkpoint="me/x")' in text


def test_what_came_from_data_is_no_markup(run):
    settings = {"name": "x", "relabel": {"scorer": "a|b\n# <script>"}}
    text = card(settings, {}, {"<img src=x>|": 1.0}, "scorer", "me/x", "other")
    lines = text.split("## Settings")[0]
    assert "<script>" not in lines.replace("\\<", "")
    assert "\n# <" not in lines
    assert "\\<img src=x\\>\\|" in lines


def test_several_data_sets_and_nested_figures_are_found():
    two = {"a": {"name": "magicbrush", "path": "x/y"}, "b": {"name": "shapes", "path": ""}}
    assert data_of({"data": two}) == ["x/y"]
    assert flat({"a": {"b": 1, "c": True, "d": "x"}, "e": 2.5}) == {"a.b": 1.0, "e": 2.5}


def test_the_command_writes_the_card_and_uploads_the_result(run, monkeypatch, capsys):
    assert main(["share", str(run)]) == 0
    assert "model card:" in capsys.readouterr().out
    assert "not stated" in (run / "pipeline" / "README.md").read_text()
    calls = []

    class Hub:
        """Takes what huggingface_hub's own would send."""

        def create_repo(self, repo, private, exist_ok):
            calls.append((repo, private, exist_ok))

        def repo_info(self, repo):
            return SimpleNamespace(private=repo != "me/public")

        def upload_folder(self, repo_id, folder_path):
            calls.append((repo_id, folder_path))
            return f"https://hub/{repo_id}"

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    assert main(["share", str(run), "--push-to-hub", "me/mine", "--private"]) == 0
    assert calls == [("me/mine", True, True), ("me/mine", str(run / "pipeline"))]
    assert "https://hub/me/mine" in capsys.readouterr().out
    calls.clear()
    assert main(["share", str(run), "--push-to-hub", "me/public", "--private"]) == 2
    assert "is there already, and everybody sees it" in capsys.readouterr().err
    assert calls == [("me/public", True, True)], "nothing was uploaded"


def test_what_cannot_be_shared_says_so(run, tmp_path_factory, monkeypatch, capsys):
    assert main(["share", str(run), "--push-to-hub", "not a name"]) == 2
    assert "expected a name such as me/my-editor" in capsys.readouterr().err
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(ValueError, match="the run has not ended"):
        result_of(empty)
    (empty / "lora").mkdir()
    with pytest.raises(ValueError, match="expected the files of a run"):
        write_card(empty, "x")

    class Refuses:
        def create_repo(self, *args, **options):
            raise OSError("no key")

    monkeypatch.setattr("huggingface_hub.HfApi", Refuses)
    with pytest.raises(ValueError, match=r"cannot be uploaded \(no key\)"):
        model_card.push(run, "me/mine")

    class Unreached:
        def create_repo(self, *args, **options):
            raise HTTPError("no network")  # as its HTTP client says

    monkeypatch.setattr("huggingface_hub.HfApi", Unreached)
    with pytest.raises(ValueError, match=r"cannot be uploaded \(no network\)"):
        model_card.push(run, "me/mine")
