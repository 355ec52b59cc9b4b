"""The full-size recipes from their first stage to their last: images of MagicBrush's shapes and column names,
an editor of Stable Diffusion 1.5's architecture with narrow layers,
and the attention processor that xformers runs in.

What the overrides leave out: the models' width, most of the images' pixels, fp16 (which needs a GPU),
and most rows and steps.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, Image
from diffusers import StableDiffusionPipeline, UNet2DConditionModel
from PIL import Image as Pillow
from safetensors.torch import load_file

from rewardedit import RewardPrompt, load_editor
from rewardedit.cli import main
from rewardedit.cli.recipes import read_recipe
from rewardedit.data import DataConfig, open_rows
from rewardedit.diffusion.editor_files import LORA
from rewardedit.images import load_image
from rewardedit.scoring import read_columns
from rewardedit.training.checkpoints import checkpoints
from tests.data.layouts import write_parquet
from tests.data.test_pairs import DATA, data_row
from tests.models import save_dino, save_vlm

# a quarter of those of a first turn, and of later ones: they are read in every stage
SIDES = {"source": (125, 256), "target": (256, 256), "mask": (256, 256)}
COMMON = [
    "data.size=64",
    "train.max_steps=2",
    "train.batch_size=4",
    "train.micro_batch_size=2",
    "train.lr_warmup_steps=1",
    "train.checkpoint_every=1",
    "train.validate_every=2",
    "train.validation_rows=1",
    "train.tracker=none",
]


def precision(recipe: str) -> list[str]:
    """bf16 where frozen weights are in it too; without units for it a CPU takes several times as long."""
    return ["train.mixed_precision=bf16" if "24gb" in recipe else "train.mixed_precision=no"]


def photograph(side: int, seed: int) -> Pillow.Image:
    """Smooth colours, quick to write."""
    noise = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    image = torch.nn.functional.interpolate(noise, (side, side), mode="bilinear")[0]
    return Pillow.fromarray((image * 255).byte().permute(1, 2, 0).numpy())


@pytest.fixture(scope="module")
def magicbrush(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a parquet file a split as the hub has it: one source image with two turns, and four with
    one to train on; three others to compare on.
    """
    folder = tmp_path_factory.mktemp("magicbrush")
    write_split(folder, "train", [(1, 1), (1, 2), (2, 1), (3, 1), (4, 1), (5, 1)], 0)
    write_split(folder, "dev", [(11, 1), (12, 1), (13, 1)], 100)
    return str(folder)


def write_split(folder: Path, split: str, turns: list[tuple[int, int]], first: int) -> None:
    """Writes rows of MagicBrush, each an image's number and turn."""
    rows = []
    for number, (img_id, turn) in enumerate(turns, first):
        paths = {}
        for kind, (first, later) in SIDES.items():
            image = photograph(first if turn == 1 else later, number)
            if kind == "mask":
                image = image.convert("RGBA")
                image.paste((0, 0, 0, 0), (25, 25, 150, 150))
            paths[f"{kind}_img"] = str(folder / f"{number}-{kind}.png")
            image.save(paths[f"{kind}_img"], compress_level=1)
        rows.append(
            {"img_id": str(img_id), "turn_index": turn, "instruction": f"make it number {number}", **paths}
        )
    table = Dataset.from_list(rows)
    for name in paths:
        table = table.cast_column(name, Image())
    table.to_parquet(folder / f"{split}-00000-of-00001.parquet")


def comparison(magicbrush: str, dino: str) -> list[str]:
    """Settings of a short comparison on three rows."""
    return [
        f"evaluate.data.path={magicbrush}",
        "evaluate.data.size=64",
        f"evaluate.scorers=[{{clip_i: {{checkpoint: shapes/clip}}}}, "
        f"{{dino_i: {{checkpoint: {dino}, against: target}}}}]",
        "evaluate.num_inference_steps=[1]",
        "evaluate.guidance_scale=[7.5]",
    ]


