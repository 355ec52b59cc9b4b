"""verl-omni's reward function, called as its manager does: keywords filtered by the signature."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from rewardedit import EditBatch, load_scorer
from rewardedit.images import to_pil, to_tensor
from rewardedit.integrations.verl import letterbox
from tests.integrations.standin import settings
from tests.integrations.test_edit_reward import images


def call(root: Path, solution: torch.Tensor, **changed: Any) -> dict[str, float]:
    """Calls the function of the page's settings, with another scorer, root and size."""
    found = dict(settings("integrations.verl")["reward"]["reward_functions"]["edit"])
    function = getattr(importlib.import_module(found.pop("path").removeprefix("pkg://")), found.pop("name"))
    assert found.pop("required") is True
    found.pop("weight")
    values = {
        "data_source": "edits",
        "solution_image": solution,
        "ground_truth": "make it warmer",
        "extra_info": {"image": "a.png", "index": 3},
        "reward_router_address": None,
        "model_name": None,
    }
    values |= found | {"root": str(root), "image_size": 32, "scorer": "l1"} | changed
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in values.items() if name in names})


@pytest.fixture
def source(tmp_path: Path) -> torch.Tensor:
    """A wide source that is saved as a.png; returns it as the rows hold it, by hand."""
    (image,) = images((15, 32))
    to_pil(image).save(tmp_path / "a.png")
    canvas = torch.ones(3, 32, 32)
    canvas[:, 8:23] = image  # (32 - 15) // 2 rows of white above
    return canvas


def test_source_and_edit_lie_on_one_canvas(source, tmp_path):
    edited = (source * 255).round().byte()
    assert call(tmp_path, edited) == {"score": 1}
    edited[:, 10:20] = 0
    batch = EditBatch(source[None], ["x"], edited[None] / 255)
    expected = float(load_scorer("l1")(batch).score)
    assert call(tmp_path, edited)["score"] == pytest.approx(expected, abs=1e-6)
    assert call(tmp_path, edited.float() / 255)["score"] == pytest.approx(expected, abs=1e-6)
    options = {"l1": {"weight": 2.0}, "psnr": {"weight": 1.0}}
    assert set(call(tmp_path, edited, scorer=options)) == {"score", "l1", "psnr"}


def test_the_letterbox_reads_pixels_as_they_lie():
    image = Image.new("RGBA", (10, 5), (255, 0, 0, 0))
    exif = image.getexif()
    exif[0x0112] = 6  # lies on its side, which the rows' script does not look at
    image.info["exif"] = exif.tobytes()
    boxed = to_tensor(letterbox(image, 20), 3)
    assert boxed[:, 5:15].flatten(1).unique(dim=1).tolist() == [[1], [0], [0]]
    assert bool((boxed[:, :5] == 1).all())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (None, "extra_info: expected image, the name of the source; got none"),
        ({}, "extra_info: expected image"),
        ({"image": "../a.png"}, "lies outside"),
    ],
)
def test_a_row_without_its_source_is_refused(source, tmp_path, row, message):
    (tmp_path / "inner").mkdir()
    with pytest.raises(ValueError, match=message):
        call(tmp_path / "inner", source, extra_info=row)


def test_latents_and_overflows_get_no_score(source, tmp_path):
    with pytest.raises(ValueError, match=r"solution_image: expected \(3, side, side\); got \(3, 16, 32\)"):
        call(tmp_path, source[:, :16])
    with pytest.raises(
        ValueError, match=r"1 of 1 edits have no score; edit 0: expected a tensor \(3, h, w\)"
    ):
        call(tmp_path, torch.zeros(16, 4, 4))
    with pytest.raises(ValueError, match="1 of 1 edits have no score"):
        call(tmp_path, source * torch.nan)


OWN = """
import torch
import rewardedit
from rewardedit.batch import Scores
from rewardedit.language.texts import note


def cutting(batch):
    note({text for text in batch.instruction if "long" in text}, 1, 77, "cutting")
    return batch.edited.mean((1, 2, 3))


class Own(rewardedit.Scorer):
    def score(self, batch, prepared):
        score = batch.edited.mean((1, 2, 3))
        return Scores.make(score, {"score": score + 7, "odd": score * torch.nan})
"""


def test_all_rows_have_the_same_keys(source, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    black = torch.zeros_like(source)
    total = {"l1": {"weight": 1.0}, f"{file}:cutting": {"weight": 1.0}}
    rows = [call(tmp_path, black, ground_truth=text, scorer=total) for text in ("short", "a long one")]
    assert [row.keys() for row in rows] == [{"score", *total}] * 2
    assert call(tmp_path, black, scorer=f"{file}:Own") == {"score": 0}
