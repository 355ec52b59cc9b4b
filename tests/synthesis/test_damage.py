"""Targets with a known damage."""

import pytest
import torch

from rewardedit.regions.change_map import change_mask
from rewardedit.shapes import Shapes
from rewardedit.synthesis.damage import DAMAGES, UNLIKE, VISIBLE, damage_target
from rewardedit.synthesis.label_rules import FAILED, RIGHT

ELSEWHERE = ("bent_elsewhere", "stained_elsewhere", "faded_elsewhere")


@pytest.fixture(scope="module")
def rows():
    return Shapes("train").batch(500, 28)  # four of each kind of edit


def made(rows, name: str, level: int, seed: int = 0) -> torch.Tensor:
    kind = DAMAGES[name]
    found = []
    for i, (source, target) in enumerate(zip(rows.source, rows.target, strict=True)):
        mask = change_mask(source[None], target[None])[0]
        generator = torch.Generator().manual_seed(100 * seed + i)
        found.append(kind.apply(source, target, mask, kind.strengths[level], generator))
    return torch.stack(found)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_stronger_damage_changes_more_and_has_a_lower_label(name, rows):
    kind = DAMAGES[name]
    assert list(kind.labels) == sorted(set(kind.labels), reverse=True)
    assert len(kind.labels) == len(kind.strengths)
    assert kind.labels[0] < RIGHT
    assert kind.labels[-1] >= FAILED
    changes = [
        float((made(rows, name, level) - rows.target).abs().mean()) for level in range(len(kind.labels))
    ]
    assert changes == sorted(changes)
    assert changes[0] > 0


@pytest.mark.parametrize("name", ["ghost", "bent", "stained", "moved_in_part", "recoloured"])
def test_a_damage_of_the_edit_leaves_the_rest_alone(name, rows):
    mask = change_mask(rows.source, rows.target)
    change = (made(rows, name, -1) - rows.target).abs() * (mask == 0)
    assert float(change.max()) == 0


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_damage_elsewhere_leaves_the_edit_alone(name, rows):
    mask = change_mask(rows.source, rows.target)
    image = made(rows, name, -1)
    assert float(((image - rows.target).abs() * (mask > 0.5)).max()) == 0
    assert float((image - rows.target).abs().max()) > VISIBLE


def test_a_ghost_of_all_the_source_is_the_source_where_the_edit_is(rows):
    source, target = rows.source[0], rows.target[0]
    mask = torch.ones(1, *source.shape[-2:])
    whole = DAMAGES["ghost"].apply(source, target, mask, 1.0, torch.Generator())
    torch.testing.assert_close(whole, source)


def test_what_an_edit_did_not_draw_cannot_be_bent(rows):
    change = (made(rows, "bent", -1) - rows.target).abs().flatten(1).amax(1)
    drew = torch.tensor([kind != "remove" for kind in rows.edit_type])
    assert (change[drew] > VISIBLE).all()
    assert (change[~drew] == 0).all()


@pytest.mark.slow
def test_a_stain_is_unlike_the_edits_own_colour(rows):
    for seed in range(10):
        change = (made(rows, "stained", -1, seed) - rows.target).norm(dim=1).flatten(1)
        assert (change.amax(1) > 0.7 * UNLIKE * DAMAGES["stained"].strengths[-1]).all()


def test_a_damaged_target_is_seen_to_be_damaged(rows):
    found = {}
    for i, (source, target) in enumerate(zip(rows.source, rows.target, strict=True)):
        for seed in range(10):
            image, name, label = damage_target(source, target, torch.Generator().manual_seed(100 * seed + i))
            assert float((image - target).abs().max()) > VISIBLE
            assert float(image.min()) >= 0
            assert float(image.max()) <= 1
            found.setdefault(name, set()).add(label)
    assert {name: sorted(labels) for name, labels in found.items()} == {
        name: sorted(kind.labels) for name, kind in DAMAGES.items()
    }


def test_the_same_generator_makes_the_same_damage(rows):
    first, second, third = (
        damage_target(rows.source[0], rows.target[0], torch.Generator().manual_seed(seed), ("bent",))
        for seed in (7, 7, 8)
    )
    assert torch.equal(first[0], second[0])
    assert first[1:] == second[1:]
    assert not torch.equal(first[0], third[0])


def test_only_kinds_that_are_asked_for_are_made(rows):
    kinds = ("ghost", "faded_elsewhere")
    generators = [torch.Generator().manual_seed(seed) for seed in range(20)]
    found = {damage_target(rows.source[0], rows.target[0], generator, kinds)[1] for generator in generators}
    assert found == set(kinds)


def square(top: int, left: int, colour: tuple[float, float, float]) -> torch.Tensor:
    """A square of 16 pixels a side on gray, in an image of 64."""
    image = torch.full((3, 64, 64), 0.5)
    image[:, top : top + 16, left : left + 16] = torch.tensor(colour)[:, None, None]
    return image


def apply(name: str, source: torch.Tensor, target: torch.Tensor, seed: int) -> torch.Tensor:
    mask = change_mask(source[None], target[None])[0]
    return DAMAGES[name].apply(source, target, mask, 1.0, torch.Generator().manual_seed(seed))


def test_of_a_move_in_part_one_place_is_as_before_and_the_other_as_it_should_be():
    source, target = square(4, 4, (1, 0, 0)), square(40, 40, (1, 0, 0))
    both, none = torch.minimum(source, target), torch.full((3, 64, 64), 0.5)
    both[0] = torch.maximum(source[0], target[0])
    found = [apply("moved_in_part", source, target, seed) for seed in range(10)]
    kept = [torch.equal(image, both) for image in found]
    assert all(torch.equal(image, both if stays else none) for image, stays in zip(found, kept, strict=True))
    assert 0 < sum(kept) < 10
    other = square(4, 4, (0, 0, 1))
    assert torch.equal(apply("moved_in_part", source, other, 0), other)  # there is but one place


def test_what_is_moved_is_recoloured_in_its_new_place_alone():
    source, target = square(4, 4, (1, 0, 0)), square(40, 40, (1, 0, 0))
    for seed in range(5):
        change = (apply("recoloured", source, target, seed) - target).norm(dim=0)
        assert float(change[:32].max()) == 0
        assert float(change[42:54, 42:54].min()) > UNLIKE
    assert torch.equal(
        apply("recoloured", source, torch.full((3, 64, 64), 0.5), 0), torch.full((3, 64, 64), 0.5)
    )


def test_nothing_can_be_seen_to_be_damaged_where_there_is_nothing():
    """Images of one colour before and after: only a spot of another colour and a colour drift are visible."""
    flat = torch.full((3, 16, 16), 0.5)
    found = [damage_target(flat, flat, torch.Generator().manual_seed(seed)) for seed in range(40)]
    assert {name for _, name, _ in filter(None, found)} == {"stained_elsewhere", "drifted"}
