"""The whole of reward conditioning, stage by stage, on tiny models and real photographs."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from skimage import data

from rewardedit import RewardPrompt, load_editor
from rewardedit.cli import load_recipe, main
from rewardedit.relabel import read_shards
from rewardedit.trainers import _run

PHOTOS = ("astronaut", "coffee", "chelsea", "rocket")


@pytest.fixture(scope="module")
def magicbrush(tmp_path_factory) -> str:
    """scikit-image's photographs in MagicBrush's layout: the target is the photograph with its channels turned round."""
    folder = tmp_path_factory.mktemp("magicbrush")
    rows = []
    for i, name in enumerate(PHOTOS):
        photo = Image.fromarray(getattr(data, name)()).convert("RGB")
        photo.thumbnail((300, 300))
        mask = Image.new("RGBA", photo.size, (0, 0, 0, 255))
        mask.paste((0, 0, 0, 0), (0, 0, photo.width // 2, photo.height // 2))
        for kind, picture in (("source", photo), ("mask", mask), ("target", Image.merge("RGB", photo.split()[::-1]))):
            picture.save(folder / f"{name}-{kind}.png")
        pictures = {f"{kind}_img": f"{name}-{kind}.png" for kind in ("source", "mask", "target")}
        rows.append({"img_id": str(i), "turn_index": 1, "instruction": f"turn the colors of the {name} round", **pictures})
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


@pytest.mark.parametrize("recipe", ["magicbrush-reward-conditioned", "magicbrush-reward-conditioned-lora-24gb"])
def test_the_full_size_recipes_run_line_by_line_on_photographs(recipe, magicbrush, narrow_sd15, tmp_path):
    """Small models stand in for the hub's names; every stage and setting is exercised at 256 pixels."""
    settings = [
        f"base={narrow_sd15}",
        f"data.path={magicbrush}",
        f"candidates.editors=[{narrow_sd15}, {narrow_sd15}]",
        "candidates.steps=2",
        "relabel.options.checkpoint=shapes-clip",
        "train.steps=2",
        "train.batch=4",
        "train.micro_batch=2",
        "train.warmup=1",
        "train.checkpoint_every=1",
        "train.validate_every=0",
        "train.tracker=none",
        "train.precision=bf16",  # fp16 needs a GPU
    ]
    out = tmp_path / "run"
    assert main(["train", recipe, *settings, "--out", str(out)]) == 0
    rows = read_shards(out / "relabelled")
    assert len(rows) == 4 * 4  # target, source and two editors for each photograph
    assert {row["id"].split("/")[1] for row in rows} == {"target", "source", "editor-0", "editor-1"}
    assert {row["score"] for row in rows if row["id"].endswith("/source")} == {0.0}
    assert all(row["text"].endswith(f"{['one', 'two', 'three', 'four', 'five'][row['label']]} out of five.") for row in rows)
    result = out / ("lora" if recipe.endswith("24gb") else "pipeline")
    prompt = RewardPrompt.load(result)
    assert prompt is not None
    assert len(prompt.scale.knots) == 11
    editor = load_editor(str(out))
    photo = torch.rand(1, 3, 256, 256)
    assert editor(photo, ["add a hat"], [0], settings=type(editor.settings)(2)).shape == (1, 3, 256, 256)
    for name in ("config.yaml", "environment.json", "metrics.jsonl"):
        assert (out / name).is_file()
    assert len(_run.checkpoints(out)) == 2


def test_every_recipe_resolves_and_its_header_says_how(capsys):
    from rewardedit.cli import recipe_folder, recipe_names

    for name in recipe_names():
        module, config = load_recipe(name, [])
        assert config.name == name
        assert callable(module.plan)
        header = [line for line in (recipe_folder() / f"{name}.yaml").read_text().splitlines() if line.startswith("#")]
        assert "Command:" in " ".join(header)
        assert "Hardware:" in " ".join(header)


def test_the_quickstart_in_short(tiny_editor, tmp_path, capsys):
    settings = [
        "data.rows=70",
        "train.steps=3",
        "train.batch=4",
        "train.warmup=1",
        "train.tracker=none",
        "evaluate.n=14",
        "evaluate.val_n=7",
        "evaluate.steps=2",
    ]
    out = tmp_path / "run"
    assert main(["train", "quickstart", *settings, "--out", str(out)]) == 0
    oracle = json.loads((out / "metrics.json").read_text())["oracle"]
    assert {"base", "conditioned_five", "conditioned_one", "relative_gain", "ci95", "ci95_vs_one", "n"} <= set(oracle)
    assert oracle["n"] == 14
    printed = capsys.readouterr().out
    assert "conditioned_five" in printed
    assert str(out / "report.html") in printed


def test_the_comparison_in_short(tmp_path):
    settings = [
        "data.rows=70",
        "train.steps=2",
        "train.batch=4",
        "train.warmup=1",
        "train.tracker=none",
        "evaluate.n=14",
        "evaluate.val_n=7",
        "evaluate.steps=2",
    ]
    out = tmp_path / "run"
    assert main(["train", "shapes-reward-conditioned", *settings, "--out", str(out)]) == 0
    oracle = json.loads((out / "metrics.json").read_text())["oracle"]
    assert {"unconditioned", "best_rows_only", "learned_embedding_five", "ci95_vs_unconditioned"} <= set(oracle)
    best = [json.loads(line) for line in (out / "arms" / "best_rows_only" / "metrics.jsonl").read_text().splitlines()]
    assert best


def test_an_earlier_run_is_not_written_over(tmp_path, capsys):
    (tmp_path / "metrics.json").write_text("{}")
    assert main(["train", "quickstart", "--out", str(tmp_path)]) == 2
    assert "holds an earlier run; go on with --resume" in capsys.readouterr().err


def test_a_resumed_run_does_no_stage_twice(tmp_path, monkeypatch):
    settings = [
        "data.rows=35",
        "train.steps=2",
        "train.batch=2",
        "train.warmup=1",
        "train.tracker=none",
        "evaluate=null",
    ]
    out = tmp_path / "run"
    assert main(["train", "quickstart", *settings, "--out", str(out)]) == 0
    stamps = {p: p.stat().st_mtime_ns for p in Path(out).rglob("*") if p.suffix in (".parquet", ".safetensors", ".npy")}
    assert main(["train", "quickstart", *settings, "--out", str(out), "--resume"]) == 0
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps
