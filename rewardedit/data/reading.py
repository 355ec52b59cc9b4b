"""Rows with their images read, one by one or in batches, by this process or by others ahead of it."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from rewardedit.batch import (
    OPTIONAL,
    EditBatch,
    EditSample,
    PixelBatch,
    PixelSample,
    collate_pixels,
    split_by_fields,
)
from rewardedit.data.datasets import DataConfig
from rewardedit.data.sources import Rows
from rewardedit.images import POLICIES, fit, resize, same_shape, stack, view_pixels
from rewardedit.images.values import require_text
from rewardedit.processes import notice
from rewardedit.untrusted import CONTENT_ERRORS, is_system_error

PICTURES = ("source", "edited", "target", "mask")  # of a row


@dataclass(frozen=True)
class Unreadable:
    """A row that cannot be read, and why."""

    id: str
    reason: str


class PreparedRows(Dataset):
    """Rows with the images in use read as bytes and brought to one size;
    rows for which this fails are `Unreadable`.

    Without a size, each row's images are brought to its source's size: editors often return another one.
    """

    def __init__(
        self, rows: Rows, size: int | None = None, policy: str = "crop", fields: Collection[str] = OPTIONAL
    ) -> None:
        self.rows = rows
        self.size = size
        self.policy = policy
        self.images = ("source", "edited", *(name for name in ("target", "mask") if name in fields))
        self.unused = [name for name in OPTIONAL if name not in fields]
        # by `PICTURES`: sides of a source, and of another image of its row that has another shape
        self.unlike = torch.zeros(len(PICTURES), 4, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> PixelSample | Unreadable:
        try:
            return self.prepare(self.rows[index])
        except CONTENT_ERRORS as error:
            if is_system_error(error):
                raise
            return Unreadable(str(index), str(error) or type(error).__name__)

    def prepare(self, sample: EditSample) -> PixelSample:
        """The row with its images as pixels of one size.

        Raises:
            ValueError: if it has neither an edited image nor a target, or a text is not text.
        """
        edited = sample.edited if sample.edited is not None else sample.target
        if edited is None:
            raise ValueError(f"row {sample.id}: expected an edited image or a target; it has neither")

        sample = dataclasses.replace(sample, edited=edited, **dict.fromkeys(self.unused))
        for name in ("instruction", "source_caption", "target_caption"):
            if getattr(sample, name) is not None:
                require_text(name, getattr(sample, name))

        pixels = {}
        for name in self.images:
            image = getattr(sample, name)
            if image is not None:
                pixels[name] = view_pixels(image, channels=1 if name == "mask" else 3)[None]

        self.note_shapes(pixels, target_is_edit=sample.target is edited)
        h, w = pixels["source"].shape[-2:]
        prepared: dict[str, Any] = {}
        for name, image in pixels.items():
            fitted = resize(image, (h, w)) if self.size is None else fit(image, self.size, self.policy)
            prepared[name] = fitted[0]
        return PixelSample(**(vars(sample) | prepared))

    def note_shapes(self, pixels: dict[str, Tensor], target_is_edit: bool) -> None:
        """Notes which images of a row have another shape than its source, and reports them."""
        h, w = pixels["source"].shape[-2:]
        for number, name in enumerate(PICTURES):
            if name not in pixels or (name == "target" and target_is_edit):
                continue
            h2, w2 = pixels[name].shape[-2:]
            if not same_shape((h, w), (h2, w2)):
                self.unlike[number] = torch.tensor((w, h, w2, h2))
        self.tell_unlike()

    def tell_unlike(self) -> None:
        """Reports, once a run, edits, targets and masks of another shape than their sources; a process that
        reads ahead leaves this to the one that it reads for.
        """
        if get_worker_info() is not None or not self.unlike.any():
            return
        how = None
        if self.size is not None:
            others = " or ".join(name for name in POLICIES if name != self.policy)
            how = f"each is resized on its own (resize={self.policy}; {others} may suit better)"
        for name, (w, h, w2, h2) in zip(PICTURES, self.unlike.tolist(), strict=True):
            if w:
                notice_shapes(name, (h, w), (h2, w2), how)


def notice_shapes(name: str, source: Sequence[int], other: Sequence[int], how: str | None = None) -> None:
    """Reports, once a run for each name, that a source and another image of its row differ in shape.

    Args:
        name: of `PICTURES`.
        source: height and width of the source.
        other: height and width of the other image.
        how: the way in which they are brought to one size; None: the other is stretched.
    """
    h, w = source
    h2, w2 = other
    notice(
        f"source and {name} images differ in shape, such as {w} x {h} and {w2} x {h2} pixels: "
        f"{how or f'each {name} image is stretched to its source'}, so that they may no longer be aligned; "
        "resize them alike beforehand",
        key=f"{name} images of another shape",
    )


@dataclass(frozen=True)
class Packed:
    """Some of `PreparedRows`, packed for the transfer from the process that read them.

    A tensor that one process passes to another holds a file descriptor open, and a process is often limited
    to 1,024: so there is one tensor of each kind, with the images of all rows.
    """

    rows: list[dict[str, Any] | Unreadable]  # fields of the rows, without their images
    images: dict[str, tuple[list[int], Tensor]]  # by kind: rows that have one, and the pixels (n, c, h, w)

    @classmethod
    def pack(cls, rows: list[PixelSample | Unreadable]) -> "Packed":
        images = {}
        for name in PICTURES:
            having = [i for i, row in enumerate(rows) if getattr(row, name, None) is not None]
            if having:
                images[name] = (having, stack([getattr(rows[i], name) for i in having]))
        others = [row if isinstance(row, Unreadable) else vars(row).copy() for row in rows]
        for row in others:
            for name in images if isinstance(row, dict) else ():
                row.pop(name)
        return cls(others, images)

    def unpack(self) -> list[PixelSample | Unreadable]:
        images: list[dict[str, Tensor]] = [{} for _ in self.rows]
        for name, (having, stacked) in self.images.items():
            for i, image in zip(having, stacked, strict=True):
                images[i][name] = image
        samples = []
        for row, row_images in zip(self.rows, images, strict=True):
            samples.append(row if isinstance(row, Unreadable) else PixelSample(**row, **row_images))
        return samples


@dataclass(frozen=True)
class RowBatch:
    """Some rows of a data set, in order: those that can be read as pixels, and why the others cannot."""

    numbers: list[int]  # indices of the rows of `pixels`, in the data set
    ids: list[str]
    pixels: PixelBatch | None  # None if no row can be read
    unreadable: dict[int, str]  # by the row's number: all come before the rows of the next batch

    @cached_property
    def batch(self) -> EditBatch | None:
        """The rows as floating-point in main memory; for another device, `pixels.to` takes a quarter of the
        transfer.
        """
        return None if self.pixels is None else self.pixels.to("cpu")


def read_batches(
    rows: Rows,
    size: int | None,
    policy: str,
    batch: int,
    fields: Collection[str] = OPTIONAL,
    workers: int = 0,
    first: int = 0,
) -> Iterator[RowBatch]:
    """All rows in order, in batches of at most `batch`.

    A batch ends early if the next row has others of the optional `fields`; with `fields=()` none does, and
    no target or mask is read unnecessarily.

    Args:
        size: images are brought to size × size; None: every row comes by itself, at its source's size.
        workers: processes that read ahead; 0: this one reads.
        first: the number of the first row, if `rows` are a part of a data set.
    """
    prepared = PreparedRows(rows, size, policy, fields)
    if workers:
        prepared.unlike.share_memory_()
    loader = DataLoader(
        prepared,
        batch_size=batch if size is not None else 1,
        num_workers=workers,
        collate_fn=Packed.pack,
        generator=torch.Generator(),  # or it draws from the global one, in whichever process reads
    )

    for packed in loader:
        prepared.tell_unlike()
        samples: dict[int, PixelSample] = {}
        unreadable: dict[int, str] = {}
        for number, row in enumerate(packed.unpack(), first):
            if isinstance(row, Unreadable):
                unreadable[number] = row.reason
            else:
                samples[number] = row
        first += len(samples) + len(unreadable)

        numbers = list(samples)
        for chunk in split_by_fields(list(samples.values()), fields):
            of_chunk = numbers[: len(chunk)]
            numbers = numbers[len(chunk) :]
            before = {}
            for number in list(unreadable):
                if not numbers or number < numbers[0]:
                    before[number] = unreadable.pop(number)
            yield RowBatch(
                of_chunk, [sample.id for sample in chunk], collate_pixels(chunk, fields=fields), before
            )
        if unreadable:
            yield RowBatch([], [], None, unreadable)


def read_shard(
    rows: Rows, data: DataConfig, batch: int, fields: Collection[str], first: int = 0
) -> Iterator[RowBatch]:
    """The rows of a part of a data set that begins with row `first`, brought to `data.size`;
    see `read_batches`.
    """
    return read_batches(rows, data.size, data.resize, batch, fields, data.workers(len(rows)), first)