def require_compared(run: Path) -> None:
    """The run ended with a table of base and result, and a page."""
    metrics = json.loads((run / "metrics.json").read_text())
    assert (metrics["val_n"], metrics["n"]) == (1, 2)
    assert {"vlm_judge", "clip_i", "dino_i"} <= set(metrics["differences"])
    assert (run / "report.html").is_file()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(
        folder / LORA if (folder / LORA).is_file() else next((folder / "unet").glob("*.safetensors"))
    )


def run_to_its_end(recipe: str, settings: list[str], out: Path) -> Path:
    """Runs a recipe; returns the folder of its result."""
    assert main(["train", recipe, *settings, "--out", str(out)]) == 0
    assert len(checkpoints(out)) == 2
    assert len(json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])) >= 3
    preview = load_image(out / "validation" / "step-000002" / "00.png")
    assert preview.shape == (3, 64, 128)
    return out / ("lora" if recipe.endswith("24gb") else "pipeline")


def require_resumable(recipe: str, settings: list[str], out: Path, result: Path) -> None:
    """Goes on after the loss of what the second step, the result and all after it have left."""
    whole = weights(result)
    stages = [p for p in out.rglob("*") if p.suffix in (".npy", ".parquet") or "candidates" in p.parts]
    made = {path: path.stat().st_mtime_ns for path in stages if path.is_file()}
    assert made
    for lost in (result, out / "checkpoints" / "step-000002", out / "validation", out / "monitor.json"):
        if lost.exists():
            shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    assert main(["train", recipe, *settings, "--out", str(out), "--resume"]) == 0
    assert {path: path.stat().st_mtime_ns for path in made} == made, "a stage that was whole was done again"
    resumed = weights(result)
    for name, value in whole.items():
        torch.testing.assert_close(resumed[name], value, rtol=1e-3, atol=1e-6)


def walks(whole: str, lora: str, fast: bool) -> Any:
    """The slow suite walks through both recipes of a trainer and resumes them; the fast one through ReFL's
    LoRA alone, as quickstart's test trains with reward conditioning.
    """
    slow = [pytest.param(name, True, marks=pytest.mark.slow) for name in (whole, lora)]
    return pytest.mark.parametrize(("recipe", "resumed"), [*slow, (lora, False)] if fast else slow)


@walks("magicbrush-reward-conditioned", "magicbrush-reward-conditioned-lora-24gb", fast=False)
def test_reward_conditioning_runs_to_its_end(
    recipe, resumed, magicbrush, narrow_sd15, tiny_dino, tiny_judge, xformers, tmp_path
):
    settings = [
        *COMMON,
        *precision(recipe),
        f"base={narrow_sd15}",
        f"data.path={magicbrush}",
        f"candidates.editors=[{narrow_sd15}, {narrow_sd15}]",
        "candidates.num_inference_steps=1",
        f"relabel.scorer.vlm_judge.checkpoint={tiny_judge}",
        *comparison(magicbrush, tiny_dino),
    ]
    result = run_to_its_end(recipe, settings, tmp_path / "run")
    if resumed:
        require_resumable(recipe, settings, tmp_path / "run", result)
    require_compared(tmp_path / "run")
    assert xformers, "another attention ran"
    shards = sorted((tmp_path / "run" / "relabelled").glob("part-*.parquet"))
    names, scores, labels, texts = read_columns(shards, "id", "score", "label", "text")
    assert len(names) == 6 * 4, "target, source and two editors for each row"
    assert {name.split("/")[1] for name in names} == {"target", "source", "editor-0", "editor-1"}
    assert all(0 <= score <= 10 for score in scores)
    by_score = [label for _, label in sorted(zip(scores, labels, strict=True))]
    assert by_score == sorted(labels)
    assert len(set(labels)) > 2
    for label, text in zip(labels, texts, strict=True):
        assert text.endswith(f"{['one', 'two', 'three', 'four', 'five'][label]} out of five.")
    prompt = RewardPrompt.load(result)
    assert prompt is not None
    assert len(prompt.scale.knots) == 11
    editor = load_editor(str(tmp_path / "run"))
    edited = editor(torch.rand(1, 3, 64, 64), ["add a hat"], [0], settings=type(editor.settings)(1))
    assert edited.shape == (1, 3, 64, 64)


