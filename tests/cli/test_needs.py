import re
from importlib import import_module
from pathlib import Path

import pytest
from huggingface_hub import constants

from rewardedit import models
from rewardedit.cli import load_recipe, main, recipe_names
from rewardedit.cli.announce import OnHub, download_line, licence_in, look_on_hub
from rewardedit.cli.checks import HubCache
from rewardedit.cli.needs import MODEL_SETTINGS, Missing, Reference, missing, missing_requirements, references
from rewardedit.cli.recipes import TRAINERS
from rewardedit.cli.settings import settings_of
from rewardedit.data import DataConfig
from rewardedit.relabel import RelabelConfig
from rewardedit.scorers.load import models_of

EMPTY = HubCache(Path("none"), Path("none"), ())


def test_all_settings_that_name_models_are_looked_at():
    """Their comments say so; a new one has to be added to MODEL_SETTINGS."""
    configs = [import_module(module).Config for module in TRAINERS.values()]
    words = (
        "hub name",
        "folder of the trained",
        "folder with weights",
        "to train further",
        "CLIP model whose",
    )
    found = {
        setting.name.split(".")[-1]
        for config in configs
        for setting in settings_of(config)
        if any(word in setting.help for word in words) and not setting.name.endswith("path")
    }
    assert {"base", "model", "editors", "vae", "init_from", "clip"} <= found
    assert found <= set(MODEL_SETTINGS)


def test_a_recipe_names_its_models_scorers_and_data():
    _, config = load_recipe("magicbrush-adiee-data", [])
    found = set(references(config))
    assert {
        Reference("model", "vinesmsuic/magicbrush-jul7"),
        Reference("model", "Qwen/Qwen2.5-VL-7B-Instruct"),
        Reference("model", "openai/clip-vit-base-patch16"),
        Reference("model", "facebook/dinov2-base"),  # the default of a scorer
        Reference("data", "osunlp/MagicBrush"),
        Reference("data", "data/SEED-Data-Edit-Part3/multi_turn_editing", on_hub=False),
    } <= found
    _, editor = load_recipe("shapes/editor", [])
    made = {"runs/shapes-autoencoder/vae", "runs/shapes-text-encoder"}
    assert {thing.name for thing in references(editor.phases["phase-1"].settings)} == made
    found = {need.name for need in missing_requirements(editor, "", EMPTY, recipe_names())}
    assert found == made, "what earlier phases make is not missing"
    _, later = load_recipe("shapes/editor", ["first_phase=2", "phase-2.init_from=runs/elsewhere/pipeline"])
    assert [need.name for need in missing_requirements(later, "", EMPTY, recipe_names())] == [
        "runs/elsewhere/pipeline"
    ]
    _, further = load_recipe("shapes/comparison-editors", [])
    assert {thing.name for thing in references(further)} == {"shapes/editor"}
    _, own = load_recipe("magicbrush-adiee-data", ["methods={made: {kind: folder, model: outputs/x}}"])
    assert Reference("data", "outputs/x", on_hub=False) in set(references(own))


@pytest.mark.parametrize("change", ["train.optimizer=adamw8bit", "train={quantize: 4bit, lora_rank: 4}"])
def test_few_bits_need_their_package(change):
    _, config = load_recipe("quickstart", [change])
    assert Reference("package", "bitsandbytes") in set(references(config))


def test_scorers_options_name_models_too():
    bpm = "rewardedit.scorers.bpm.bpm:Bpm"
    published = {models.CLIP, models.DETECTOR, models.SEGMENTER}
    assert set(models_of({bpm: {}})) == published
    small = {"shapes/detector", "shapes/segmenter"}
    assert set(models_of("bpm", checkpoint="shapes/detector")) == small, "its calibration names its regions"
    unnamed = {bpm: {"regions": {"detector": "own/detector"}}}
    assert set(models_of(unnamed)) == {"own/detector", models.CLIP, models.SEGMENTER}
    regions = {"name": "grounded_sam", "detector": "own/detector", "segmenter": None}
    own = {bpm: {"checkpoint": "own/clip", "regions": regions, "parser": "own/llm"}}
    assert set(models_of(own)) == {"own/clip", "own/detector", "own/llm"}
    without = {bpm: {"checkpoint": "own/clip", "regions": "change_map", "parser": "http://localhost:1/v1#x"}}
    assert models_of(without) == ["own/clip"]
    assert models_of("clip_d:0.7,dino_i:0.3") == [models.CLIP, models.DINO]


