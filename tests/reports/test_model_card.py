"""Model cards are written from a run's own files, and shared with its result."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub.errors import HTTPError
from PIL import Image

from rewardedit.cli import main
from rewardedit.config import dump
from rewardedit.data import DataConfig
from rewardedit.diffusion.editors import SamplingConfig, load_editor
from rewardedit.diffusion.saving import save_editor
from rewardedit.relabel import RelabelConfig
from rewardedit.reports import model_card
from rewardedit.reports.card_examples import Usage
from rewardedit.reports.card_samples import copy_samples, keep_samples
from rewardedit.reports.model_card import card, data_of, flat, result_of, write_card
from rewardedit.reports.published import without_local
from rewardedit.reports.report import Report
from rewardedit.reports.wall import Wall, WallEdit, WallImage
from rewardedit.reward_prompt import RewardPrompt
from rewardedit.trainers.reward_conditioned import Config


@pytest.fixture
def run(tmp_path) -> Path:
    """Files of a finished run, without its weights."""
    data = DataConfig("magicbrush", path="osunlp/MagicBrush", size=256)
    text = dump(Config("mine", data, RelabelConfig("vifi_clip"), "vinesmsuic/magicbrush-jul7"))
    (tmp_path / "config.yaml").write_text(text)
    environment = {
        "trainer": "reward_conditioned",
        "packages": {"torch": "2.13.0"},
        "device": "CPU",
        "python": "3.11",
    }
    (tmp_path / "environment.json").write_text(json.dumps(environment))
    metrics = {"oracle": {"base": 3.25, "conditioned_five": 4.5, "ci95": [0.1, 0.2]}, "n": 280}
    found = {"mean_a": 0.75, "mean_b": 0.5, "difference": 0.25, "ci95": [0.1, 0.4], "wins": 5, "losses": 1}
    metrics["differences"] = {"ssim": {"base": found, "other": None}}
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
    assert (head["pipeline_tag"], head["base_model_relation"]) == ("image-to-image", "finetune")
    assert "| ssim | 0.500 | 0.750 | +0.250 [+0.100, +0.400] | 5 : 1 |" in text
    assert "differences" not in text


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
    text = card(settings, {"trainer": "vlm_sft"}, {}, "lora", "me/x", "other")
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


BREAKS_OUT = [
    "x\n```\n<script>alert(1)</script>",
    "a ````` b\n`````\n# Title",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "x\n---\nlicense: mit\n---\n",
    "`; rm -rf ~ `",
    "~~~\n<b>",
]


@pytest.mark.parametrize("text", BREAKS_OUT)
@pytest.mark.parametrize("setting", ["name", "base", "note", "device"])
def test_no_setting_gets_out_of_its_place(text, setting):
    settings = {"name": "x", "base": "a/b", "data": {"name": "table", "path": "t.csv"}, "note": "y"}
    settings |= {setting: text}
    environment = {"trainer": "refl", "packages": {"torch": text}, "device": text}
    card_of = card(settings, environment, {text: 1.0}, "pipeline", "me/x", "other")
    _, head, body = card_of.split("---\n", 2)
    assert yaml.safe_load(head)["license"] == "other"
    assert ("base_model" in yaml.safe_load(head)) == (setting != "base")
    # Outside of blocks of code, as a reader of Markdown finds them, no element stands and no heading that the
    # card does not write itself.
    fence = None
    for line in body.splitlines():
        ticks = re.match("`{3,}", line)
        if fence is None and ticks:
            fence = ticks[0]
        elif fence is not None and line.strip() == fence:
            fence = None
        elif fence is None:
            plain = re.sub(r"`[^`]*`", "", line)
            assert not re.search(r"(?<!\\)[<\[]", plain), line
            assert not re.match("#", line) or line in HEADINGS or line.startswith("# "), line
            assert not line.startswith(("---", "~~~"))
    assert fence is None, "every block is closed"


HEADINGS = ("## Data", "## Scorer", "## Result", "## Figures", "## Use", "## Settings")


def test_a_card_names_no_path_and_no_endpoint_of_the_machine(tmp_path):
    (tmp_path / "own").mkdir()
    secret = [str(tmp_path / "own"), "~/photos/pairs.csv", "../secret/rows", "runs/secret", r"C:\secret\x"]
    settings = {
        "name": "x",
        "base": secret[0],
        "data": {str(i): {"name": "table", "path": path} for i, path in enumerate(secret)},
        "reward": {"scorer": {"vlm_judge": {"checkpoint": "http://secret.corp:8000/v1#qwen"}}},
    }
    text = card(settings, {"trainer": "refl"}, {}, "captioner", "me/x", "other")
    for name in (*secret, "secret", "photos", str(tmp_path)):
        assert name not in text
    assert "(endpoint)#qwen" in text
    kept = {"a": "osunlp/MagicBrush", "b": "shapes/editor", "c": "clip_d:0.7,l1:0.3", "d": "an image, a / b"}
    assert without_local(kept) == kept


def test_several_data_sets_and_nested_figures_are_found():
    two = {"a": {"name": "magicbrush", "path": "x/y"}, "b": {"name": "shapes", "path": ""}}
    assert data_of({"data": two}) == ["x/y"]
    assert flat({"a": {"b": 1, "c": True, "d": "x"}, "e": 2.5}) == {"a.b": 1.0, "e": 2.5}


def test_the_command_writes_the_card_and_uploads_the_result(run, monkeypatch, capsys):
    assert main(["push", str(run)]) == 0
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
            files = {path.name: path.read_text() for path in sorted(Path(folder_path).rglob("*.*"))}
            calls.append((repo_id, files))
            return f"https://hub/{repo_id}"

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    (run / "pipeline" / "made_of.json").write_text(json.dumps({"base": str(run)}))
    (run / "pipeline" / "unet").mkdir()
    (run / "pipeline" / "unet" / "config.json").write_text(json.dumps({"_name_or_path": str(run), "n": 1}))
    (run / "pipeline" / "tokenizer.json").write_text('{"merges": ["/a /b"]}')
    (run / "pipeline" / "unet" / "weights.safetensors").write_text("weights")
    assert main(["push", str(run), "me/mine", "--private"]) == 0
    (made, (repo, files)) = calls
    assert (made, repo) == (("me/mine", True, True), "me/mine")
    names = ["README.md", "config.json", "tokenizer.json", "weights.safetensors"]
    assert sorted(files) == names, "nothing that says what is local alone"
    assert json.loads(files["config.json"]) == {"_name_or_path": "(local)", "n": 1}
    assert files["tokenizer.json"] == '{"merges": ["/a /b"]}'
    assert "/tmp/" not in json.dumps(files)
    assert json.loads((run / "pipeline" / "unet" / "config.json").read_text())["_name_or_path"] == str(run)
    assert "https://hub/me/mine" in capsys.readouterr().out
    calls.clear()
    assert main(["push", str(run), "me/public", "--private"]) == 2
    assert "is there already, and everybody sees it" in capsys.readouterr().err
    assert calls == [("me/public", True, True)], "nothing was uploaded"


def test_what_cannot_be_shared_says_so(run, tmp_path_factory, monkeypatch, capsys):
    assert main(["push", str(run), "not a name"]) == 2
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


def blocks(text: str) -> dict[str, str]:
    """The code that loads a result, by the library's name."""
    return dict(re.findall(r"With (\w+):\n\n```python\n(.*?)```", text, re.S))