@walks("magicbrush-refl", "magicbrush-refl-24gb", fast=True)
def test_refl_runs_to_its_end(
    recipe, resumed, magicbrush, narrow_sd15, tiny_dino, tiny_judge, xformers, tmp_path
):
    settings = [
        *COMMON,
        *precision(recipe),
        f"base={narrow_sd15}",
        f"data.path={magicbrush}",
        f"reward.scorer.vlm_judge.checkpoint={tiny_judge}",
        "reward.num_inference_steps=[2]",
        f"monitor.held_out.dino_i.checkpoint={tiny_dino}",
        "monitor.n=2",
        "monitor.num_inference_steps=1",
        *comparison(magicbrush, tiny_dino),
        *([] if resumed else ["train.batch_size=2"]),  # one pass an update
    ]
    result = run_to_its_end(recipe, settings, tmp_path / "run")
    if resumed:
        require_resumable(recipe, settings, tmp_path / "run", result)
    require_compared(tmp_path / "run")
    assert xformers, "another attention ran"
    watched: dict[str, Any] = json.loads((tmp_path / "run" / "monitor.json").read_text())
    assert [look["step"] for look in watched["checks"]] == [0, 2]
    assert [row["scale"] for row in watched["sweep"]] == [0, 1]
    assert {"vlm_judge", "dino_i"} <= set(watched["sweep"][0])


@pytest.mark.slow  # tests/trainers/test_dpo.py trains on pairs of a table
def test_dpo_runs_to_its_end(magicbrush, narrow_sd15, tiny_dino, tiny_judge, tmp_path):
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    votes = ("leftvote", "rightvote", "tie", "leftvote", "rightvote")
    rows = [data_row(unique_key=str(number), vote_type=vote) for number, vote in enumerate(votes)]
    write_parquet(pairs / "train-0.parquet", rows, DATA)
    settings = [
        *COMMON,
        "train.mixed_precision=no",
        f"base={narrow_sd15}",
        f"data.path={pairs}",
        f"reward.scorer.vlm_judge.checkpoint={tiny_judge}",
        f"monitor.held_out.dino_i.checkpoint={tiny_dino}",
        f"monitor.data.path={magicbrush}",
        "monitor.data.split=train",
        "monitor.data.size=64",
        "monitor.n=2",
        "monitor.num_inference_steps=1",
        *comparison(magicbrush, tiny_dino),
        "evaluate.data.offset=0",
    ]
    run = tmp_path / "run"
    assert main(["train", "instruct-pix2pix-dpo", *settings, "--out", str(run)]) == 0
    require_compared(run)
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"margin", "accuracy", "distance", "winner_gain", "loser_gain"} <= set(last)
    assert (run / "lora" / LORA).is_file()


