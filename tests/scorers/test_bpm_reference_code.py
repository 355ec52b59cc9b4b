"""The released code's own BPM, case by case."""

import pytest
import torch

from rewardedit.batch import EditBatch
from rewardedit.instructions.parsed import ParsedEdit
from rewardedit.regions.base import EditRegions, Instances
from rewardedit.regions.boxes import filled
from rewardedit.scorers.bpm.reference_code import modify, position_verdict, preserve, size_verdict
from rewardedit.shapes import Shapes
from tests.scorers.test_bpm import scorer_of

IMAGE = (100, 200)  # on the canvas five times as high, two and a half times as wide


def at(*boxes: tuple[float, float, float, float]) -> Instances:
    tensor = torch.tensor(boxes, dtype=torch.float32).view(-1, 4)
    return Instances(tensor, filled(tensor, IMAGE), torch.ones(len(tensor)))


HERE = (40.0, 40.0, 60.0, 60.0)
LARGE = (35.0, 40.0, 65.0, 60.0)  # 1.5 times the area
BEYOND = (100.0, 40.0, 120.0, 60.0)


@pytest.mark.parametrize(
    ("before", "after", "state", "verdict"),
    [
        (at(HERE), at(LARGE), "larger", 1),
        (at(HERE), at(HERE, LARGE), "larger", 0),  # first boxes alone
        (at(LARGE), at(HERE), "smaller", 1),
        (at(HERE), at(LARGE), "smaller", 0),
        (at(HERE), at(LARGE), "unchanged", 1),  # not asked for: not judged
        (at(), at(LARGE), "smaller", 1),  # a box is missing
    ],
)
def test_sizes_are_those_of_first_boxes(before, after, state, verdict):
    parsed = ParsedEdit("resize", "cup", "cup", size=state)
    assert size_verdict(EditRegions(before, after), parsed) == verdict


@pytest.mark.parametrize(
    ("edited", "position", "verdict"),
    [
        (at(BEYOND), "right", 1),
        (at(BEYOND), "left", 0),
        (at(BEYOND, HERE), "right", 0.5),
        (at(HERE), "near", 1),  # it knows no such relation
        (at((45.0, 45.0, 50.0, 50.0)), "inside", 1),
        (at((45.0, 45.0, 50.0, 50.0)), "on", 1),  # which it has no word for but inside
        (at((45.0, 10.0, 50.0, 20.0)), "on", 0),
        (at((30.0, 45.0, 50.0, 50.0)), "inside", 0),
        # Centres 20 pixels apart across are 50 on the canvas; 6 apart down are 30.
        (at((60.0, 40.0, 80.0, 60.0)), "unchanged", 0),
        (at((40.0, 46.0, 60.0, 66.0)), "unchanged", 1),
    ],
)
def test_only_what_is_added_beside_an_object_has_a_place(edited, position, verdict):
    regions = EditRegions(edited, edited, reference=at(HERE), is_added=True)
    added = ParsedEdit("add", None, "cup", "desk", position=position)
    assert position_verdict(regions, added, IMAGE) == verdict
    moved = ParsedEdit("move", "cup", "cup", "desk", position=position)
    assert position_verdict(regions, moved, IMAGE) == 1


def test_bytes_wrap_around():
    source = torch.full((3, 4, 4), 10 / 255)
    nothing = torch.zeros(4, 4, dtype=torch.bool)
    # 50² = 2500 is 196 in a byte, whose root is 14.
    assert preserve(source, source + 50 / 255, nothing) == pytest.approx(-14 / 255)
    assert preserve(source, source - 10 / 255, nothing) == pytest.approx(-10 / 255)
    half = nothing.clone()
    half[:2] = True
    edited = source.clone()
    edited[:, :2] = 0.9
    assert preserve(source, edited, half) == 0


def images(parts: list[torch.Tensor]) -> torch.Tensor:
    """The mean colour and the height, as features of images."""
    return torch.stack([torch.cat([p.mean((1, 2)), torch.tensor([p.shape[1] / 100])]) for p in parts])


def texts(names: list[str]) -> torch.Tensor:
    known = {"red": [1.0, 0, 0, 0], "blue": [0.0, 0, 1, 0], "none": [0.0, 1, 0, 0]}
    return torch.tensor([known[name] for name in names])


def test_one_box_is_cut_out_of_both_images():
    source = torch.zeros(3, *IMAGE)
    edited = source.clone()
    edited[2] = 1.0
    source[0] = 1.0
    regions = EditRegions(at(HERE), at(BEYOND))
    found = modify(source, edited, regions, ParsedEdit("recolour", "red", "blue"), images, texts)
    assert float(found) == pytest.approx(1)
    heights = []

    def measured(parts):
        heights.append([tuple(part.shape[1:]) for part in parts])
        return images(parts)

    modify(source, edited, regions, ParsedEdit("recolour", "red", "blue"), measured, texts)
    assert heights == [[(30, 30), (30, 30)]]


@pytest.mark.parametrize("box", [(199.9, 10, 200, 20), (0, 10, 0.1, 20), (10, 0, 20, 0.1)])
def test_a_sliver_at_the_border_is_cut_out_too(box):
    source = torch.rand(3, *IMAGE, generator=torch.Generator().manual_seed(0))
    regions = EditRegions(at(box), at(box))
    found = modify(source, 1 - source, regions, ParsedEdit("recolour", "red", "blue"), images, texts)
    assert found.isfinite()


def test_what_is_missing_has_a_value():
    edited = torch.zeros(3, *IMAGE)
    edited[2] = 1.0
    parsed = ParsedEdit("recolour", "red", "blue")
    no_source = EditRegions(at(), at(HERE), missing="source", reason="")
    similarity = float(modify(edited, edited, no_source, parsed, images, texts))
    assert similarity == pytest.approx(1 / 2**0.5)  # the image's height is a feature too
    no_target = EditRegions(at(HERE), at(), missing="target", reason="")
    assert float(modify(edited, edited, no_target, parsed, images, texts)) == 0


def test_no_row_is_invalid_but_where_nothing_can_be_parsed():
    samples = Shapes("val").batch(0, 14)
    scorer = scorer_of(samples, compat="code")
    instructions = ["xyzzy", *samples.instruction[1:]]
    scores = scorer(EditBatch(samples.source, instructions, samples.source))
    assert scores.valid.tolist() == [False] + [True] * 13
    assert ((scores.score[1:] >= 0) & (scores.score[1:] <= 2)).all()
    assert scores.parts["preserve"][1:].max() <= 0
    wanted = scorer(EditBatch(samples.source, samples.instruction, samples.target))
    assert not torch.equal(wanted.score[1:], scores.score[1:])
