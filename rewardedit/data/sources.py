"""Source images of rows, and the choice of sources that are held out."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import Subset

from rewardedit.batch import EditSample

HELD_OUT_OF = 10  # at most one source image in so many is held out of a training


@runtime_checkable
class Rows(Protocol):
    """Rows of a data set by number, such as a list of them, or a torch `Dataset` that has a length."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> EditSample: ...


def row_id(rows: Any, index: int) -> str:
    """The id of a row that cannot be read, from its table, which may hold more rows than were selected; if
    the table has none, its number there.
    """
    while isinstance(rows, Subset):
        index = rows.indices[index]
        rows = rows.dataset
    return rows.id_of(index) if hasattr(rows, "id_of") else str(index)


def source_ids(rows: Rows) -> list[str]:
    """A name of each row's source image: the same for all rows that are made of it."""
    if isinstance(rows, Subset):
        ids = source_ids(rows.dataset)
        return [ids[i] for i in rows.indices]
    return rows.source_ids()


def other_source_ids(rows: Any) -> list[str | None]:
    """The second source image of each labelled row, if it shows one."""
    if isinstance(rows, Subset):
        ids = other_source_ids(rows.dataset)
        return [ids[i] for i in rows.indices]
    return rows.other_source_ids()


def first_rows(sources: Sequence[str]) -> dict[str, int]:
    """The first row of each source, in the rows' order."""
    first: dict[str, int] = {}
    for i, source in enumerate(sources):
        first.setdefault(source, i)
    return first


def hold_out(sources: Sequence[str], n: int, seed: int) -> tuple[list[int], list[int]]:
    """Indices of the remaining rows, and of the first row of each held-out source.

    n sources are drawn by the seed, but no more than one in `HELD_OUT_OF` (or than two, if that is more).

    Raises:
        ValueError: if there are fewer than three sources.
    """
    first = first_rows(sources)
    if len(first) < 3:
        raise ValueError(
            "data: expected at least 3 source images, of which some are held out of the training; got "
            f"{len(first)}; add rows, or name those that are held out by monitor.data and evaluate.data"
        )
    gone = _draw(list(first), min(n, max(2, len(first) // HELD_OUT_OF)), seed)
    return [i for i, source in enumerate(sources) if source not in gone], sorted(first[name] for name in gone)


def share_of_sources(sources: Sequence[str], share: float, seed: int) -> list[int]:
    """Indices of the rows that are made of a share of the sources, at least one, drawn by the seed: a
    smaller share is a subset of a larger one.
    """
    names = list(first_rows(sources))
    kept = _draw(names, max(1, round(share * len(names))), seed)
    return [i for i, source in enumerate(sources) if source in kept]


def _draw(names: Sequence[str], n: int, seed: int) -> set[str]:
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).tolist()
    return {names[i] for i in order[:n]}


def row_details(rows: Any, index: int) -> dict[str, str]:
    """A row's files and other columns, as results show them; {} for data sets that have none."""
    while isinstance(rows, Subset):
        index = rows.indices[index]
        rows = rows.dataset
    return rows.details(index) if hasattr(rows, "details") else {}


def as_details(columns: Mapping[str, Any]) -> dict[str, str]:
    """Columns as texts, without those that are not text, number or boolean, such as images."""
    kinds = (str, int, float, bool)
    return {name: storable(str(value)) for name, value in columns.items() if isinstance(value, kinds)}


def storable(text: str) -> str:
    """The text with a question mark for what UTF-8 cannot encode, such as a file name in another encoding."""
    return text.encode(errors="replace").decode()