def small_models(magicbrush: str, narrow_sd15: str, tmp_path: Path) -> dict[str, str]:
    """Settings of magicbrush-adiee-data with small models for hub names, and photographs in both layouts."""
    folder = tmp_path / "text-to-image"
    parts = dict(load_editor(narrow_sd15).pipe.components)
    unet = dict(parts["unet"].config) | {"in_channels": 4}
    parts["unet"] = UNet2DConditionModel.from_config(unet)
    parts.pop("image_encoder", None)
    StableDiffusionPipeline(**parts, requires_safety_checker=False).save_pretrained(folder)
    emu = emu_edit(tmp_path / "emu")
    seed = seed_data_edit(tmp_path / "seed")
    dino = tmp_path / "dino"
    save_dino(str(dino))
    vlm = tmp_path / "vlm"
    save_vlm(str(vlm), "qwen2_5_vl")
    recipe = read_recipe("magicbrush-adiee-data", [])
    assert "shapes-" not in json.dumps(recipe), "a small model for photographs"
    editors = [name for name, method in recipe["methods"].items() if method["kind"] == "editor"]
    models = {name: narrow_sd15 if name in editors else str(folder) for name in recipe["methods"]}
    clip = "{clip_i: {checkpoint: shapes/clip}}"
    return {
        "data.magicbrush.path": magicbrush,
        "data.emu_edit.path": emu,
        **{f"data.{name}.size": "64" for name in recipe["data"]},
        "sequences.magicbrush.path": magicbrush,
        "sequences.seed_data_edit.path": seed,
        **{f"methods.{name}.model": model for name, model in models.items()},
        **{f"methods.{name}.num_inference_steps": "2" for name in models},
        "autoencoder": narrow_sd15,
        "measure.clip_d.clip_d.checkpoint": "shapes/clip",  # in the place of the hub's
        "measure.similarity": f"[{clip}, {{dino_i: {{checkpoint: {dino}, against: target}}}}]",
        "captions.model": str(vlm),
        "captions.max_new_tokens": "4",
        "captions.check": "false",  # what a random model says does not fit
        "batch_size": "4",
    }


