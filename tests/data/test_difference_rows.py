"""Differences to train on: the settings of data that choose them, and those that have no effect."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.data import Subset

from rewardedit.data import DataConfig
from rewardedit.data.difference_rows import open_differences, readable_rows, reasons_of
from rewardedit.data.worlds import WorldConfig
from rewardedit.images import to_pil
from tests.data.test_dice_d import record


@pytest.fixture
def file(tmp_path) -> Path:
    """Ten edits of five sources, each with two judged differences; the images do not exist."""
    records = []
    for edit in range(10):
        names = {"original_path": f"{edit // 2}.png", "edited_path": f"e{edit}.png"}
        records += [record(**names, coherent=True), record(**names, operation="REMOVE", coherent=False)]
    path = tmp_path / "judged.json"
    path.write_text(json.dumps(records))
    return path


def places(data: DataConfig, judged: bool) -> list[int]:
    """Places, in the file, of the rows that are opened."""
    rows = open_differences(data, judged)
    found = list(range(len(rows)))
    while hasattr(rows, "indices"):
        found = [rows.indices[i] for i in found]
        rows = rows.dataset
    return found


@pytest.mark.parametrize(("judged", "each"), [(True, 4), (False, 2)])
def test_rows_are_chosen_by_their_source_images(file, judged, each):
    def sources(**settings) -> list[int]:
        found = places(DataConfig("dice_d", str(file), split="test", **settings), judged)
        assert len(found) == each * len({place // each for place in found}), "all rows of a source"
        return sorted({place // each for place in found})

    assert sources() == [0, 1, 2, 3, 4]
    assert len(sources(holdout_sources=2)) == 3
    assert len(sources(fraction=0.4)) == 2
    assert sources(fraction=0.4) != sources(fraction=0.4, seed=2)
    assert sources(offset=each, limit=2 * each) == [1, 2]
    with pytest.raises(ValueError, match=r"data\.offset: expected a row below"):
        sources(offset=99)


def test_reasons_are_rows_too_and_one_must_be_there(file):
    data = DataConfig("dice_d", str(file), split="test", offset=1)
    with pytest.raises(ValueError, match=r'expected a "reason" .* set answers\.rationale=false'):
        open_differences(data, True, with_reasons=True)
    assert len(open_differences(data, False, with_reasons=True)) == 9
    records = json.loads(file.read_text())
    records[2]["reason"] = "a cup was asked for."
    file.write_text(json.dumps(records))
    for name in ("0.png", "e1.png"):
        to_pil(torch.zeros(3, 8, 8)).save(file.parent / name)
    rows = open_differences(data, True, with_reasons=True)
    assert reasons_of(rows) == ["", "a cup was asked for.", *[""] * 17]
    assert rows[1].reason == "a cup was asked for."
    kept, reasons = readable_rows(Subset(rows, [1, 2, 3]))
    assert (kept, list(reasons)) == ([0, 1], [2])
    kept, reasons = readable_rows(Subset(rows, [1, 2]), ["the dog's red, blue cup"])
    assert kept == []
    assert "nothing is left of" in reasons[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "train"}, "split: files in DICE-D's layout have one split, split=test; got 'train'"),
        ({"edit_types": ("add",)}, "edit_types: has no effect on differences"),
        ({"stream": True}, "stream: has no effect on differences"),
        ({"resize": "pad"}, "resize: has no effect on differences"),
        ({"size": 64}, "size: has no effect on differences"),
    ],
)
def test_settings_without_effect_on_a_file_are_refused(file, settings, message):
    with pytest.raises(ValueError, match=message):
        open_differences(DataConfig("dice_d", str(file), **{"split": "test", **settings}), True)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("edit_types", {"edit_types": ("add",)}),
        ("stream", {"stream": True}),
        ("resize", {"resize": "pad"}),
        ("size", {"size": 32}),
        ("edits_per_source", {"shapes": WorldConfig(edits_per_source=2)}),
        ("quality_mix", {"shapes": WorldConfig(quality_mix={"one": 1.0})}),
    ],
)
def test_settings_without_effect_on_a_world_are_refused(name, settings):
    with pytest.raises(ValueError, match=f"{name}: has no effect on"):
        open_differences(DataConfig("shapes", **settings), True)
