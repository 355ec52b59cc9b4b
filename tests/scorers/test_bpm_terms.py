"""BPM's parts on known pictures and regions."""

import numpy as np
import pytest
import torch
from PIL import Image

from rewardedit.images import to_tensor
from rewardedit.instructions.parsed import ParsedEdit
from rewardedit.regions.base import EditRegions, Instances
from rewardedit.regions.boxes import filled
from rewardedit.scorers.bpm.checks import JudgeConfig
from rewardedit.scorers.bpm.terms import crop, position_verdict, preserve, size_verdict

IMAGE = (100, 200)
RULES = JudgeConfig()


def at(*boxes: tuple[float, float, float, float]) -> Instances:
    tensor = torch.tensor(boxes, dtype=torch.float32).view(-1, 4)
    return Instances(tensor, filled(tensor, IMAGE), torch.ones(len(tensor)))


def edit(size: str = "unchanged", position: str = "unchanged") -> ParsedEdit:
    return ParsedEdit("move", "cup", "cup", size=size, position=position)


HERE = (40.0, 40.0, 60.0, 60.0)
LEFT = (10.0, 40.0, 30.0, 60.0)
RIGHT = (100.0, 40.0, 120.0, 60.0)
LARGE = (38.0, 38.0, 62.0, 62.0)  # 24 × 24: 1.44 times HERE


@pytest.mark.parametrize(
    ("before", "after", "state", "verdict"),
    [
        (at(HERE), at(LARGE), "larger", 1),
        (at(HERE), at(LARGE), "unchanged", 0),
        (at(HERE, RIGHT), at(LARGE, RIGHT), "larger", 1),  # 976 of 800 in all: 1.22
        (at(HERE, RIGHT), at(HERE), "smaller", 1),
        (at(HERE), at(HERE), "unchanged", 1),
    ],
)
def test_the_area_of_all_objects_together_is_judged(before, after, state, verdict):
    assert size_verdict(EditRegions(before, after), edit(state), RULES) == verdict


def test_what_is_put_in_its_place_has_an_outline_of_its_own():
    regions = EditRegions(at(HERE), at(LARGE))
    assert size_verdict(regions, ParsedEdit("replace", "cup", "bowl"), RULES) == 1
    assert size_verdict(regions, ParsedEdit("recolour", "cup", "red cup"), RULES) == 0


def test_the_areas_are_those_of_masks():
    masks = torch.zeros(1, *IMAGE, dtype=torch.bool)
    masks[0, 40:60, 40:45] = True  # a quarter of its box
    thin = Instances(torch.tensor([HERE]), masks, torch.ones(1))
    assert size_verdict(EditRegions(at(HERE), thin), edit("smaller"), RULES) == 1


def test_where_there_is_nothing_to_compare_the_size_is_right():
    assert size_verdict(EditRegions(at(HERE), at(HERE), is_added=True), edit("larger"), RULES) == 1
    assert size_verdict(EditRegions(at(HERE), at(HERE), is_removed=True), edit("smaller"), RULES) == 1
    assert size_verdict(EditRegions(at(HERE), at(LARGE), is_global=True), edit(), RULES) == 1
    assert size_verdict(EditRegions(at(HERE), at(LARGE), is_named=False), edit(), RULES) == 1


@pytest.mark.parametrize(
    ("regions", "position", "verdict"),
    [
        (EditRegions(at(HERE), at(LEFT)), "left", 1),  # without a reference it is compared with where it was
        (EditRegions(at(HERE), at(RIGHT)), "left", 0),
        (EditRegions(at(HERE), at(HERE)), "unchanged", 1),
        (EditRegions(at(HERE), at(LEFT)), "unchanged", 0),
        (EditRegions(at(RIGHT), at(LEFT), reference=at(HERE)), "left", 1),
        (EditRegions(at(LEFT), at(RIGHT), reference=at(HERE)), "left", 0),
        (EditRegions(at(HERE), at(LEFT, RIGHT)), "left", 0.5),  # one of two
        (EditRegions(at(HERE), at(RIGHT), reference=at(LEFT, (130.0, 40.0, 150.0, 60.0))), "left", 1),
        (EditRegions(at(HERE), at(RIGHT), is_added=True), "unchanged", 1),  # nowhere in particular
        (EditRegions(at(HERE), at(HERE), is_removed=True), "left", 1),
        (EditRegions(at(HERE), at(LEFT), is_global=True), "unchanged", 1),
        (EditRegions(at(HERE), at(LEFT), is_named=False), "unchanged", 1),
    ],
)
def test_positions(regions, position, verdict):
    assert position_verdict(regions, edit(position=position), IMAGE, RULES) == verdict