@pytest.mark.slow  # tests/trainers/test_adiee_data.py makes the same from photographs in a table
def test_a_scorer_s_data_is_made_to_its_end(magicbrush, narrow_sd15, tmp_path):
    """Every line of the recipe."""
    given = small_models(magicbrush, narrow_sd15, tmp_path)
    out = tmp_path / "run"
    words = [f"{key}={value}" for key, value in given.items()]
    assert main(["train", "magicbrush-adiee-data", *words, "--out", str(out)]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    models = read_recipe("magicbrush-adiee-data", [])["methods"]
    assert {name: counts["made"] for name, counts in metrics["methods"].items()} == dict.fromkeys(models, 8)
    turns = sum(n for rule, n in metrics["rules"].items() if rule.startswith("turns_"))
    assert turns == 2, "one of each sequence, of either data set"
    assert {"source", "target"} <= set(metrics["rules"])
    assert metrics["rules"]["target"] == 6, "Emu Edit has no targets"
    assert len(open_rows(DataConfig(name="labelled", path=str(out / "rows")))) == metrics["rows"]


def chain(magicbrush: str, narrow_sd15: str, dino: str, tmp_path: Path) -> list[str]:
    """Settings of the whole chain of ADIEE with small models."""
    llava = tmp_path / "llava"
    save_vlm(str(llava), "llava_next")
    editor = [
        *(word for word in COMMON if word != "data.size=64"),
        f"base={narrow_sd15}",
        "data.size=64",
        "train.mixed_precision=no",
        *comparison(magicbrush, dino),
    ]
    scorer = [
        f"model={llava}",
        "data.magicbrush.size=64",
        "side=64",
        "train.max_steps=2",
        "train.batch_size=2",
    ]
    scorer += ["train.micro_batch_size=1", "train.mixed_precision=no", "train.tracker=none"]
    rollouts = [
        f"data.path={magicbrush}",
        "reward.scorer.adiee.dtype=float32",
        "reward.num_inference_steps=[3]",
    ]
    rollouts += [f"monitor.held_out.dino_i.checkpoint={dino}", "monitor.n=2", "monitor.num_inference_steps=1"]
    words = {
        "phase-1": [f"{k}={v}" for k, v in small_models(magicbrush, narrow_sd15, tmp_path).items()],
        "phase-2": scorer,
        "phase-3": [*editor, "relabel.scorer.adiee.dtype=float32"],
        "phase-4": [*editor, *rollouts],
    }
    return [f"{key}.{word}" for key, own in words.items() for word in own]


def test_the_chain_of_adiee_is_planned_before_it_starts(magicbrush, narrow_sd15, tiny_dino, tmp_path, capsys):
    """Rows, steps, time and memory of all four phases, though nothing that the first makes is there."""
    words = chain(magicbrush, narrow_sd15, tiny_dino, tmp_path)
    out = tmp_path / "run"
    assert main(["train", "magicbrush-adiee", *words, "--out", str(out), "--dry-run"]) == 0
    plan = capsys.readouterr().out
    phases = re.split(r"^phase-\d: ", plan, flags=re.M)[1:]
    assert [phase.partition("\n")[0] for phase in phases] == [
        "magicbrush-adiee-data",
        "adiee-scorer",
        "magicbrush-reward-conditioned-adiee",
        "magicbrush-refl",
    ]
    data, scorer, conditioned, refl = phases
    assert "labelled rows, at most: source 8, target 8" in data
    assert "UNet calls" in data
    assert "training: 2 steps in batches of 2" in scorer
    for phase in (data, scorer, conditioned, refl):
        assert re.search("time on this machine(, estimated:|: about) .* (minutes|hours)", phase), phase
    assert "memory, GiB: step" in scorer
    assert "phase-4, magicbrush-refl alone: Memory, GiB (benchmarks/memory.py): scores" in plan
    assert "what depends on the results of phase-1, phase-2 is known after them" in conditioned
    assert not out.exists()


@pytest.mark.slow
def test_the_chain_of_adiee_runs_to_its_end(magicbrush, narrow_sd15, tiny_dino, tmp_path):
    words = ["train", "magicbrush-adiee", *chain(magicbrush, narrow_sd15, tiny_dino, tmp_path)]
    out = tmp_path / "run"
    assert main([*words, "--out", str(out)]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert list(metrics) == ["phase-1", "phase-2", "phase-3", "phase-4"]
    assert {"adiee", "clip_i", "dino_i"} <= set(metrics["phase-3"]["differences"])
    assert {"adiee", "clip_i", "dino_i"} <= set(metrics["phase-4"]["differences"])
    shards = sorted((out / "phase-3" / "relabelled").glob("part-*.parquet"))
    scores, labels = read_columns(shards, "score", "label")
    assert labels == [min(int(score / 2), 4) for score in scores], "labels by 2 points of 10"
    assert load_editor(str(out)).family is not None  # the last phase's
    made = {path: path.stat().st_mtime_ns for path in out.glob("phase-*/made_of.json")}
    assert main([*words, "--out", str(out), "--resume"]) == 0
    assert {path: path.stat().st_mtime_ns for path in made} == made


def emu_edit(folder: Path) -> str:
    """Two rows that the recipe takes and one of another task, as Emu Edit's test set has them."""
    folder.mkdir()
    rows = []
    for number, task in enumerate(("global", "style", "add")):
        path = folder / f"{number}.png"
        photograph(512, 20 + number).save(path, compress_level=1)
        captions = {"input_caption": f"photograph {number}", "output_caption": f"painting {number}"}
        rows.append(
            {"idx": number, "task": task, "instruction": f"paint it {number}", "image": str(path), **captions}
        )
    Dataset.from_list(rows).cast_column("image", Image()).to_parquet(folder / "test-0.parquet")
    return str(folder)


def seed_data_edit(folder: Path) -> str:
    """One sequence of two turns, as SEED-Data-Edit Part 3 has them."""
    (folder / "annotations").mkdir(parents=True)
    for number in range(3):
        photograph(300, 30 + number).save(folder / f"{number}.png", compress_level=1)
    turns = {f"instruction_{i}": f"do {i}" for i in (1, 2)} | {f"edit_image_{i}": f"{i}.png" for i in (1, 2)}
    line = json.dumps({"source_image": "0.png", **turns})
    (folder / "annotations" / "split_0001.jsonl").write_text(line + "\n")
    return str(folder)
