"""Rows to batches: as pixels while they are read, as an `EditBatch` on the device that works with them."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from rewardedit.batch.values import CHANNELS, EditBatch, EditSample, require_shapes
from rewardedit.images import fit, stack, to_float, view_pixels

# fields that a data set, or one of its rows, may lack
OPTIONAL = ("target", "mask", "source_caption", "target_caption")
Sample = TypeVar("Sample", bound=EditSample)


@dataclass(frozen=True)
class PixelSample(EditSample):
    """A row whose images are the pixels that `images.to_pixels` reads."""

    source: Tensor
    edited: Tensor | None = None
    target: Tensor | None = None
    mask: Tensor | None = None


@dataclass(frozen=True)
class PixelBatch:
    """b edits whose images are pixels: bytes, which move to a device in a quarter of the time, or
    floating-point in [0, 1] where an image has more than 8 bits. `to` makes the `EditBatch` of them.

    Raises:
        ValueError: for no edits or no pixels, or if images differ in size.
    """

    images: dict[str, Tensor]  # source, edited and, if the rows have them, target and mask: (b, c, h, w)
    instruction: list[str]
    source_caption: list[str] | None = None
    target_caption: list[str] | None = None

    def __post_init__(self) -> None:
        require_shapes(self.images)

    def __len__(self) -> int:
        return len(self.instruction)

    def to(self, device: torch.device | str | None = None) -> EditBatch:
        """The batch on `device`, or where it is; all images of a kind are moved, then converted in one piece.

        Nothing is checked again: pixels were when they were read.
        """
        images = {name: to_float(pixels.to(device=device)) for name, pixels in self.images.items()}
        return EditBatch.unchecked(
            **images,
            instruction=self.instruction,
            source_caption=self.source_caption,
            target_caption=self.target_caption,
        )


def split_by_fields(samples: Sequence[Sample], fields: Collection[str] = OPTIONAL) -> list[list[Sample]]:
    """The rows in their order, cut wherever the next row has other optional fields:
    each part can be collated.

    A batch has a field for all its rows or for none, so that a row's score never depends on its neighbours.
    """

    def lacking(sample: EditSample) -> list[bool]:
        return [getattr(sample, name) is None for name in fields]

    return [list(group) for _, group in itertools.groupby(samples, lacking)]


def common_fields(samples: Sequence[EditSample]) -> list[str]:
    """The optional fields that all of these rows have."""
    names = []
    for name in OPTIONAL:
        if all(getattr(sample, name) is not None for sample in samples):
            names.append(name)
    return names


def collate(
    samples: Sequence[EditSample],
    size: int | None = None,
    policy: str = "crop",
    fields: Collection[str] = OPTIONAL,
) -> EditBatch:
    """Rows to an `EditBatch`; see `collate_pixels`."""
    return collate_pixels(samples, size, policy, fields).to()


def collate_pixels(
    samples: Sequence[EditSample],
    size: int | None = None,
    policy: str = "crop",
    fields: Collection[str] = OPTIONAL,
) -> PixelBatch:
    """Rows to a `PixelBatch`; images are brought to `size` × `size` by `images.fit` if `size` is given.

    A row without `edited` gets its target, which is how a data set's own pairs are scored.

    Args:
        fields: which of the optional fields to take; images of the others are not touched.

    Raises:
        ValueError: on no rows, rows with neither `edited` nor `target`, a field that only some rows have, or
            sizes that differ while `size` is None.
    """
    if not samples:
        raise ValueError("collate: expected at least one row; got none")
    unknown = sorted(set(fields) - set(OPTIONAL))
    if unknown:
        raise ValueError(f"collate: expected fields among {', '.join(OPTIONAL)}; got {', '.join(unknown)}")

    values = {"source": [sample.source for sample in samples], "edited": _edits(samples)}
    for name in fields:
        column = _optional_field(name, samples)
        if column is not None:
            values[name] = column

    images = {}
    texts = {}
    for name, column in values.items():
        if name in CHANNELS:
            images[name] = _stack(name, column, samples, size, policy)
        else:
            texts[name] = column
    return PixelBatch(images, [sample.instruction for sample in samples], **texts)


def _edits(samples: Sequence[EditSample]) -> list[Any]:
    """The edited image of each row, or else its target."""
    edited = []
    for sample in samples:
        image = sample.target if sample.edited is None else sample.edited
        if image is None:
            raise ValueError(f"row {sample.id}: expected an edited image or a target; it has neither")
        edited.append(image)
    return edited


def _optional_field(name: str, samples: Sequence[EditSample]) -> list[Any] | None:
    """A field of all rows; None if no row has it."""
    values = []
    lacking = []
    for sample in samples:
        values.append(getattr(sample, name))
        if values[-1] is None:
            lacking.append(sample.id)
    if len(lacking) == len(samples):
        return None
    if lacking:
        raise ValueError(f"{_rows(lacking)} {name}, but others do; split the rows with split_by_fields")
    return values


def _stack(
    name: str, images: list[Any], samples: Sequence[EditSample], size: int | None, policy: str
) -> Tensor:
    """The images of one field, of one size."""
    tensors = []
    for sample, image in zip(samples, images, strict=True):
        pixels = image if isinstance(sample, PixelSample) else view_pixels(image, CHANNELS[name])
        tensors.append(pixels if size is None else fit(pixels[None], size, policy)[0])
    sizes = {tuple(pixels.shape[1:]) for pixels in tensors}
    if len(sizes) > 1:
        raise ValueError(f"{name}: rows differ in size, {sorted(sizes)}; give a size to bring them to one")
    return stack(tensors)


def _rows(ids: list[str]) -> str:
    """ "row 3 has no" or "rows 3, 5, 7 and 4 more have no"."""
    shown = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
    return f"row {shown} has no" if len(ids) == 1 else f"rows {shown} have no"
