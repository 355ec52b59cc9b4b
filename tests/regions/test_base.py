"""Regions of an edit, from the boxes and masks found for its objects."""

from dataclasses import replace

import pytest
import torch

from rewardedit.batch import EditBatch
from rewardedit.instructions.parsed import ParsedEdit
from rewardedit.regions.base import (
    ChangeMaskLocator,
    GivenMaskLocator,
    Instances,
    ObjectLocator,
    edit_masks,
    name_afterwards,
)
from rewardedit.regions.boxes import filled
from rewardedit.regions.load import load_locator

SIZE = (20, 30)
PLACES = {"cup": [[1.0, 1, 5, 5]], "cat": [[10.0, 4, 16, 9], [20, 4, 26, 9]], "lamp": [[7.0, 10, 9, 18]]}


class Known:
    """Finds what stands in PLACES, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, str]] = []

    def find(self, images, names):
        found = []
        for image, name in zip(images, names, strict=True):
            self.asked.append((float(image[0, 0, 0]), name))
            boxes = torch.tensor(PLACES.get(name, [])).view(-1, 4)
            found.append(Instances(boxes, filled(boxes, SIZE), torch.ones(len(boxes))))
        return found


def locate(*parsed: ParsedEdit, mask: torch.Tensor | None = None):
    finder = Known()
    locator = ObjectLocator(finder)
    source = torch.zeros(len(parsed), 3, *SIZE)
    batch = EditBatch(source, ["do it"] * len(parsed), source + 0.5, mask=mask)
    return locator.of_edits(batch, parsed, locator.of_sources(source, parsed)), finder.asked


def test_each_object_is_sought_in_its_own_image():
    (found,), asked = locate(ParsedEdit("replace", "cup", "cat", "lamp", position="left"))
    assert sorted(asked) == [(0.0, "cup"), (0.5, "cat"), (0.5, "lamp")]
    assert found.source.boxes.tolist() == PLACES["cup"]
    assert found.edited.boxes.tolist() == PLACES["cat"]
    assert found.reference is not None
    assert found.reference.boxes.tolist() == PLACES["lamp"]
    assert found.mask.sum() == 4 * 4 + 2 * 6 * 5
    assert found.edited.box.tolist() == [10, 4, 26, 9]
    flags = (found.is_added, found.is_removed, found.is_global, found.reason)
    assert flags == (False, False, False, None)


def test_what_is_added_or_removed_fills_the_missing_side():
    (added, removed), asked = locate(ParsedEdit("add", None, "cup"), ParsedEdit("remove", "lamp", None))
    assert asked == [(0.0, "lamp"), (0.5, "cup")]
    assert added.is_added
    assert added.source.boxes.tolist() == added.edited.boxes.tolist() == PLACES["cup"]
    assert removed.is_removed
    assert removed.source.boxes.tolist() == removed.edited.boxes.tolist() == PLACES["lamp"]


def test_a_large_thing_that_was_made_smaller_is_sought_without_its_size():
    large = ParsedEdit("resize", "large cup", "large cup", size="smaller")
    assert name_afterwards(large) == "cup"
    assert name_afterwards(ParsedEdit("move", "large cup", "large cup")) == "large cup"
    assert name_afterwards(ParsedEdit("resize", "cup", "big", size="larger")) == "big"
    assert name_afterwards(ParsedEdit("remove", "cup", None)) is None
    assert locate(large)[1] == [(0.0, "large cup"), (0.5, "cup")]


@pytest.mark.parametrize(
    ("parsed", "missing", "reason"),
    [
        (ParsedEdit("replace", "dog", "cat"), "source", "no 'dog' was found in the source"),
        (ParsedEdit("add", None, "dog"), "target", "no 'dog' was found in the edited image"),
        (ParsedEdit("add", None, "cat", "dog", position="near"), "reference", "no 'dog' was found in"),
        (ParsedEdit("recolour", None, None, ambiguous=True), None, "does not name what it changes"),
        (ParsedEdit("recolour", "cup", "cup", ambiguous=True), None, "refers to something"),
        (ParsedEdit("remove", "cup, the lamp and the dog", None), None, "several objects (cup; the lamp"),
        (ParsedEdit("replace", "lamp", "cup and lamp"), None, "names several objects (cup; lamp)"),
    ],
)
def test_what_cannot_be_located_says_why(parsed, missing, reason):
    (found,), _ = locate(parsed)
    assert found.missing == missing
    assert found.reason is not None
    assert reason in found.reason


def test_what_is_missing_leaves_the_other_side():
    (found,), _ = locate(ParsedEdit("replace", "cup", "dog"))
    assert found.mask.sum() == 16


def test_the_whole_image_is_one_object_and_nothing_is_sought():
    (found,), asked = locate(ParsedEdit("background", "background", "beach", is_global=True))
    assert asked == []
    assert found.is_global
    assert found.mask.all()
    assert found.source.box.tolist() == [0, 0, 30, 20]


def test_nothing_has_no_box():
    with pytest.raises(ValueError, match="no object"):
        _ = Instances.none(torch.zeros(3, *SIZE)).box


def test_a_mask_of_the_row_is_taken_as_it_is():
    mask = torch.zeros(2, 1, *SIZE)
    mask[0, 0, 2:4, 3:9] = 1
    parsed = [ParsedEdit("add", None, "cup")] * 2
    source = torch.zeros(2, 3, *SIZE)
    batch = EditBatch(source, ["do it"] * 2, source, mask=mask)
    locator = GivenMaskLocator()
    found = locator.of_edits(batch, parsed, locator.of_sources(source, parsed))
    assert found[0].edited.boxes.tolist() == [[3, 2, 9, 4]]
    assert torch.equal(found[0].mask, mask[0, 0] > 0)
    assert not found[0].is_named
    assert found[1].reason == "the mask is empty"
    with pytest.raises(ValueError, match="it has none"):
        locator.of_edits(EditBatch(source, ["do it"] * 2, source), parsed, [None, None])


def test_what_changed_is_found_without_names():
    source = torch.full((2, 3, 64, 64), 0.5)
    edited = source.clone()
    edited[0, :, 10:30, 10:30] = 0.9
    edited[0, :, 40:60, 40:60] = 0.1
    parsed = [ParsedEdit("add", None, "cup")] * 2
    locator = ChangeMaskLocator()
    batch = EditBatch(source, ["do it"] * 2, edited)
    found = locator.of_edits(batch, parsed, locator.of_sources(source, parsed))
    assert len(found[0].edited) == 2
    assert found[0].mask[20, 20]
    assert found[0].mask[50, 50]
    assert not found[0].mask[5, 50]
    assert found[1].reason == "nothing has changed"


def test_masks_for_guidance_do_not_restrict_what_was_not_found():
    source = torch.zeros(2, 3, *SIZE)
    parsed = [ParsedEdit("replace", "cup", "lamp"), ParsedEdit("replace", "cup", "dog")]
    masks = edit_masks(ObjectLocator(Known()), parsed, source, source)
    assert masks.shape == (2, 1, *SIZE)
    assert masks[0].sum() == 16 + 16
    assert masks[1].all()


def test_masks_for_guidance_need_no_reference():
    source = torch.zeros(3, 3, *SIZE)
    edit = ParsedEdit("replace", "cup", "lamp", position="left")
    parsed = [replace(edit, reference=name) for name in (None, "unicorn")] + [replace(edit, ambiguous=True)]
    masks = edit_masks(ObjectLocator(Known()), parsed, source, source)
    assert torch.equal(masks[1], masks[0])
    assert not masks[0].all()
    assert masks[2].all()


def test_locators_have_names():
    assert isinstance(load_locator("change_map"), ChangeMaskLocator)
    assert isinstance(load_locator("mask"), GivenMaskLocator)
    with pytest.raises(ValueError, match="takes no options"):
        load_locator("mask", detector="x")
    with pytest.raises(ValueError, match="expected one of grounded_sam, sam3, change_map, mask"):
        load_locator("yolo")
    with pytest.raises(ValueError, match="boxes"):
        load_locator("grounded_sam", boxes=3)
