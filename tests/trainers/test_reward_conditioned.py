"""The whole of reward conditioning, stage by stage, on tiny models and real photographs."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from rewardedit.cli import load_recipe, main
from rewardedit.data import DataConfig
from rewardedit.relabel import RelabelConfig, Relabelled
from rewardedit.reward_prompt import RewardScale
from rewardedit.trainers.reward_conditioned import Config, Variant, variant_labels
from rewardedit.training.run import start
from rewardedit.training.run_folder import release
from tests.data.layouts import write_labelled_shapes

# A CPU without bf16 units computes in it several times as long; other tests train and sample in it.
WITHOUT_BF16 = ("train.mixed_precision=no", "evaluate.autocast=false")
SHORT = [
    "train.batch_size=4",
    "train.tracker=none",
    "evaluate.val_n=7",
    "evaluate.num_inference_steps=[1]",
    *WITHOUT_BF16,
]


def test_every_recipe_resolves_and_its_header_says_how(capsys):
    from rewardedit.cli import recipe_names, recipe_path

    for name in recipe_names():
        module, config = load_recipe(name, [])
        assert config.name == name.replace("/", "-")
        assert callable(module.plan)
        header = [line for line in recipe_path(name).read_text().splitlines() if line.startswith("#")]
        text = " ".join(line.lstrip("# ") for line in header)
        assert "Hardware:" in text
        assert f"train {name}" in text.partition("Command:")[2].partition("Hardware:")[0]
        said = text.partition("Hardware:")[0]
        quoted = re.findall(r"'([a-z_.]+=[^']+)'", said)
        settings = quoted + re.findall(r"(?<!')\b(?:phase-\d\.)?[a-z_.]+=\S+?(?=[\s,;)]|$)", said)
        load_recipe(name, [word for word in settings if not word.endswith("…")])


def test_the_quickstart_in_short(tiny_editor, tmp_path, capsys):
    settings = [
        "data.limit=28",
        "train.max_steps=3",
        "train.lr_warmup_steps=1",
        "evaluate.n=7",
        "evaluate.guidance_scale=[1.0,1.2]",
        *SHORT,
    ]
    out = tmp_path / "run"
    assert main(["train", "quickstart", *settings, "--out", str(out)]) == 0
    oracle = json.loads((out / "metrics.json").read_text())["oracle"]
    assert {
        "base",
        "conditioned_five",
        "conditioned_one",
        "relative_gain",
        "ci95",
        "ci95_vs_one",
        "n",
    } <= set(oracle)
    assert oracle["n"] == 7
    printed = capsys.readouterr().out
    assert "conditioned_five" in printed
    assert str(out / "report.html") in printed


# The suite compares variants in tests/test_standin_device.py.
@pytest.mark.slow
def test_the_comparison_in_short(tiny_editor, tmp_path):
    settings = [
        f"base={tiny_editor}",
        "data.limit=35",
        "train.max_steps=2",
        "train.lr_warmup_steps=1",
        "evaluate.n=14",
        "evaluate.guidance_scale=[1.0,1.2]",
        "variants=[conditioned,unconditioned,best_rows_only,words]",
        *SHORT,
    ]
    out = tmp_path / "run"
    assert main(["train", "shapes/reward-conditioned", *settings, "--out", str(out)]) == 0
    oracle = json.loads((out / "metrics.json").read_text())["oracle"]
    assert {"unconditioned", "best_rows_only", "words_five", "ci95_vs_unconditioned"} <= set(oracle)
    best = [
        json.loads(line)
        for line in (out / "variants" / "best_rows_only" / "metrics.jsonl").read_text().splitlines()
    ]
    assert best


def labelled_rows(folder: Path, made_from: str | None) -> list[str]:
    """Settings for labelled rows, which say what they were made from."""
    folder.mkdir()
    path = write_labelled_shapes(folder)
    if made_from is not None:
        settings = {"all_data": {"rows": {"name": made_from}}, "sequences": {"more": {"name": "shapes"}}}
        (folder / "made_of.json").write_text(json.dumps(settings))
    return [
        f"data={{name: labelled, path: {path}, size: 64}}",
        "relabel.scorer={vifi_clip: {checkpoint: shapes/vifi-clip}}",
    ]


@pytest.mark.world
def test_an_editor_trained_on_labelled_rows_of_the_shapes_world_is_compared(tiny_editor, tmp_path):
    """ADIEE App. B."""
    settings = [
        *labelled_rows(tmp_path / "rows", "shapes"),
        f"base={tiny_editor}",
        "train.max_steps=1",
        "train.lr_warmup_steps=0",
        "evaluate.n=7",
        "evaluate.guidance_scale=[1.0]",
        "variants=[conditioned]",
        *SHORT,
    ]
    out = tmp_path / "run"
    assert main(["train", "shapes/reward-conditioned", *settings, "--out", str(out)]) == 0
    assert json.loads((out / "relabelled" / "made_of.json").read_text())["data"]["name"] == "labelled"
    assert {"base", "conditioned_five"} <= set(json.loads((out / "metrics.json").read_text())["oracle"])


@pytest.mark.parametrize("made_from", ["magicbrush", None])
def test_an_editor_trained_on_other_rows_is_not_compared_on_the_shapes_world(tmp_path, made_from, capsys):
    words = labelled_rows(tmp_path / "rows", made_from)
    out = tmp_path / "run"
    assert main(["train", "shapes/reward-conditioned", *words, "--out", str(out)]) == 2
    assert (
        "evaluate.data: no source images can be held out of labelled rows; name other rows"
        in capsys.readouterr().err
    )
    assert not out.exists()


def test_each_variant_says_the_labels_in_its_own_way():
    _, config = load_recipe("shapes/reward-conditioned", ["relabel.prompt=hive"])
    assert isinstance(config, Config)
    rows = Relabelled([0.1, 0.9, 0.5, 0.7], [0, 4, 2, 3], RewardScale.from_range(0, 1))

    said = {name: variant_labels(config, name, rows) for name in get_args(Variant)}
    assert said["unconditioned"].prompt is None
    assert {name: found.prompt.embedding for name, found in said.items() if found.prompt} == {
        "conditioned": False,
        "best_rows_only": False,
        "words": False,
        "learned_embedding": True,
    }
    assert "{word}" in said["words"].prompt.template
    assert said["words"].prompt.template != said["conditioned"].prompt.template
    assert said["best_rows_only"].label == [None, 4, None, None], "the best bin alone"
    assert said["words"].label == said["learned_embedding"].label == rows.label


def test_an_earlier_run_is_not_written_over(tmp_path, capsys):
    folder = tmp_path / "run"
    start(folder, Config("x", DataConfig("shapes"), RelabelConfig("l1"), "shapes/editor"))
    release(folder)
    (folder / "metrics.json").write_text("{}")
    assert main(["train", "quickstart", "--out", str(folder)]) == 2
    assert "holds an earlier run; go on with --resume" in capsys.readouterr().err


def test_a_resumed_run_does_no_stage_twice(tmp_path, monkeypatch):
    settings = [
        "data.limit=35",
        "train.max_steps=2",
        "train.batch_size=2",
        "train.lr_warmup_steps=1",
        "train.tracker=none",
        "evaluate=null",
    ]
    out = tmp_path / "run"
    assert main(["train", "quickstart", *settings, "--out", str(out)]) == 0
    stamps = {
        p: p.stat().st_mtime_ns
        for p in Path(out).rglob("*")
        if p.suffix in (".parquet", ".safetensors", ".npy")
    }
    assert main(["train", "quickstart", *settings, "--out", str(out), "--resume"]) == 0
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps


@pytest.mark.parametrize("recipe", ["quickstart", "shapes/refl"])
def test_what_cannot_be_trained_here_is_refused_before_any_stage(recipe, tmp_path, capsys):
    out = tmp_path / "run"
    few = ["data.limit=8", "train.batch_size=2", "evaluate=null"]
    assert main(["train", recipe, "train.mixed_precision=fp16", *few, "--out", str(out)]) == 2
    assert "mixed_precision: fp16 needs a GPU" in capsys.readouterr().err
    assert not out.exists()