@pytest.mark.parametrize(
    ("name", "kind", "remedy"),
    [
        ("runs/nothing/x", "run", "no recipe makes it; give a folder that is there"),
        ("/nowhere/model", "model", "no such file or folder"),
        ("a/b/c", "model", "no such file or folder"),
        ("own/model", "model", "not in the cache; fetched when you are online, or by: hf download own/model"),
    ],
)
def test_a_model_that_is_not_there_has_a_remedy(name, kind, remedy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    need = missing(Reference("model", name), EMPTY, recipe_names())
    assert (need.kind, need.remedy) == (kind, remedy)


def test_rows_of_a_table_are_never_looked_for_on_the_hub():
    class_ = type(load_recipe("quickstart", [])[1])
    config = class_("own", DataConfig("table", "own/rows", size=64), RelabelConfig("l1"), "shapes/editor")
    (need,) = missing_requirements(config, "", EMPTY, ())
    assert (need.kind, need.remedy) == ("data", "no such file or folder")


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "size and licence unknown"),
        (OnHub(4_260_000_000, licence_in(["diffusers", "license:mit"])), "at most 4.3 GB, licence mit"),
        (OnHub(10**9, licence_in(["diffusers"])), "at most 1.0 GB, licence not stated"),
        (OnHub(10**9, licence_in(["license:a\x1b[31m"])), "at most 1.0 GB, licence a?[31m"),
        (
            OnHub(10**9, "other", gated=True),
            "at most 1.0 GB, licence other; gated: accept its terms on its page on the hub, then "
            "`hf auth login`",
        ),
    ],
)
def test_a_download_is_announced_with_its_size_and_licence(found, told):
    need = Missing("model", "own/clip", "", on_hub=True)
    assert download_line(need, found) == f"downloads the model own/clip from https://huggingface.co: {told}"


def test_a_refused_repository_is_no_download():
    need = Missing("model", "own/clip", "", on_hub=True)
    line = download_line(need, OnHub(0, refusal="model own/clip is gated"))
    assert line == "cannot download: model own/clip is gated"


def test_a_known_size_stands_where_the_hub_is_silent():
    line = download_line(Missing("model", "Qwen/Qwen-Image-Edit-2511", "", on_hub=True), None)
    assert line.endswith("about 57.7 GB, licence unknown until the hub is reached")


def test_a_silent_hub_is_asked_once(monkeypatch):
    asked = []

    def silent(self, name, **_):
        asked.append(name)
        raise ConnectionError("no answer")

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", silent)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    needs = [Missing("model", name, "", on_hub=True) for name in ("a/one", "a/two")]
    assert look_on_hub(needs) == {}
    assert asked == ["a/one"]
    assert not constants.HF_HUB_OFFLINE


def test_a_chain_s_downloads_are_said_once(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "magicbrush-adiee", "--dry-run"]) == 2
    told = capsys.readouterr()
    assert len(told.out.splitlines()) < 40
    both = told.out + told.err
    for name, size in (("llava-hf/llama3-llava-next-8b-hf", "16.7"), ("osunlp/MagicBrush", "27")):
        (line,) = [line for line in both.splitlines() if f" {name} from" in line]
        assert f"about {size} GB" in line
        assert f"not there: the model {name}" not in both
    assert re.search(r"disk: 13 downloads: about [\d.]+ GB and 1 of unknown size; [\d.]+ GB free", told.out)
