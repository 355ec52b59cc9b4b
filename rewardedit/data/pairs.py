"""Data sets of preferences as sequences of `EditPair`."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol, runtime_checkable

from torch.utils.data import Subset

from rewardedit.batch import EditPair
from rewardedit.data.editreward import EditReward, EditRewardBench
from rewardedit.data.editscore import EditScoreBench
from rewardedit.data.reading import Unreadable
from rewardedit.data.stream import read_each


@runtime_checkable
class Pairs(Protocol):
    """Pairs of edits by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> EditPair: ...


PREFERENCES: dict[str, Any] = {
    "editreward": EditReward,
    "editreward_bench": EditRewardBench,
    "editscore_bench": EditScoreBench,
}


@dataclass(frozen=True)
class PairsConfig:
    """Pairs of edits of a data set of preferences."""

    # name of the data set; two are called EditReward-Bench: TIGER-Lab's (editreward_bench) and EditScore's
    name: Literal["editreward", "editreward_bench", "editscore_bench"]
    path: str  # hub id, Parquet or Arrow file, or a folder of them
    split: str = "train"  # split of the data set; these three have only train
    limit: int | None = None  # number of pairs, from `offset` on; None: all
    offset: int = 0  # index of the first pair, from 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", os.path.expanduser(self.path))
        if self.offset < 0 or (self.limit is not None and self.limit < 1):
            raise ValueError(
                f"limit, offset: expected at least 1 and at least 0; got {self.limit}, {self.offset}"
            )


def open_pairs(config: PairsConfig) -> Pairs:
    """The pairs of a data set; images are read when a pair is.

    Raises:
        ValueError: if files, columns or the split are missing, or `offset` lies beyond the last pair.
    """
    pairs = PREFERENCES[config.name](config.path, config.split)
    if config.offset >= len(pairs):
        raise ValueError(
            f"offset: expected a pair below {len(pairs)}, as many as {config.path} holds; got {config.offset}"
        )
    last = len(pairs) if config.limit is None else min(len(pairs), config.offset + config.limit)
    return Subset(pairs, range(config.offset, last))


def stream_pairs(config: PairsConfig) -> Iterator[EditPair | Unreadable]:
    """The pairs of `open_pairs` in their order, bad ones as `Unreadable`, fetched as they are read.

    Raises:
        ValueError: if files, columns or the split are missing.
    """
    table = PREFERENCES[config.name](config.path, config.split, streaming=True)
    numbered = islice(enumerate(table.rows.skip(config.offset), config.offset), config.limit)
    named = ((str(number), (row, number)) for number, row in numbered)
    return read_each(named, lambda row: table.pair(table.opened(*row)))