def test_an_object_that_is_named_beside_an_unchanged_place_is_no_reference():
    regions = EditRegions(at(HERE), at(HERE), reference=at(RIGHT))
    assert position_verdict(regions, edit(position="unchanged"), IMAGE, RULES) == 1


def test_what_is_not_there_has_neither_the_right_size_nor_the_right_place():
    regions = EditRegions(at(HERE), at(), reason="no 'cup'", missing="target")
    assert size_verdict(regions, edit(), RULES) == 0
    assert position_verdict(regions, edit(), IMAGE, RULES) == 0
    beside = EditRegions(at(HERE), at(HERE), reference=at(), reason="no 'cup'", missing="reference")
    assert size_verdict(beside, edit(), RULES) == 1
    assert position_verdict(beside, edit(position="left"), IMAGE, RULES) == 0


def test_what_is_kept_is_measured_outside_both_masks():
    source = torch.zeros(1, 3, *IMAGE)
    edited = source.clone()
    edited[:, :, 40:60, 10:30] = 1.0  # within the regions
    regions = [EditRegions(at(HERE), at(LEFT))]
    assert float(preserve(source, edited, regions)) == 1
    edited[:, 0, :, 150:] = 0.3  # a third of the channels off by 0.3 on 5,000 of 19,200 pixels
    expected = 1 - (0.3**2 / 3) ** 0.5 * 5000 / (100 * 200 - 800)
    assert float(preserve(source, edited, regions)) == pytest.approx(expected)
    assert float(preserve(source, edited, [EditRegions(at(HERE), at(HERE))])) < expected


def test_whole_numbers_and_fractions_give_the_same():
    """The released code subtracts bytes, where 10 less 60 is 206: a distance of 0.196 it calls 0.055."""
    arrays = [np.full((*IMAGE, 3), level, dtype=np.uint8) for level in (10, 60)]
    images = [to_tensor(Image.fromarray(array), 3)[None] for array in arrays]
    found = float(preserve(images[0], images[1], [EditRegions(at(HERE), at(HERE))]))
    assert found == pytest.approx(1 - 50 / 255, abs=1e-6)


def test_where_all_may_change_all_is_kept():
    whole = Instances.whole(torch.zeros(3, *IMAGE))
    images = torch.rand(2, 1, 3, *IMAGE, generator=torch.Generator().manual_seed(0))
    assert float(preserve(images[0], images[1], [EditRegions(whole, whole)])) == 1


def test_a_crop_is_a_square_that_stays_in_the_image():
    image = torch.arange(200.0).expand(3, 100, 200) / 200
    assert torch.equal(crop(image, HERE, 1.0), image[:, 40:60, 40:60])
    assert torch.equal(crop(image, HERE, 2.0), image[:, 30:70, 30:70])
    assert torch.equal(crop(image, (0.0, 0.0, 10.0, 20.0), 1.5), image[:, :30, :30])
    assert torch.equal(crop(image, (180.0, 90.0, 200.0, 100.0), 1.0), image[:, 80:, 180:])
    # Of an object that is wider than the image is high, all is shown.
    wide = crop(image, (0.0, 40.0, 160.0, 60.0), 1.0)
    assert wide.shape == (3, 160, 160)
    assert torch.equal(wide[:, 30:130], image[:, :, :160])
    assert (wide[:, :30] == 0.5).all()
    assert crop(image, (0.0, 0.0, 200.0, 100.0), 1.5).shape == (3, 200, 200)
