"""Data sets as sequences of `EditSample`: what a recipe's `data:` names."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch.utils.data import Subset

from rewardedit.batch import OPTIONAL, EditBatch, EditSample, collate, split_by_fields
from rewardedit.data.humanedit import HumanEdit
from rewardedit.data.magicbrush import MagicBrush
from rewardedit.data.shapes import MIXED, ShapesRows
from rewardedit.data.table import Table


@runtime_checkable
class Rows(Protocol):
    """Rows of a data set by number, such as a list of them, or a torch `Dataset` that has a length."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> EditSample: ...


ON_HUB = {"magicbrush": MagicBrush, "humanedit": HumanEdit}


@dataclass(frozen=True)
class Data:
    """Which rows, and how their pictures are brought to one size."""

    name: Literal["shapes", "magicbrush", "humanedit", "table"] = "shapes"  # which data set
    path: str = ""  # magicbrush, humanedit: hub id, parquet file or image folder; table: folder, CSV, JSONL or Parquet
    split: str = "train"  # train, val or test, where the data set has them
    rows: int | None = None  # how many, from `first` on; None for all (shapes: 10,000)
    first: int = 0  # the first row that is taken
    size: int = 64  # pixels a side
    policy: Literal["crop", "stretch", "pad"] = "crop"  # how images that are not square become so
    backdrops: tuple[str, ...] = ("plain",)  # shapes only
    shares: dict[str, float] = dataclasses.field(default_factory=lambda: dict(MIXED))  # shapes only: candidates' qualities
    draws: int = 1  # shapes only: edits of each source, one row after another
    seed: int = 0  # of the shapes world, or of which sources are held out
    hold_out: int = 0  # not shapes: so many source images are left out with all rows made of them (see `held_out_rows`)

    def __post_init__(self) -> None:
        if self.hold_out and self.name == "shapes":
            raise ValueError("hold_out: the shapes world has splits of its own; take split=val")
        if self.name != "shapes" and not self.path:
            raise ValueError(f"path: {self.name} rows need one: a hub id, a folder or a file")
        least = {"rows": 1, "first": 0, "size": 1, "draws": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"{name}: expected at least {bound}; got {value}")


def open_rows(data: Data) -> Rows:
    """The rows that a recipe names, without those of held-out sources; pictures are read when a row is.

    Raises:
        ValueError: where files, columns or the split are missing, `first` lies beyond the last row, or too few sources are
            there to hold some out.
    """
    rows = _open_all(data)
    return Subset(rows, hold_out(source_ids(rows), data.hold_out, data.seed)[0]) if data.hold_out else rows


def held_out_rows(data: Data) -> Rows:
    """The first row of each source image that `data.hold_out` keeps from `open_rows`.

    Raises:
        ValueError: as `open_rows`.
    """
    rows = _open_all(data)
    return Subset(rows, hold_out(source_ids(rows), data.hold_out, data.seed)[1])


def distinct_rows(data: Data, n: int) -> Rows:
    """The first row of each of at most n source images, drawn by `data.seed`.

    Raises:
        ValueError: as `open_rows`.
    """
    rows = _open_all(data)
    first = first_rows(source_ids(rows))
    order = torch.randperm(len(first), generator=torch.Generator().manual_seed(data.seed)).tolist()
    return Subset(rows, sorted(list(first.values())[i] for i in order[:n]))


def _open_all(data: Data) -> Any:
    if data.name == "shapes":
        shares, n = dict(data.shares), data.rows or 10_000
        return ShapesRows(n, data.split, data.seed, data.backdrops, shares=shares, first=data.first, draws=data.draws)
    rows: Rows = Table(data.path) if data.name == "table" else ON_HUB[data.name](data.path, data.split)
    if data.first >= len(rows):
        raise ValueError(f"data.first: expected a row below {len(rows)}, as many as {data.path} holds; got {data.first}")
    last = len(rows) if data.rows is None else min(len(rows), data.first + data.rows)
    if data.first == 0 and last == len(rows):
        return rows
    return Subset(rows, range(data.first, last))


def source_ids(rows: Rows) -> list[str]:
    """A name of each row's source image: the same for all rows that are made of it."""
    if isinstance(rows, Subset):
        ids = source_ids(rows.dataset)
        return [ids[i] for i in rows.indices]
    return rows.source_ids()


def first_rows(sources: Sequence[str]) -> dict[str, int]:
    """The first row of each source, in the rows' order."""
    first: dict[str, int] = {}
    for i, source in enumerate(sources):
        first.setdefault(source, i)
    return first


def hold_out(sources: Sequence[str], n: int, seed: int) -> tuple[list[int], list[int]]:
    """Indices of the rows that are left, and of the first row of each held-out source.

    So many sources are drawn by the seed, but no more than a tenth of all (and two at least).

    Raises:
        ValueError: where there are fewer than three sources.
    """
    first = first_rows(sources)
    if len(first) < 3:
        raise ValueError(f"data: {len(first)} source images are too few to hold some out of training; give watch.data")
    order = torch.randperm(len(first), generator=torch.Generator().manual_seed(seed)).tolist()
    names = list(first)
    gone = {names[i] for i in order[: min(n, max(2, len(first) // 10))]}
    return [i for i, source in enumerate(sources) if source not in gone], sorted(first[name] for name in gone)


def batches(rows: Rows, data: Data, size: int, fields: Collection[str] = OPTIONAL) -> Iterator[tuple[list[str], EditBatch]]:
    """All rows in order: their ids, and `EditBatch`es of at most `size`, pictures brought to `data.size`.

    A batch ends early where the next row has others of the optional `fields`; with `fields=()` all batches are full and
    no target or mask is brought to size in vain.
    """
    for first in range(0, len(rows), size):
        samples = [rows[i] for i in range(first, min(first + size, len(rows)))]
        for part in split_by_fields(samples, fields):
            yield [sample.id for sample in part], collate(part, data.size, data.policy, fields)
