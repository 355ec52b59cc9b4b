import json

import numpy as np
import pytest
from PIL import Image

from rewardedit.cli import main
from rewardedit.evaluation.protocols.magicbrush import MagicBrushTable, seen_by
from rewardedit.evaluation.protocols.protocol import ItemScores, Options
from tests.evaluation.protocols.files import BROKEN, photograph, save

SIZE = (48, 36)


@pytest.fixture
def folder(tmp_path):
    """A session of one turn, one of two, and one that is malformed; an editor's outputs of half the size, of
    which one cannot be read.
    """
    test = tmp_path / "test"
    for image, names in {"10": ("input", "output1"), "20": ("input", "output1", "output2")}.items():
        for number, name in enumerate(names):
            save(test / "images" / image, f"{image}-{name}.png", photograph(int(image), 1 - number / 4, SIZE))
    sessions = {
        "10": [{"input": "10-input.png", "output": "10-output1.png", "instruction": "darker"}],
        "20": [
            {"input": "20-input.png", "output": "20-output1.png", "instruction": "darker"},
            {"input": "20-output1.png", "output": "20-output2.png", "instruction": "again"},
        ],
        "30": [{"input": "30-input.png", "output": "30-output1.png"}],
    }
    (test / "edit_sessions.json").write_text(json.dumps(sessions))
    captions = {"10": {"10-output1.png": "a dark cat"}, "20": {"20-output1.png": "dark coffee"}}
    (test / "local_descriptions.json").write_text(json.dumps(captions))
    for name in ("10/10_1", "20/20_1", "20/20_inde_2", "20/20_iter_2"):
        save(tmp_path / "editor", f"{name}.png", photograph(int(name[:2]), 0.6, (24, 18)))
    save(tmp_path / "editor", "20/20_inde_2.png", BROKEN)
    return test


def mean_distance(edited, target, power):
    """Mean |difference| to a power of images in [0, 1], the edited one brought to the target's size."""
    edited = edited.resize(target.size, Image.Resampling.BICUBIC)
    a, b = (np.asarray(image, dtype=float) / 255 for image in (edited, target))
    return (np.abs(a - b) ** power).mean()


def test_the_table_is_the_released_code_s(folder, tmp_path, published, capsys):
    """L1 and L2 by numpy; an output that is the target has CLIP-I and DINO 1. Models are tiny."""
    out = tmp_path / "out"
    words = ["bench", "magicbrush", str(folder), "--edits", f"mine={tmp_path / 'editor'}", "--out", str(out)]
    assert main([*words, "--scorer", "psnr"]) == 0
    said = capsys.readouterr().out
    assert "edit_sessions.json: 30 is left out: turn 1 lacks its input, output or instruction" in said
    assert "mine, L1, L2, CLIP-I, DINO, CLIP-T, psnr: 1 of 3 outputs have no score" in said
    single, multi = json.loads((out / "bench.json").read_text())["tables"]
    rows = {row["name"]: row["cells"] for row in single["rows"]}
    expected = {"L1": [], "L2": []}
    for image, number in (("10", 1), ("20", 1)):
        edited = Image.open(tmp_path / "editor" / image / f"{image}_1.png")
        target = Image.open(folder / "images" / image / f"{image}-output{number}.png")
        expected["L1"].append(mean_distance(edited, target, 1))
        expected["L2"].append(mean_distance(edited, target, 2))
    for name, values in expected.items():
        assert rows["mine"][name]["value"] == pytest.approx(np.mean(values), abs=1e-6)
        assert rows["target"][name]["value"] == pytest.approx(0, abs=1e-6)
    assert rows["target"]["CLIP-I"]["value"] == pytest.approx(1, abs=1e-5)
    assert rows["target"]["DINO"]["value"] == pytest.approx(1, abs=1e-5)
    assert rows["target"]["CLIP-I"]["n"] == 3
    assert {row["name"]: row["cells"]["L1"]["n"] for row in multi["rows"]}["mine"] == 2


def test_metrics_see_images_as_they_do_there():
    """Resized to 256 by its shorter side and cut to the middle 224, for a whole number of pixels."""
    wide = Image.new("RGB", (300, 200))
    wide.paste((255, 0, 0), (150, 0, 300, 200))
    edited, target = seen_by("DINO", wide, wide)
    assert edited.size == target.size == (224, 224)
    red = np.asarray(edited)[:, :, 0]
    assert red[100, 105] < 20  # the middle of 384 pixels, of which 80 are cut off on the left, is column 112
    assert red[100, 119] > 235
    distances, _ = seen_by("L1", wide, wide.resize((30, 20)))
    assert distances.size == (30, 20)


def test_turns_are_those_of_the_released_code(folder, tmp_path):
    benchmark = MagicBrushTable(str(folder), {"mine": tmp_path / "editor"})
    turns = [one.id for one in benchmark.outputs if one.editor == "mine"]
    assert turns == ["mine/10/1", "mine/20/1", "mine/20/inde_2", "mine/20/iter_2"]
    values = {one.id: {"1": 1.0, "inde_2": 0.5, "iter_2": 0.0}[one.turn] for one in benchmark.outputs}
    single, multi = benchmark.tables(ItemScores({"psnr": values}), Options())
    assert single.rows[0].cells["psnr"].value == pytest.approx(2.5 / 3)
    assert multi.rows[0].cells["psnr"].value == 0.5
    caption = {one.turn: one.caption for one in benchmark.outputs if one.image == "20"}
    assert caption == {"1": "dark coffee", "inde_2": None, "iter_2": None}
