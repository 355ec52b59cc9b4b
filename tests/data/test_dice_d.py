"""The differences of DICE-D's rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from rewardedit.data.dice_d import DiceD
from rewardedit.regions.differences import Difference


def record(**changes: Any) -> dict[str, Any]:
    return {
        "original_path": "a.png",
        "edited_path": "b.png",
        "gt_prompt": "add a cup",
        "operation": "ADD",
        "bbox": [0.1, 0, 0.5, 1],
        "complete_difference": "ADD: the dog's red, blue cup",
        "confidence": 0.75,
        **changes,
    }


def rows(folder: Path, *records: dict[str, Any]) -> DiceD:
    (folder / "differences.json").write_text(json.dumps(records))
    return DiceD(str(folder))


def test_the_differences_of_an_edit_are_read(tmp_path):
    found = rows(
        tmp_path,
        record(coherent=True, reason="a cup\nwas asked for."),
        record(operation="remove", complete_difference="REMOVE: lamp, [0.1, 0, 0.5, 1]", coherent=False),
        record(edited_path="c.png", complete_difference="cup", confidence=None),
    )
    first, second = found.differences(0)
    assert first.difference == Difference("ADD", "the dog's red, blue cup", (0.1, 0.0, 0.5, 1.0), 0.75)
    assert (second.difference.command, second.difference.subject) == ("REMOVE", "lamp")
    assert [first.coherent, second.coherent] == [True, False]
    assert [first.reason, second.reason] == ["a cup was asked for.", ""]
    (third,) = found.differences(1)
    assert (third.difference.subject, third.difference.confidence, third.coherent) == ("cup", 1.0, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"operation": "MOVE"},
            "edit 0, difference 0: operation: expected one of ADD, REMOVE, EDIT; got MOVE",
        ),
        ({"bbox": [0.5, 0, 0.1, 1]}, "bbox: expected x0 < x1 and y0 < y1, all from 0 to 1"),
        ({"bbox": [0, 0, 1]}, "bbox: expected"),
        ({"bbox": [True, 0, 1, 1]}, "bbox: expected"),
        ({"bbox": [0, 0, 64, 64]}, "bbox: expected"),
        ({"complete_difference": "ADD:"}, "expected a name of the object; got 'ADD:'"),
        ({"complete_difference": "ADD: {}, [0, 0, 1, 1]"}, "expected a name of the object"),
        ({"coherent": True, "reason": 3}, "edit 0, difference 0 has no reason"),
        ({"complete_difference": None}, "edit 0, difference 0 has no complete_difference"),
        ({"coherent": "yes"}, "coherent: expected true or false; got yes"),
    ],
)
def test_bad_differences_are_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        rows(tmp_path, record(**changes)).differences(0)


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("ADD: cup", "cup"),
        (" add : cup , [0.1, 0, 0.5, 1] ", "cup"),
        ("cup, (0, 0, 1, 1)", "cup"),
        ("ADD: cup (blue), tall", "cup (blue), tall"),
        ("ADD: cup, (a) b)", "cup, (a) b)"),
        ("ADD: " + " " * 2**17 + "x, [0,0,1,1", "x, (0,0,1,1"),
    ],
)
def test_the_subject_stands_between_command_and_box(text, subject, tmp_path):
    (one,) = rows(tmp_path, record(complete_difference=text)).differences(0)
    assert one.difference.subject == subject
