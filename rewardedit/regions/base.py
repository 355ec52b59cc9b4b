"""Objects in images, and the regions of edits (BPM Sec. 3.2).

A `Finder` finds objects in images by their names. A `Locator` returns the regions of edits: `ObjectLocator`
by a finder, `ChangeMaskLocator` by the difference of the images, `GivenMaskLocator` by the row's mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rewardedit.batch import EditBatch
from rewardedit.instructions.grammar.phrases import several_objects
from rewardedit.instructions.parsed import ParsedEdit
from rewardedit.regions.boxes import around, components, enclosing
from rewardedit.regions.change_map import change_mask

SIZE_WORDS = frozenset(("small", "little", "tiny", "medium", "large", "big", "huge", "tall", "short"))


@dataclass(frozen=True)
class Instances:
    """k objects in an image; k may be 0."""

    boxes: Float[Tensor, "k 4"]  # xyxy in pixels of the image
    masks: Bool[Tensor, "k h w"]
    confidence: Float[Tensor, " k"]  # in [0, 1], falling

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def mask(self) -> Bool[Tensor, "h w"]:
        """Union of all masks."""
        return self.masks.any(0)

    @property
    def box(self) -> Float[Tensor, "4"]:
        """The smallest box around all objects.

        Raises:
            ValueError: if there are none.
        """
        if not len(self):
            raise ValueError("no object was found, so there is no box")
        return enclosing(self.boxes)

    @classmethod
    def none(cls, image: Float[Tensor, "3 h w"]) -> "Instances":
        """No objects, for an image."""
        h, w = image.shape[-2:]
        masks = torch.zeros(0, h, w, dtype=torch.bool, device=image.device)
        return cls(image.new_zeros(0, 4), masks, image.new_zeros(0))

    @classmethod
    def whole(cls, image: Float[Tensor, "3 h w"]) -> "Instances":
        """The image as one object."""
        h, w = image.shape[-2:]
        masks = torch.ones(1, h, w, dtype=torch.bool, device=image.device)
        return cls(image.new_tensor([[0, 0, w, h]]), masks, image.new_ones(1))

    @classmethod
    def of_masks(cls, masks: Bool[Tensor, "k h w"]) -> "Instances":
        """Objects with these masks and the boxes around them; empty masks are left out."""
        masks = masks[masks.flatten(1).any(1)]
        boxes = list(map(around, masks))
        stacked = torch.stack(boxes) if boxes else torch.zeros(0, 4, device=masks.device)
        return cls(stacked, masks, torch.ones(len(masks), device=masks.device))


@dataclass(frozen=True)
class EditRegions:
    """Regions of one edit. An added object has no place in the source, and a removed one none in the edited
    image: the missing side is filled with the other (BPM Sec. 3.2).
    """

    source: Instances  # the source object (BPM's o1) in the source image
    edited: Instances  # the target object (o2) in the edited image
    reference: Instances | None = None  # the object that the position is relative to, in the edited image
    is_added: bool = False
    is_removed: bool = False
    is_global: bool = False  # the whole image is to change
    is_named: bool = True  # the objects were found by their names, not just as a mask
    reason: str | None = None  # why the edit cannot be located; objects that were not found are then empty
    missing: Literal["source", "target", "reference"] | None = None  # the object that was not found

    @property
    def mask(self) -> Bool[Tensor, "h w"]:
        """The region that may change: M_origin ∪ M_edit."""
        return self.source.mask | self.edited.mask


@runtime_checkable
class Finder(Protocol):
    """Finds objects by name."""

    def find(self, images: Float[Tensor, "b 3 h w"], names: Sequence[str]) -> list[Instances]:
        """Finds in each image, RGB in [0, 1], the objects of its name: b times any number of objects."""
        ...


@runtime_checkable
class Locator(Protocol):
    """Locates edits in two steps: first the objects in the source, then the regions of the edit.

    The objects in the source are found once, for any number of its edits.
    """

    def of_sources(
        self, source: Float[Tensor, "b 3 h w"], parsed: Sequence[ParsedEdit]
    ) -> list[Instances | None]:
        """Finds the source object of each row; None if the row has none to find."""
        ...

    def of_edits(
        self, batch: EditBatch, parsed: Sequence[ParsedEdit], sources: Sequence[Instances | None]
    ) -> list[EditRegions]:
        """Finds the regions of each row, given the result of `of_sources`."""
        ...


class ObjectLocator(nn.Module):
    """Locates an edit by its objects: the source object in the source image, the target object in the edited
    one, and the reference object there (BPM Alg. 1, lines 5 and 6).
    """

    def __init__(self, finder: Finder) -> None:
        super().__init__()
        self.finder = finder  # usually a module, which moves between devices with the locator

    def of_sources(
        self, source: Float[Tensor, "b 3 h w"], parsed: Sequence[ParsedEdit]
    ) -> list[Instances | None]:
        names = [None if edit.is_global else edit.source for edit in parsed]
        return self._find(source, names)

    def of_edits(
        self, batch: EditBatch, parsed: Sequence[ParsedEdit], sources: Sequence[Instances | None]
    ) -> list[EditRegions]:
        b = len(batch)
        targets = [None if edit.is_global else name_afterwards(edit) for edit in parsed]
        references = list(map(reference_of, parsed))
        # Targets and references are sought in the same images, all in one call.
        instances = self._find(torch.cat([batch.edited, batch.edited]), [*targets, *references])
        return list(map(named_regions, batch.source, parsed, sources, instances[:b], instances[b:]))

    @torch.no_grad()
    def _find(self, images: Tensor, names: Sequence[str | None]) -> list[Instances | None]:
        """Finds the objects of all rows that have a name, in one call."""
        named = {i: name for i, name in enumerate(names) if name is not None}
        of_row: list[Instances | None] = [None] * len(names)
        if named:
            sought = images[list(named)].detach()
            for i, instances in zip(named, self.finder.find(sought, list(named.values())), strict=True):
                of_row[i] = instances
        return of_row


def reference_of(parsed: ParsedEdit) -> str | None:
    """The object that the position is relative to; None if no position relative to another is requested."""
    return None if parsed.is_global or parsed.position == "unchanged" else parsed.reference


def name_afterwards(parsed: ParsedEdit) -> str | None:
    """The name to search for the target object by: "the large cup" that was made smaller is a cup."""
    if parsed.target is None or parsed.size == "unchanged":
        return parsed.target
    words = [word for word in parsed.target.split() if word not in SIZE_WORDS]
    return " ".join(words) or parsed.target


def named_regions(
    image: Float[Tensor, "3 h w"],
    parsed: ParsedEdit,
    source: Instances | None,
    edited: Instances | None,
    reference: Instances | None,
) -> EditRegions:
    """The regions of an edit, from the objects that were found; None stands for an object that the
    instruction does not name.
    """
    if parsed.is_global:
        return EditRegions(Instances.whole(image), Instances.whole(image), is_global=True)
    nothing = Instances.none(image)

    reason = None
    missing: Literal["source", "target", "reference"] | None = None
    if source is None and edited is None:
        reason = "the instruction does not name what it changes"
    elif objects := [*several_objects(parsed.source or ""), *several_objects(parsed.target or "")]:
        reason = f"the instruction names several objects ({'; '.join(objects)})"
    elif parsed.is_unclear:
        reason = "the instruction refers to something that it does not name"
    elif source is not None and not len(source):
        missing = "source"
        reason = f"no {parsed.source!r} was found in the source"
    elif edited is not None and not len(edited):
        missing = "target"
        reason = f"no {parsed.target!r} was found in the edited image"
    elif reference is not None and not len(reference):
        missing = "reference"
        reason = f"no {parsed.reference!r} was found in the edited image"

    return EditRegions(
        source=(edited or nothing) if source is None else source,
        edited=(source or nothing) if edited is None else edited,
        reference=reference,
        is_added=source is None and edited is not None,
        is_removed=edited is None and source is not None,
        reason=reason,
        missing=missing,
    )


class WithoutNames:
    """Base of locators that search for no names: a source alone does not tell where its edit will be."""

    def of_sources(
        self, source: Float[Tensor, "b 3 h w"], parsed: Sequence[ParsedEdit]
    ) -> list[Instances | None]:
        return [None] * len(source)


class ChangeMaskLocator(WithoutNames):
    """Locates an edit by the difference between the images (`change_mask`); no model is needed, and the
    instruction is not read.
    """

    def of_edits(
        self, batch: EditBatch, parsed: Sequence[ParsedEdit], sources: Sequence[Instances | None]
    ) -> list[EditRegions]:
        masks = change_mask(batch.source, batch.edited.detach())[:, 0] > 0.5
        return [same_on_both_sides(mask, "nothing has changed") for mask in masks]


class GivenMaskLocator(WithoutNames):
    """Locates an edit by the mask of its row."""

    def of_edits(
        self, batch: EditBatch, parsed: Sequence[ParsedEdit], sources: Sequence[Instances | None]
    ) -> list[EditRegions]:
        """Raises:
        ValueError: if the batch has no mask.
        """
        if batch.mask is None:
            raise ValueError("regions by a given mask: expected a batch with masks; it has none")
        return [same_on_both_sides(mask, "the mask is empty") for mask in batch.mask[:, 0] > 0.5]


def same_on_both_sides(mask: Bool[Tensor, "h w"], empty: str) -> EditRegions:
    """The regions of an edit if only a mask is known; `empty` is the reason if the mask is empty."""
    instances = Instances.of_masks(components(mask))
    return EditRegions(instances, instances, is_named=False, reason=None if len(instances) else empty)


def edit_masks(
    locator: Locator,
    parsed: Sequence[ParsedEdit],
    source: Float[Tensor, "b 3 h w"],
    edited: Float[Tensor, "b 3 h w"],
) -> Float[Tensor, "b 1 h w"]:
    """Masks of the region that each edit may change, M_origin ∪ M_edit, for guidance (BPM Sec. 3.5).

    An edit that cannot be located may change the whole image: nothing is restricted by a guess. The object
    that a position is relative to need not be found, as the edit does not change it.
    """
    batch = EditBatch(source, [""] * len(parsed), edited)
    masks = []
    for regions in locator.of_edits(batch, parsed, locator.of_sources(source, parsed)):
        is_known = not regions.reason or regions.missing == "reference"
        masks.append(regions.mask if is_known else torch.ones_like(regions.mask))
    return torch.stack(masks)[:, None].float()
