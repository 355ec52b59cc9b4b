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
from tests.data.layouts import write_labelled_shapes
from tests.readme import PAIRS, blocks, sections, write_images, write_pairs

# The README's runs, cut short: fewer and smaller updates, no warm-up that would outlast them, one denoising
# step a rollout and an evaluation. What is trained on, how the reward is weighed and the learning rate stay
# as the README has them.
SHORT = ["train.max_steps=4", "train.batch_size=8", "train.lr_warmup_steps=1", "train.mixed_precision=no"]
SHORT += [
    "reward.num_inference_steps=[1]",
    "reward.stop_before_end=[0,0]",
    "watch.num_inference_steps=1",
    "watch.n=12",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Files that the README assumes: two images, and 200 pairs of the reader's own."""
    folder = tmp_path_factory.mktemp("files")
    write_images(folder)
    write_pairs(folder)
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
    assert all(command[0] == "rewardedit" for command in words if command)
    return [command[1:] for command in words if command]


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
        exec(compile(block, "README.md", "exec"), names)
    return names, out.getvalue()


def test_score_two_images(here):
    names, printed = run_python(sections("In thirty seconds"))
    assert names["scores"].valid.all()
    value = float(names["scores"].score)
    assert "tensor" in printed

    scored, drawn, table, folders = commands(sections("Score"))
    lines = [line.split() for line in run(scored).splitlines()]
    assert [line[1] for line in lines] == ["vifi_clip", "clip_d", "l1"]
    assert float(lines[0][2]) == pytest.approx(value, abs=1e-3), "the shell and Python give one score"

    run(drawn)
    assert load_image("heat.png").shape[2] > 3 * 256, "three images, enlarged"
    run(table)
    rows = pq.read_table("scores.parquet").to_pylist()
    assert len(rows) == PAIRS
    assert all(row["valid"] for row in rows)
    run(folders)
    assert [line.split(",")[0] for line in Path("both.csv").read_text().splitlines()] == [
        "id",
        "A/cat.png",
        "B/cat.png",
    ]


def test_choose_the_best_of_8_with_a_function_of_ones_own(here):
    text = sections("Choose: best of N")
    names, _ = run_python(text)
    result = names["result"]
    assert len(result.images) == 8
    expected = [float(image.amin(0).mean()) for image in result.images]
    assert result.scores.score.tolist() == pytest.approx(expected, rel=1e-5)
    assert float(load_image("best.png").amin(0).mean()) == pytest.approx(max(expected), abs=2 / 255)
    again = names["editor"](load_image("photo.jpg")[None], ["make the circle white"], [result.best_seed])
    assert float(again[0].sub(result.best).abs().max()) < 1e-3, "the seed reproduces the best edit"

    (command,) = commands(text)
    run(command)
    (turn,) = json.loads(Path("chosen/photo.json").read_text())["turns"]
    assert len(turn["scores"]) == 8
    assert turn["score"] == pytest.approx(max(turn["scores"]), abs=0.01)
    assert (here / "chosen" / "gallery.html").is_file()


def test_fine_tune_on_pairs_of_ones_own(here):
    honest, edit, _ = commands(sections("Train on your own pairs"))

    said = run([*honest, *SHORT, "evaluate.num_inference_steps=[1]", "evaluate.guidance_scale=[1.5]"])
    watched = json.loads(Path("runs/own/watch.json").read_text())
    assert "red flag" not in said
    assert not [check["flag"] for check in watched["looks"] + watched["sweep"] if check["flag"]]
    assert "red flag" not in Path("runs/own/watch.html").read_text()
    assert "held-out edits; mean, refl − variant with its 95 % interval over source images" in said
    assert Path("runs/own/report.html").is_file()
    run(edit)
    assert len(list(Path("edited").glob("photo*.png"))) == 2, "the source and its edit"


# tests/trainers/test_refl.py stops such a run with a smaller editor.
@pytest.mark.slow
def test_a_training_that_cheats_gets_a_red_flag(here):
    *_, cheating = commands(sections("Train on your own pairs"))
    said = run([*cheating, *SHORT, "train.max_steps=20", "watch.n=32"])
    flag = re.search(r"red flag at step 20: (.*)", said)
    assert flag
    assert "edits that fade into their sources" in flag[1]
    watched = json.loads(Path("runs/hacked/watch.json").read_text())["looks"]
    assert watched[-1]["l1"] > watched[0]["l1"], "the reward has risen"
    assert watched[-1]["flag"] == flag[1]
    assert "edits that fade into their sources" in Path("runs/hacked/watch.html").read_text()


def test_each_command_that_makes_a_scorer_s_training_data_can_begin_after_those_before_it(
    here, tiny_editor, capsys
):
    *editors, rows, scorer = commands(sections("Label: training data for a scorer"))
    for command in editors:
        run([*command, "--dry-run"])
        shutil.copytree(tiny_editor, here / "runs" / command[1] / "pipeline")
    run([*rows, "--dry-run"])
    assert main([*scorer, "--dry-run"]) == 2, "its rows are not there yet"
    made = here / "runs" / rows[1] / "rows"
    made.mkdir(parents=True)
    write_labelled_shapes(made)
    run([*scorer, "--dry-run"])
