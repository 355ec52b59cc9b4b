"""Rows of attacked edits for the scoring engine; the good and failed edits of a table or of a world."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from rewardedit.batch import EditSample
from rewardedit.data import DataConfig, Rows
from rewardedit.data.datasets import open_rows
from rewardedit.data.reading import PreparedRows, Unreadable
from rewardedit.data.sources import row_details, row_id, source_ids
from rewardedit.data.worlds import world
from rewardedit.evaluation.robustness.attacks import attack_image
from rewardedit.images import to_float

UNCHANGED = "none"  # name of the edit without an attack
COLUMN = "good"  # of a table: is the edit good, or has it failed
YES = ("true", "1", "1.0", "yes", "good")
NO = ("false", "0", "0.0", "no", "failed", "bad")

Rate = Callable[
    [Sequence[int], Float[Tensor, "b 3 h w"]], np.ndarray
]  # ratings (b,) of images as edits of rows


@dataclass(frozen=True)
class JudgedEdits:
    """Edits of which it is known whether they are good or failed."""

    rows: Rows
    good: list[int]  # numbers of the good edits
    failed: list[int]
    sources: list[str]  # the source image of each row
    rate: Rate | None = None  # the exact rating, 0 to 10, if there is one


class AttackedRows(Sequence):
    """Rows after attacks, at one size."""

    def __init__(
        self, rows: Rows, items: Sequence[tuple[int, str]], size: int | None = None, policy: str = "crop"
    ) -> None:
        """
        Args:
            items: number of a row, and a name of `ATTACKS` or `UNCHANGED`.
            size: as in `rewardedit.scoring.score_rows`.
            policy: as in `rewardedit.scoring.score_rows`.
        """
        self.rows = rows
        self.items = items
        self.prepared = PreparedRows(rows, size, policy)

    def __len__(self) -> int:
        return len(self.items)

    def id_of(self, index: int) -> str:
        number, attack = self.items[index]
        return f"{number} {attack}"

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        number, attack = self.items[index]
        sample = read_row(self.prepared, number)
        edited = sample.edited
        if attack != UNCHANGED:
            edited = attack_image(attack, sample.id, edited, sample.source)
        return replace(sample, id=self.id_of(index), edited=edited)


class SteppedRows(AttackedRows):
    """Rows with the images that `ascend_pixels` has made, from the files that hold them."""

    def __init__(
        self,
        rows: Rows,
        items: Sequence[tuple[int, str]],
        files: Mapping[int, Path],
        size: int | None = None,
        policy: str = "crop",
    ) -> None:
        """
        Args:
            items: number of a row, and the bound of the steps.
            files: the file of each row's images, by the row's number.
        """
        super().__init__(rows, items, size, policy)
        self.files = files

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        number, bound = self.items[index]
        image = stepped_image(self.files[number], number, bound)
        return replace(read_row(self.prepared, number), id=self.id_of(index), edited=image)


def stepped_key(number: int, bound: str) -> str:
    """Name of an image in a file of stepped images."""
    return f"{number} {bound}"


def stepped_image(file: Path, number: int, bound: str) -> Float[Tensor, "3 h w"]:
    """An image from a file of stepped images.

    Raises:
        ValueError: if the row could not be read when they were made.
    """
    with safe_open(file, "pt") as images:
        if stepped_key(number, bound) not in images.keys():  # noqa: SIM118 (the file is no mapping)
            raise ValueError(f"row {number} could not be read")
        return to_float(images.get_tensor(stepped_key(number, bound)))


def read_row(prepared: PreparedRows, number: int) -> EditSample:
    """A row with its images in [0, 1], at one size.

    Raises:
        ValueError: if it cannot be read.
    """
    sample = prepared[number]
    if isinstance(sample, Unreadable):
        raise ValueError(sample.reason)
    images = {}
    for name in prepared.images:
        if getattr(sample, name) is not None:
            images[name] = to_float(getattr(sample, name))
    return EditSample(**(vars(sample) | images))


def judged_table(rows: Rows) -> JudgedEdits:
    """The edits of a table by its column `good`; rows where it is empty are left out.

    Raises:
        ValueError: if a cell is neither yes nor no, or there are fewer than two good or two failed edits.
    """
    good = []
    failed = []
    for number in range(len(rows)):
        cell = row_details(rows, number).get(COLUMN, "").strip().lower()
        if cell in YES:
            good.append(number)
        elif cell in NO:
            failed.append(number)
        elif cell not in ("", "nan", "none"):
            raise ValueError(
                f"row {row_id(rows, number)}: {COLUMN}: expected true or false; got {cell}; write true for a "
                "good edit and false for a failed one"
            )
    hint = f"give the table a column {COLUMN}, true for good edits and false for failed ones"
    return require_both(JudgedEdits(rows, good, failed, source_ids(rows)), hint)


def judged_world(data: DataConfig, good_from: float, failed_up_to: float) -> JudgedEdits:
    """The edits of a generated world by their exact ratings; those between the two limits are left out.

    Args:
        good_from: least rating of a good edit, 0 to 10.
        failed_up_to: highest rating of a failed edit, 0 to 10.

    Raises:
        ValueError: if settings of `data` choose rows by something other than their number, or there are fewer
            than two good or two failed edits.
    """
    settings = data.shapes
    if settings is None or data.edit_types or settings.edits_per_source != 1:
        raise ValueError(
            "data: expected rows of a world with one edit of each source and all types of edit; leave "
            "edit_types and edits_per_source out"
        )
    rows = open_rows(data)
    known = world(data.name)
    samples = known.samples(data.split, settings.seed, settings.backdrops, data.offset, len(rows))

    def rate(numbers: Sequence[int], images: Float[Tensor, "b 3 h w"]) -> np.ndarray:
        scores = []
        for number, image in zip(numbers, images, strict=True):
            scores.append(known.rate(samples[number : number + 1], image[None]).score)
        return torch.cat(scores).numpy()

    prepared = PreparedRows(rows, data.size, data.resize)
    edited = torch.stack([read_row(prepared, number).edited for number in range(len(rows))])
    ratings = known.rate(samples, edited).score.numpy()
    good = np.flatnonzero(ratings >= good_from).tolist()
    failed = np.flatnonzero(ratings <= failed_up_to).tolist()
    hint = "raise data.limit, or give data.shapes.quality_mix more of the failed kinds"
    return require_both(JudgedEdits(rows, good, failed, source_ids(rows), rate), hint)


def spread(numbers: Sequence[int], sources: Sequence[str], most: int | None) -> list[int]:
    """At most so many of the rows, in order, over as many source images as there can be.

    Args:
        numbers: of rows; the first of a source is chosen before the second of another.
        sources: the source image of each row of the data set.
    """
    times: Counter[str] = Counter()
    turns = []
    for number in numbers:
        turns.append((times[sources[number]], number))
        times[sources[number]] += 1
    return sorted(number for _, number in sorted(turns)[:most])


def require_both(edits: JudgedEdits, remedy: str) -> JudgedEdits:
    """The edits as they are.

    Raises:
        ValueError: if fewer than two source images have a good edit, or fewer than two a failed one.
    """
    for name in ("good", "failed"):
        sources = {edits.sources[number] for number in getattr(edits, name)}
        if len(sources) < 2:
            raise ValueError(
                f"edits: expected {name} edits of at least two source images; got {len(sources)}; {remedy}"
            )
    return edits
