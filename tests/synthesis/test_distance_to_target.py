"""Labels by how far an edit is from its target."""

import pytest
import torch

from rewardedit.instructions.parsed import ParsedEdit, Unparsed
from rewardedit.shapes import EDIT_TYPES
from rewardedit.synthesis.distance_to_target import (
    distance_to_target,
    label_by_distance,
    object_not_moved,
    unedited,
)

LABELS = ((0.0, 10.0), (0.2, 8.0), (1.0, 0.0))
REMOVE = ParsedEdit("remove", "red circle", None)
ADD = ParsedEdit("add", None, "red circle")


def scene(*squares: tuple[int, int]) -> torch.Tensor:
    """A white image of 64 pixels a side with red squares of 16, and a black one that nobody asks about."""
    image = torch.ones(3, 64, 64)
    image[:, 44:60, 44:60] = 0
    for top, left in squares:
        image[1:, top : top + 16, left : left + 16] = 0
    return image


SOURCE, TARGET = scene((4, 4), (4, 40)), scene()
EDITS = {
    "done": TARGET,
    "untouched": SOURCE,
    "half done": scene((4, 4)),
    "and one too many": scene((40, 4)),
    "faint": TARGET + 0.5 * (SOURCE - TARGET),
}


def shares(name: str) -> float:
    return float(distance_to_target(SOURCE[None], TARGET[None], EDITS[name][None]))


def test_a_target_leaves_nothing_and_a_source_all_of_it():
    assert shares("done") == 0
    assert shares("untouched") == pytest.approx(1)
    assert shares("half done") == pytest.approx(0.5, abs=0.02)
    # What is drawn beside the target counts as what is left undone: one square of two.
    assert shares("and one too many") == pytest.approx(0.5, abs=0.02)
    assert 0.85 < shares("faint") < 1


def test_images_of_any_size_give_the_same_share():
    twice = [image.repeat_interleave(2, 1).repeat_interleave(2, 2)[None] for image in (SOURCE, TARGET)]
    half = EDITS["half done"].repeat_interleave(2, 1).repeat_interleave(2, 2)[None]
    assert float(distance_to_target(*twice, half)) == pytest.approx(shares("half done"), abs=0.02)


def test_a_shade_that_nobody_sees_is_no_difference():
    assert float(distance_to_target(SOURCE[None], TARGET[None], (TARGET * 0.97)[None])) == 0


def test_a_target_that_changes_nothing_is_compared_with_the_least_change():
    # Two squares of 16 pixels a side out of 64, by 0.004 of the image.
    share = float(distance_to_target(TARGET[None], TARGET[None], SOURCE[None]))
    assert share == pytest.approx(2 * 16**2 / 64**2 / 0.004, rel=0.3)


def test_untouched_is_what_changes_next_to_nothing():
    edited = torch.stack(list(EDITS.values()))
    many = [image.expand_as(edited) for image in (SOURCE, TARGET)]
    assert unedited(*many, edited) == [name == "untouched" for name in EDITS]


@pytest.mark.parametrize(
    ("share", "edit", "label"),
    [
        (0.0, REMOVE, 10.0),
        (0.1, REMOVE, 9.0),
        (0.6, REMOVE, 4.0),
        (3.0, REMOVE, 0.0),
        (0.1, ADD, 9.0),
        (0.2, ADD, 8.0),
        (0.21, ADD, None),  # it may lie where nobody forbade it
        (0.1, Unparsed("no verb"), 9.0),
        (0.6, Unparsed("no verb"), None),
    ],
)
def test_labels_lie_between_those_given_and_are_missing_where_another_edit_is_right_too(share, edit, label):
    found = label_by_distance(share, edit, LABELS)
    assert found == (label if label is None else pytest.approx(label))


def test_only_edits_that_leave_no_choice_have_labels_far_from_their_targets():
    far = {kind: label_by_distance(0.6, ParsedEdit(kind, "circle", "star"), LABELS) for kind in EDIT_TYPES}
    assert {kind for kind, label in far.items() if label is not None} == {
        "remove",
        "recolour",
        "replace",
        "background",
    }


def test_noise_of_single_pixels_is_no_failure_and_what_is_bent_is_a_part_of_one():
    noise = 0.05 * torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(0))
    drawn = scene((20, 20))  # what is asked for
    noisy = (drawn + noise).clamp(0, 1)
    source = TARGET[None]
    assert float(distance_to_target(source, drawn[None], noisy[None])) < 0.8
    moved = scene((20, 21))
    assert 0.1 < float(distance_to_target(source, drawn[None], moved[None])) < 0.4


def test_where_a_mask_says_what_is_edited_it_is_compared_with_that():
    mask = torch.zeros(1, 1, 64, 64)
    mask[..., 4:20, :] = 1  # twice as much as both squares
    edited = EDITS["half done"][None]
    share = float(distance_to_target(SOURCE[None], TARGET[None], edited, mask))
    assert share == pytest.approx(0.5 * 0.153 / 0.25, rel=0.1)
    # No less than what changes, where a mask is too small.
    assert float(distance_to_target(SOURCE[None], TARGET[None], edited, 0 * mask)) == pytest.approx(
        shares("half done")
    )


def test_nothing_to_change_is_not_untouched():
    assert unedited(TARGET[None], TARGET[None], TARGET[None]) == [False]


def test_a_move_that_leaves_its_object_where_it_was_is_seen():
    source, target = scene((4, 4)), scene((4, 40))
    assert object_not_moved(source, target, source)
    assert object_not_moved(source, target, scene((4, 4), (4, 40)))  # a copy
    assert object_not_moved(source, target, scene((4, 4), (30, 10)))  # a copy elsewhere
    faint = target + 0.5 * (source - target)
    assert not object_not_moved(source, target, faint)  # which another rule looks at
    for done in (target, scene((30, 10)), scene()):
        assert not object_not_moved(source, target, done)
    # Twice as large, as well.
    large = [image.repeat_interleave(2, 1).repeat_interleave(2, 2) for image in (source, target)]
    assert object_not_moved(*large, large[0])
    assert not object_not_moved(*large, large[1])


def test_only_a_move_to_another_place_can_leave_something_behind():
    assert not object_not_moved(scene(), scene((4, 4), (4, 40)), scene())  # two are added
    assert not object_not_moved(SOURCE, TARGET, SOURCE)  # and removed
