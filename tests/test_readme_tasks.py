"""Three tasks done with the README alone: its commands and Python blocks, in their order,
on a reader's own files.
"""

import contextlib
import io
import json
import re
import shlex
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rewardedit.cli import main
from rewardedit.images import load_image
from tests.readme import ROOT, SIZE, blocks, sections, smaller, write_images, write_pairs

# The README's training, cut short: few and small updates of a tiny editor on small images, one denoising
# step a rollout and an evaluation. What is trained on, and how the reward is weighed, stay as they are there.
FEW = [
    "train.batch_size=8",
    "train.lr_warmup_steps=1",
    "train.mixed_precision=no",
    "reward.num_inference_steps=[1]",
    "reward.stop_before_end=[0,0]",
    "monitor.num_inference_steps=1",
]
SHORT = [
    *FEW,
    "train.max_steps=2",
    "train.micro_batch_size=8",
    "train.validate_every=0",
    "train.checkpoint_every=2",
    "monitor.n=2",
    "evaluate.n=8",
    "evaluate.val_n=4",
    "evaluate.num_inference_steps=[1]",
    "evaluate.guidance_scale=[2.0]",
]
CHEAT = [*FEW, "train.max_steps=60", "monitor.n=32"]
PAIRS = 60
OFFLINE = (ROOT / "docs" / "offline-world.md").read_text()


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Files that the README assumes: two images, and pairs of the reader's own."""
    folder = tmp_path_factory.mktemp("files")
    write_images(folder)
    write_pairs(folder, PAIRS)
    return folder


@pytest.fixture
def here(files, tmp_path, monkeypatch) -> Path:
    """The working directory, with these files alone."""
    folder = shutil.copytree(files, tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder


def commands(text: str) -> list[list[str]]:
    """The `rewardedit` commands of a text's shell blocks, each as its words."""
    lines = "\n".join(blocks(text, "bash")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    assert all(command[0] in ("rewardedit", "accelerate") for command in words if command)
    return [command[1:] for command in words if command and command[0] == "rewardedit"]


def run(command: list[str]) -> str:
    """Output of a command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as errors:
        status = main(command)
    assert status == 0, errors.getvalue()
    return out.getvalue()


def run_python(text: str) -> tuple[dict, str]:
    """The names that a text's one Python block defines, and what it prints."""
    (block,) = blocks(text, "python")
    names: dict = {}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(smaller(block), "README.md", "exec"), names)
    return names, out.getvalue()


@pytest.mark.usefixtures("published")
def test_score_two_images(here):
    text = sections("Score")
    names, printed = run_python(text)
    assert names["scores"].valid.all()
    assert "tensor" in printed

    _, several, drawn, table = commands(text)
    lines = [line.split() for line in run(several).splitlines()]
    assert [line[1] for line in lines] == ["vlm_judge", "clip_d", "l1"]
    assert float(lines[0][2]) == pytest.approx(float(names["scores"].score), abs=1e-3)
    run(drawn)
    assert load_image("heat.png").ndim == 3
    run(table)
    rows = pq.read_table("scores.parquet").to_pylist()
    assert len(rows) == PAIRS
    assert all(row["valid"] for row in rows)


@pytest.mark.usefixtures("published")
def test_choose_the_best_of_8_with_a_function_of_ones_own(here):
    text = sections("Choose: best of N")
    assert SIZE in text
    names, _ = run_python(text)
    result = names["result"]
    assert result.best.shape == (3, 64, 70), "a photograph of 61 × 67 pixels, at a size that can be edited"
    assert len(result.images) == 8
    expected = [float(image.amin(0).mean()) for image in result.images]
    assert result.scores.score.tolist() == pytest.approx(expected, rel=1e-5)
    assert float(load_image("best.png").amin(0).mean()) == pytest.approx(max(expected), abs=2 / 255)
    instruction = "make the man's pants white"
    again = names["editor"](names["photo"], [instruction], [result.best_seed])
    assert float(again[0].sub(result.best).abs().max()) < 1e-3, "the seed reproduces the best edit"

    (command,) = commands(text)
    command[command.index("bpm")] = "l1"  # a tiny random detector finds nothing
    run([*command, "--steps", "1"])
    (turn,) = json.loads(Path("chosen/cat.json").read_text())["turns"]
    assert len(turn["scores"]) == 8
    assert turn["score"] == pytest.approx(max(turn["scores"]), abs=0.01)
    assert (here / "chosen" / "gallery.html").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("published")
def test_fine_tune_on_pairs_of_ones_own(here):
    own, _ = commands(sections("Train"))
    said = run([*(word.replace("size: 256", "size: 64") for word in own), *SHORT])
    assert "held-out edits; mean, refl − variant with its 95 % interval over source images" in said
    metrics = json.loads(Path("runs/own/metrics.json").read_text())
    assert {"vlm_judge", "clip_i", "dino_i"} <= set(metrics["differences"])
    assert Path("runs/own/report.html").is_file()
    run(["edit", "photo.jpg", "make it white", "--model", "runs/own", "--steps", "1"])
    assert Path("edited/gallery.html").is_file()


# tests/trainers/test_refl.py stops such a run with a smaller editor.
@pytest.mark.slow
def test_a_training_that_cheats_gets_a_red_flag(here):
    (cheating,) = [command for command in commands(OFFLINE) if "reward.scorer=l1" in command]
    said = run([*cheating, *CHEAT])
    flag = re.search(r"red flag at step 60: (.*)", said)
    assert flag
    assert "edits that fade into their sources" in flag[1]
    watched = json.loads(Path("runs/hacked/monitor.json").read_text())["checks"]
    assert watched[-1]["l1"] > watched[0]["l1"], "the reward has risen"
    assert watched[-1]["flag"] == flag[1]
    assert "edits that fade into their sources" in Path("runs/hacked/monitor.html").read_text()