def test_the_code_of_a_card_runs_where_it_was_written(tiny_editor, run, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    shutil.rmtree(run / "pipeline")
    editor = load_editor(tiny_editor)
    save_editor(
        replace(editor, prompt=RewardPrompt.hive(), settings=SamplingConfig(2, 1.5, 1.2)), run / "pipeline"
    )
    assert main(["push", run.name]) == 0
    text = (run / "pipeline" / "README.md").read_text()
    code = blocks(text.replace("256", "32"))
    assert list(code) == ["rewardedit", "diffusers"]
    assert f'load_editor("{run.name}/pipeline")' in code["rewardedit"]
    assert "make the sky red, image quality is five out of five" in code["diffusers"]
    Image.new("RGB", (40, 30), "green").save("photo.jpg")
    made = []
    for text in code.values():
        seed = torch.Generator().manual_seed(0)
        exec(text.replace("image=photo", "image=photo, generator=seed"), {"seed": seed})
        made.append(np.asarray(Image.open("edited.png")).astype(int))
    # The same prompt, settings and noise: rewardedit's seed 0 is a generator of its own.
    assert np.abs(made[0] - made[1]).mean() < 2


def test_a_lora_is_loaded_onto_its_base():
    settings = {"name": "x", "base": "a/base", "data": {"name": "magicbrush", "path": "b/data", "size": None}}
    code = blocks(card(settings, {"trainer": "refl"}, {}, "lora", "me/x", "other"))
    assert 'load_editor("me/x")' in code["rewardedit"]
    assert 'from_pretrained("a/base")\npipe.load_lora_weights("me/x")' in code["diffusers"]
    assert "resize((512, 512))" in code["diffusers"]
    learned = card(settings, {}, {}, "pipeline", "me/x", "other", Usage(has_embedding=True))
    assert list(blocks(learned)) == ["rewardedit"], "stock diffusers does not read a learned embedding"


@pytest.fixture
def samples(run) -> Path:
    """Four held-out edits of the run, as a comparison keeps them."""
    shown = Wall()
    for i in range(6):
        images = [WallImage(label, torch.rand(3, 8, 8)) for label in ("before", "base", "result")]
        shown.add(WallEdit(f"make it | {i}", images))
    report = Report("r")
    report.wall("w", shown)
    report.save(run / "report.html")
    keep_samples(run, shown)
    return run


def test_samples_are_shown_where_all_data_are_public(samples, capsys):
    folder = samples / "pipeline" / "samples"
    text = write_card(samples, "me/x").read_text()
    assert text.count("![before]") == 4
    assert "| make it \\| 0 | ![before](samples/1-0.png) | ![base](samples/1-1.png) |" in text
    assert len(list(folder.iterdir())) == 12
    # Images of one's own are published on request alone.
    config = (samples / "config.yaml").read_text()
    (samples / "config.yaml").write_text(config.replace("osunlp/MagicBrush", "/home/me/photos"))
    assert "![" not in write_card(samples, "me/x").read_text()
    assert not folder.exists()
    assert main(["push", str(samples), "--samples"]) == 0
    assert len(list(folder.iterdir())) == 12
    assert main(["push", str(samples), "--no-samples"]) == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    "content",
    ["{", "3", "[3]", '[{"instruction": "x", "images": {"a": "../config.yaml"}}]', '[{"images": {}}]'],
)
def test_damaged_samples_are_none(content, samples):
    (samples / "samples.json").write_text(content)
    assert "![" not in write_card(samples, "me/x", samples=True).read_text()
    assert not (samples / "pipeline" / "samples").exists()


def test_a_sample_is_an_image_of_the_run(samples):
    (samples / "secret.txt").write_text("key")
    record = [{"instruction": "x", "images": {"a": "secret.txt"}}]
    (samples / "samples.json").write_text(json.dumps(record))
    assert copy_samples(samples, samples / "pipeline") == []
