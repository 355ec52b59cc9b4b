"""The judges by cases that are worked out by hand, one for each branch."""

import pytest

from rewardedit.scorers.bpm.checks import (
    JudgeConfig,
    area,
    centre,
    gap,
    iou,
    place_of,
    position_judge,
    size_judge,
)

IMAGE = (100.0, 200.0)  # height, width
HERE = (40.0, 40.0, 60.0, 60.0)  # 20 × 20 around (50, 50)


@pytest.mark.parametrize(
    ("before", "after", "state", "verdict"),
    [
        (100, 120, "larger", 1),  # just enough
        (100, 119, "larger", 0),
        (100, 80, "smaller", 1),
        (100, 81, "smaller", 0),
        (100, 100, "unchanged", 1),
        (100, 119, "unchanged", 1),
        (100, 120, "unchanged", 0),
        (100, 80, "unchanged", 0),
        (100, 300, "smaller", 0),
        (None, 50, "larger", 1),  # added
        (50, None, "unchanged", 1),  # removed
    ],
)
def test_the_size_judge(before, after, state, verdict):
    assert size_judge(before, after, state) == verdict


@pytest.mark.parametrize(("after", "verdict"), [(25, 0), (26, 1), (300, 1), (400, 0)])
def test_what_replaces_an_object_may_be_larger_or_smaller(after, verdict):
    assert size_judge(100, after, "unchanged", replaced=True) == verdict
    assert size_judge(100, after, "unchanged") == 0
    assert size_judge(100, after, "larger", replaced=True) == (after >= 120)


def test_an_area_of_nothing_is_refused():
    with pytest.raises(ValueError, match="areas above 0"):
        size_judge(0, 10, "larger")


def at(x: float, y: float, side: float = 20.0) -> tuple[float, float, float, float]:
    return (x - side / 2, y - side / 2, x + side / 2, y + side / 2)


@pytest.mark.parametrize(
    ("edited", "position", "verdict"),
    [
        (at(20, 50), "left", 1),
        (at(80, 50), "left", 0),  # on the other side
        (at(20, 15), "left", 0),  # further up than left
        (at(20, 25), "left", 1),
        (at(45, 50), "left", 0),  # still there: IoU 0.6
        (at(80, 50), "right", 1),
        (at(20, 50), "right", 0),
        (at(50, 20), "up", 1),
        (at(50, 80), "up", 0),
        (at(50, 80), "down", 1),
        (at(90, 80), "down", 0),  # further right than down
        (at(50, 50), "unchanged", 1),
        (at(80, 50), "unchanged", 0),
        (at(110, 50), "near", 1),  # 40 pixels between them, of 50 that are near
        (at(125, 50), "near", 0),  # 55
        (at(52, 50), "near", 0),  # on it
        (at(50, 50, 10), "inside", 1),
        (at(58, 50, 10), "inside", 1),  # stands out by 3 pixels, of 4 that it may
        (at(62, 50, 10), "inside", 0),
        (at(50, 50, 40), "inside", 0),  # around it
        (at(50, 20), "on", 1),
        (at(50, 50, 10), "on", 1),
        (at(60, 41, 14), "on", 1),  # over its rim: neither inside it nor further up than aside
        (at(62, 41, 14), "on", 0),  # beside it
        (at(50, 80), "on", 0),
        (at(50, 50, 40), "on", 0),
        (None, "left", 1),  # removed
    ],
)
def test_the_position_judge(edited, position, verdict):
    assert position_judge(edited, HERE, position, IMAGE) == verdict


@pytest.mark.parametrize(
    ("edited", "position", "verdict"),
    [
        (at(20, 20), "top left", 1),
        (at(100, 20), "top left", 0),
        (at(100, 20), "top center", 1),
        (at(180, 50), "center right", 1),
        (at(180, 90), "bottom right", 1),
        (at(180, 90), "bottom", 1),
        (at(20, 90), "bottom", 1),
        (at(100, 50), "center", 1),
        (at(20, 50), "center", 0),
    ],
)
def test_places_in_the_image_need_no_reference(edited, position, verdict):
    assert position_judge(edited, None, position, IMAGE) == verdict


def test_an_object_that_was_made_larger_where_it_was_has_kept_its_place():
    """Twice as long on each side the IoU is a quarter."""
    small, large = (40.0, 40.0, 60.0, 60.0), (30.0, 30.0, 70.0, 70.0)
    for before, after in ((small, large), (large, small)):
        assert position_judge(after, before, "unchanged", IMAGE) == 0
        assert position_judge(after, before, "unchanged", IMAGE, resized=True) == 1
    assert position_judge((61.0, 40.0, 101.0, 80.0), small, "unchanged", IMAGE, resized=True) == 0


def test_without_a_reference_no_relation_is_wrong():
    assert position_judge(at(10, 10), None, "left", IMAGE) == 1


def test_an_unknown_position_is_refused():
    with pytest.raises(ValueError, match="expected a relation or a place"):
        position_judge(HERE, HERE, "diagonal", IMAGE)
    assert place_of("left top") is None


def test_thresholds_are_the_config_s():
    strict = JudgeConfig(larger=2.0, overlap=0.9)
    assert size_judge(100, 150, "larger", strict) == 0
    assert position_judge(at(48, 50), HERE, "unchanged", IMAGE, strict) == 0


def test_boxes():
    assert centre((0, 10, 20, 50)) == (10, 30)
    assert area((0, 0, 4, 5)) == 20
    assert area((4, 0, 0, 5)) == 0
    assert iou((0, 0, 2, 2), (1, 0, 3, 2)) == pytest.approx(2 / 6)
    assert iou((0, 0, 0, 0), (0, 0, 0, 0)) == 0
    assert gap((0, 0, 1, 1), (4, 5, 6, 6)) == pytest.approx(5)
    assert gap((0, 0, 2, 2), (1, 1, 3, 3)) == 0
