"""Data sets as sequences of `EditSample`: what a recipe's `data:` names."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rewardedit.batch import OPTIONAL, EditBatch, EditSample, collate, split_by_fields
from rewardedit.data.humanedit import HumanEdit
from rewardedit.data.magicbrush import MagicBrush
from rewardedit.data.shapes import MIXED, ShapesRows
from rewardedit.data.table import Table

Rows = Sequence[EditSample]
ON_HUB = {"magicbrush": MagicBrush, "humanedit": HumanEdit}


@dataclass(frozen=True)
class Data:
    """Which rows, and how their pictures are brought to one size."""

    name: Literal["shapes", "magicbrush", "humanedit", "table"] = "shapes"
    path: str = ""  # magicbrush, humanedit: hub id, parquet file or image folder; table: folder, CSV or JSONL
    split: str = "train"
    rows: int | None = None  # how many, from `first` on; None for all (shapes: 10,000)
    first: int = 0
    size: int = 64  # pixels a side
    policy: Literal["crop", "stretch", "pad"] = "crop"
    backdrops: tuple[str, ...] = ("plain",)  # shapes only
    shares: dict[str, float] = dataclasses.field(default_factory=lambda: dict(MIXED))  # shapes only: candidates' qualities
    draws: int = 1  # shapes only: edits of each source, one row after another
    seed: int = 0  # shapes only

    def __post_init__(self) -> None:
        if self.name != "shapes" and not self.path:
            raise ValueError(f"path: {self.name} rows need one: a hub id, a folder or a file")
        least = {"rows": 1, "first": 0, "size": 1, "draws": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"{name}: expected at least {bound}; got {value}")


def open_rows(data: Data) -> Rows:
    """The rows that a recipe names; pictures are read when a row is.

    Raises:
        ValueError: where files, columns or the split are missing, or `first` lies beyond the last row.
    """
    if data.name == "shapes":
        shares, n = dict(data.shares), data.rows or 10_000
        return ShapesRows(n, data.split, data.seed, data.backdrops, shares=shares, first=data.first, draws=data.draws)
    rows: Rows = Table(data.path) if data.name == "table" else ON_HUB[data.name](data.path, data.split)
    if data.first >= len(rows):
        raise ValueError(f"data.first: expected a row below {len(rows)}, as many as {data.path} holds; got {data.first}")
    last = len(rows) if data.rows is None else min(len(rows), data.first + data.rows)
    if data.first == 0 and last == len(rows):
        return rows
    return Part(rows, data.first, last)


@dataclass(frozen=True)
class Part(Sequence):
    """Rows first … last − 1 of other rows."""

    rows: Rows
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.rows[self.first + index]


def batches(rows: Rows, data: Data, size: int, fields: Collection[str] = OPTIONAL) -> Iterator[tuple[list[str], EditBatch]]:
    """All rows in order: their ids, and `EditBatch`es of at most `size`, pictures brought to `data.size`.

    A batch ends early where the next row has others of the optional `fields`; with `fields=()` all batches are full and
    no target or mask is brought to size in vain.
    """
    for first in range(0, len(rows), size):
        samples = [rows[i] for i in range(first, min(first + size, len(rows)))]
        for part in split_by_fields(samples, fields):
            yield [sample.id for sample in part], collate(part, data.size, data.policy, fields)
