"""`rewardedit bench magicbrush PATH --editors A B …` on two sessions, one of two turns."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rewardedit.cli import main
from rewardedit.cli.bench_magicbrush import jobs_of
from rewardedit.evaluation.protocols.magicbrush import SOURCE, MagicBrushTable
from tests.evaluation.protocols.test_magicbrush import folder

__all__ = ["folder"]  # a fixture
OUTPUTS = ["10/10_1", "20/20_1", "20/20_inde_2", "20/20_iter_2"]


def test_each_later_turn_begins_with_its_true_image(folder, tmp_path):
    outputs = MagicBrushTable(str(folder), {"tiny": tmp_path}).outputs
    turns = [one for one in outputs if (one.editor, one.image) == ("tiny", "20")]
    in_turn, second = jobs_of(folder / "images", turns)
    assert (in_turn.path.name, in_turn.instructions) == ("20-input.png", ("darker", "again"))
    assert (second.id, second.path.name) == ("20_inde_2", "20-output1.png")
    assert second.instructions == ("again",)


def edited(model: str, image: Path, out: Path) -> bytes:
    """Pixels of an edit by `rewardedit edit`."""
    assert main(["edit", str(image), "again", "--model", model, "--out", str(out)]) == 0
    return Image.open(out / image.name).tobytes()


def levels(pixels: bytes) -> np.ndarray:
    return np.frombuffer(pixels, dtype=np.uint8).astype(int)


@pytest.mark.slow
def test_models_make_the_outputs_and_stand_beside_folders(folder, tiny_editor, tmp_path, published, capsys):
    out = tmp_path / "out"
    words = ["bench", "magicbrush", str(folder), "--out", str(out)]
    editors = [f"tiny={tiny_editor}", f"mine={tmp_path / 'editor'}"]
    assert main([*words, "--editors", *editors]) == 0
    said = capsys.readouterr().out
    made = [out / "edits" / "tiny" / f"{name}.png" for name in OUTPUTS]
    images = [Image.open(path).tobytes() for path in made]
    assert len(set(images)) == 4
    # the second edit in turn is of the first edit, and the independent one of the true image
    of_edit = edited(tiny_editor, made[1], tmp_path / "of-edit")
    of_true = edited(tiny_editor, folder / "images" / "20" / "20-output1.png", tmp_path / "of-true")
    assert of_true == images[2]
    # in turn edits are not rounded to bytes between two edits
    near, far = (np.abs(levels(of_edit) - levels(images[i])).mean() for i in (3, 2))
    assert near < 0.2 * far

    tables = json.loads((out / "bench.json").read_text())["tables"]
    for table, n in zip(tables, (3, 2), strict=True):
        rows = {row["name"]: row for row in table["rows"]}
        assert set(rows["tiny"]["cells"]) == {"L1", "L2", "CLIP-I", "DINO", "CLIP-T"}
        assert rows["tiny"]["cells"]["L1"]["n"] == n
        paper = rows["MagicBrush, the paper's checkpoint"]
        assert (paper["kind"], paper["source"]) == ("published", SOURCE)

    # folders alone give the same table
    folders = [f"tiny={out / 'edits' / 'tiny'}", editors[1]]
    assert main([*words[:-1], str(tmp_path / "two"), "--edits", *folders]) == 0
    assert json.loads((tmp_path / "two" / "bench.json").read_text())["tables"] == tables
    capsys.readouterr()

    stamps = [path.stat().st_mtime_ns for path in made]
    assert main([*words, "--editors", *editors]) == 0
    assert capsys.readouterr().out == said
    assert [path.stat().st_mtime_ns for path in made] == stamps, "edits that are done stay"


def test_what_cannot_be_edited_is_counted(folder, tiny_editor, tmp_path, published, capsys):
    (folder / "images/10/10-input.png").unlink()
    words = ["bench", "magicbrush", str(folder), "--out", str(tmp_path / "out")]
    assert main([*words, "--editors", f"tiny={tiny_editor}"]) == 0
    assert "1 of 3 not edited; 10: " in capsys.readouterr().err
    shutil.rmtree(folder / "images")
    assert main([*words[:-1], str(tmp_path / "other"), "--editors", f"tiny={tiny_editor}"]) == 2
    assert "nothing was edited; 10: " in capsys.readouterr().err
