"""Differences of rendered scenes: read off two scenes, and seen in their images."""

import numpy as np
import pytest
import torch

from rewardedit.images import to_tensor
from rewardedit.shapes import Shapes
from rewardedit.shapes.differences import (
    BACKGROUND,
    ShapesDifferences,
    certain_outputs,
    edited_scenes,
    scene_differences,
)
from rewardedit.shapes.judged_differences import JudgedDifferences, scene_changes, verdicts

COMMANDS = {
    "add": ["ADD"],
    "remove": ["REMOVE"],
    "replace": ["EDIT"],
    "recolour": ["EDIT"],
    "resize": ["EDIT"],
    "background": ["EDIT"],
    "move": ["ADD", "REMOVE"],
}


def test_each_type_of_edit_makes_its_differences():
    samples = Shapes("test").batch(0, 70)
    found = scene_differences(samples.before, samples.after)
    for kind, own, boxes in zip(samples.edit_type, found, samples.boxes / 64, strict=True):
        assert sorted(one.command for one in own) == COMMANDS[kind]
        if kind == "background":
            assert (own[0].subject, own[0].box) == (BACKGROUND, (0, 0, 1, 1))
        if kind == "move":
            own = sorted(own, key=lambda one: one.command, reverse=True)
            assert [list(one.box) for one in own] == [pytest.approx(box.tolist()) for box in boxes]


def test_the_box_of_an_edit_is_around_both_states_or_the_later_one():
    samples = Shapes("test", kinds=("resize",)).batch(0, 20)
    union = scene_differences(samples.before, samples.after)
    edited = scene_differences(samples.before, samples.after, "edited")
    for i, boxes in enumerate(samples.boxes / 64):
        both = torch.cat([boxes[:, :2].amin(0), boxes[:, 2:].amax(0)])
        assert list(union[i][0].box) == pytest.approx(both.tolist())
        assert list(edited[i][0].box) == pytest.approx(boxes[1].tolist())


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_scenes_have_as_many_differences_as_asked_for(count):
    samples = Shapes("train", backdrops=("plain", "photo")).batch(0, 140)
    after = edited_scenes(np.random.default_rng(0), samples.before, np.full(140, count))
    assert {len(own) for own in scene_differences(samples.before, after)} == {count}


def test_all_that_changed_lies_in_the_boxes():
    rows = ShapesDifferences(
        60, Shapes("test", backdrops=("plain", "textured")), {"two": 0.5, "over_done": 0.5}
    )
    for i in range(60):
        row = rows[i]
        changed = (to_tensor(row.source, 3) != to_tensor(row.edited, 3)).any(0)
        seen = torch.zeros_like(changed)
        for one in row.differences:
            x0, y0, x1, y1 = (round(64 * edge) for edge in one.box)
            assert changed[y0:y1, x0:x1].any()
            seen[y0:y1, x0:x1] = True
        assert not (changed & ~seen).any()


def test_drift_is_no_difference():
    rows = ShapesDifferences(40, Shapes("test"), {"drift": 1.0})
    untouched = [rows[i] for i in range(40) if not rows[i].differences]
    assert untouched
    assert any((to_tensor(row.source, 3) != to_tensor(row.edited, 3)).any() for row in untouched)


def test_unknown_kinds_of_pairs_are_refused():
    with pytest.raises(ValueError, match="shares: expected shares of similar, untouched"):
        ShapesDifferences(1, Shapes("test"), {"three": 0.5})


def test_verdicts_are_balanced_and_follow_the_instruction():
    rows = JudgedDifferences(100, Shapes("test", wordings="reserved"))
    assert [rows[i].coherent for i in range(4)] == [True, False, True, False]
    assert len({rows[i].instruction for i in range(100)}) > 50
    edits = {edit.id: edit for edit in rows.edits(0)}
    for row in (rows[i] for i in range(100)):
        edit = edits[row.id.rsplit("-", 1)[0]]
        differences = [change.difference for change in edit.changes]
        assert edit.verdicts[differences.index(row.differences[0])] is row.coherent
    samples = Shapes("test").batch(0, 35)
    wanted = scene_changes(samples.before, samples.after)
    for own in wanted:
        assert all(verdicts(own, own))
        assert not any(verdicts(own, []))


def test_a_verdict_is_no_where_an_unasked_change_overlaps():
    samples = Shapes("test", kinds=("background",)).batch(0, 1)
    wanted = scene_changes(samples.before, samples.after)[0]
    worse = edited_scenes(np.random.default_rng(0), samples.after, np.ones(1, dtype=int))
    changes = scene_changes(samples.before, worse)[0]
    if len(changes) == 1:  # the drawn change is another background
        assert verdicts(changes, wanted) == [False]
    else:
        assert verdicts(changes, wanted)[0] is False, "the whole image holds the other change"


def test_outputs_of_an_editor_are_kept_where_they_are_certain():
    samples = Shapes("test", kinds=("add", "remove")).batch(0, 4)
    half = samples.source.lerp(samples.target, 0.5)
    edited = torch.stack([samples.target[0], samples.source[1], half[2], samples.target[3]])
    rows = certain_outputs(samples, edited)
    assert [row is not None for row in rows] == [True, True, False, True]
    assert rows[0] is not None
    assert rows[1] is not None
    assert (len(rows[0].differences), len(rows[1].differences)) == (1, 0)
