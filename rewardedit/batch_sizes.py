"""Batches that fit into memory: where memory runs out, the batch is halved and what is made is kept."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable
from weakref import WeakSet

import torch

from rewardedit.devices import is_out_of_memory

Made = TypeVar("Made")


@runtime_checkable
class Sliceable(Protocol):
    """Rows that can be counted and sliced: a list, a range, a tensor, `Edits`."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Any: ...


Rows = TypeVar("Rows", bound=Sliceable)


class Releasable(Protocol):
    """Holds memory only to be faster, as recorded calls do."""

    def release(self) -> bool:
        """Gives the memory back; True if there was any."""
        ...


HELD: WeakSet[Releasable] = WeakSet()  # is released where memory runs out


@dataclass
class BatchSize:
    """The largest number of rows made at once. `in_batches` halves it where memory runs out; shared by
    several calls, it stays halved.
    """

    rows: int
    unit: int = 1  # rows that stay together: fewer of them are taken only where these do not fit

    def halve(self, tried: int) -> None:
        """Sets the number to about half of those that did not fit, in whole units if these are fewer."""
        half = tried // 2
        self.rows = max(half // self.unit * self.unit, self.unit) if tried > self.unit else half


def in_batches(rows: Rows, size: BatchSize, make: Callable[[Rows], Made]) -> Iterator[Made]:
    """Yields what `make` makes of consecutive slices of `rows`, of at most `size.rows` rows each.

    If memory runs out, the slice is halved and tried again; finished slices are kept. Only then is garbage
    collected and the device's cache emptied. Memory in `HELD` is given back first, and the whole slice tried
    again. An error is raised if it is another, or with a single row.

    Args:
        make: is called again with fewer rows of a slice that did not fit, so it draws random numbers from
            generators of its rows that it makes itself.
    """
    start = 0
    released_at = -1  # the slice for which memory was given back
    while start < len(rows):
        chunk = rows[start : start + size.rows]
        try:
            made = make(chunk)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if released_at < start and release_held():
                released_at = start
            elif len(chunk) == 1:
                raise
            else:
                size.halve(len(chunk))
        else:
            yield made
            del made
            start += len(chunk)
            continue
        # The error is gone here, and with it the tensors in the frames of its traceback.
        free_memory()


def release_held() -> bool:
    """Gives back all memory in `HELD`; True if there was any."""
    released = [held.release() for held in list(HELD)]
    return any(released)


def free_memory() -> None:
    """Collects garbage and empties the device's cache: slow, and of use where memory ran out, or where a
    training has ended, whose modules refer to one another.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
