"""The separate places that an edit changes."""

import torch

from rewardedit.synthesis.places import edited_places, moved, surround


def rectangle(top: int, left: int, height: int, width: int, side: int = 64) -> torch.Tensor:
    """A mask (h, w) of one rectangle."""
    mask = torch.zeros(side, side, dtype=torch.bool)
    mask[top : top + height, left : left + width] = True
    return mask


SMALL, LARGE, SPECK = rectangle(4, 4, 12, 12), rectangle(30, 30, 16, 16), rectangle(4, 50, 4, 4)


def painted(*places: torch.Tensor) -> torch.Tensor:
    """Red places on gray."""
    image = torch.full((3, 64, 64), 0.5)
    for place in places:
        image[:, place] = torch.tensor([1.0, 0.0, 0.0])[:, None]
    return image


def test_places_come_by_size_and_without_specks():
    mask = (SMALL | LARGE | SPECK)[None].float()
    found = edited_places(mask)
    assert [place.tolist() for place in found] == [LARGE.tolist(), SMALL.tolist()]
    assert edited_places(0 * mask) == []


def test_the_surround_of_a_place_is_the_colour_next_to_it():
    image = painted(LARGE)
    image[:, :20] = 0.2  # far from the place
    assert surround(image, LARGE).flatten().tolist() == [0.5] * 3
    assert surround(image, LARGE | ~LARGE).flatten().tolist() == image.flatten(1).median(1).values.tolist()


def test_what_moves_leaves_the_place_that_holds_nothing_afterwards():
    for old, new in ((SMALL, LARGE), (LARGE, SMALL)):
        found = moved(painted(old), painted(new), [LARGE, SMALL])
        assert found is not None
        assert torch.equal(found[0], old)
        assert torch.equal(found[1], new)


def test_two_places_that_are_both_drawn_or_both_cleared_are_no_move():
    both, none = painted(SMALL, LARGE), painted()
    assert moved(none, both, [LARGE, SMALL]) is None
    assert moved(both, none, [LARGE, SMALL]) is None
    assert moved(painted(SMALL), painted(LARGE), [LARGE]) is None
