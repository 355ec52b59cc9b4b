"""Differences of a pair in both orders of its images, as one detection."""

from dataclasses import replace

import pytest

from rewardedit.regions.both_orders import merge_orders
from rewardedit.regions.differences import Detection, Difference

HERE = (0.0, 0.0, 0.5, 0.5)
THERE = (0.5, 0.5, 1.0, 1.0)


def found(*differences: Difference, dropped: int = 0) -> Detection:
    return Detection(differences, len(differences) + dropped)


def test_objects_are_taken_from_where_they_stand():
    """An object counts in the order in which the second image has it; a REMOVE of either order does not."""
    forward = found(Difference("ADD", "cup", HERE, 0.8), Difference("REMOVE", "hat", THERE, 0.9))
    backward = found(Difference("ADD", "dog", THERE, 0.7), Difference("REMOVE", "cup", HERE, 0.6))
    merged = merge_orders(forward, backward)
    assert merged.differences == (
        Difference("ADD", "cup", HERE, 0.8),
        Difference("REMOVE", "dog", THERE, 0.7),
    )
    assert (merged.items, merged.dropped) == (2, 0)


def test_edits_of_one_place_become_one():
    first = Difference("EDIT", "cup", HERE, 0.9)
    near = Difference("EDIT", "mug", (0.0, 0.0, 0.5, 0.6), 0.3)
    apart = Difference("EDIT", "lamp", THERE, 0.4)
    merged = merge_orders(found(first), found(near, apart)).differences
    assert merged[0].subject == "cup"
    assert merged[0].confidence == pytest.approx(0.6)
    assert merged[0].box == pytest.approx((0, 0, 0.5, 0.525)), "a mean weighted 3 to 1"
    assert merged[1:] == (replace(apart, confidence=0.2),), "found in one order alone"


def test_each_edit_is_merged_once():
    twins = [Difference("EDIT", "cup", HERE, 0.8), Difference("EDIT", "mug", HERE, 0.6)]
    merged = merge_orders(found(*twins), found(Difference("EDIT", "pot", HERE, 0.4))).differences
    assert [one.confidence for one in merged] == pytest.approx([0.6, 0.3])


def test_an_edit_without_confidence_has_the_mean_box():
    one = Difference("EDIT", "cup", HERE, 0.0)
    other = Difference("EDIT", "cup", (0.0, 0.0, 0.5, 0.7), 0.0)
    (merged,) = merge_orders(found(one), found(other)).differences
    assert merged.box == pytest.approx((0, 0, 0.5, 0.6))


def test_unreadable_items_and_answers_are_counted():
    both = merge_orders(found(dropped=2), found(Difference("ADD", "cup", HERE), dropped=1))
    assert (both.items, both.dropped) == (4, 3)
    for unread in ((Detection((), 1, "cut off"), found()), (found(), Detection((), 1, "cut off"))):
        merged = merge_orders(*unread)
        assert (merged.differences, merged.items, merged.reason) == ((), 1, "cut off")
