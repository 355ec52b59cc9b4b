"""Targets with a known damage."""

import pytest
import torch

from rewardedit.data.shapes import Shapes
from rewardedit.regions.change_map import change_mask
from rewardedit.synthesis.damage import DAMAGES, UNLIKE, VISIBLE, damaged
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


@pytest.mark.parametrize("name", ["ghost", "bent", "stained"])
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


def test_a_stain_is_unlike_the_edits_own_colour(rows):
    for seed in range(10):
        change = (made(rows, "stained", -1, seed) - rows.target).norm(dim=1).flatten(1)
        assert (change.amax(1) > 0.7 * UNLIKE * DAMAGES["stained"].strengths[-1]).all()


def test_a_damaged_target_is_seen_to_be_damaged(rows):
    found = {}
    for i, (source, target) in enumerate(zip(rows.source, rows.target, strict=True)):
        for seed in range(20):
            image, name, label = damaged(source, target, torch.Generator().manual_seed(100 * seed + i))
            assert float((image - target).abs().max()) > VISIBLE
            assert float(image.min()) >= 0
            assert float(image.max()) <= 1
            found.setdefault(name, set()).add(label)
    assert {name: sorted(labels) for name, labels in found.items()} == {
        name: sorted(kind.labels) for name, kind in DAMAGES.items()
    }


def test_the_same_generator_makes_the_same_damage(rows):
    first, second, third = (
        damaged(rows.source[0], rows.target[0], torch.Generator().manual_seed(seed)) for seed in (7, 7, 8)
    )
    assert torch.equal(first[0], second[0])
    assert first[1:] == second[1:]
    assert not torch.equal(first[0], third[0])


def test_nothing_can_be_seen_to_be_damaged_where_there_is_nothing():
    """Of one colour, before and after: only a spot of another colour and drifting colours are seen."""
    flat = torch.full((3, 16, 16), 0.5)
    names = {damaged(flat, flat, torch.Generator().manual_seed(seed))[1] for seed in range(40)}
    assert names <= {"stained_elsewhere", "drifted"}
