"""Rows read one after another as they come, for data sets that are too large to be fetched first."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.adapters import ADAPTERS
from rewardedit.data.datasets import DataConfig, Unreadable, open_rows
from rewardedit.data.hub import HubRows


def stream_rows(data: DataConfig) -> Iterator[EditSample | Unreadable]:
    """The rows of `open_rows` in their order, bad ones as `Unreadable`; of a data set on the hub no more is
    fetched than is read.

    Raises:
        ValueError: where files, columns or the split are missing, or sources are held out, which all rows
            would have to be read for.
    """
    if data.hold_out:
        raise ValueError("hold_out: streamed rows cannot tell which sources there are; use open_rows")
    adapter = ADAPTERS.get(data.name)
    if not (isinstance(adapter, type) and issubclass(adapter, HubRows)):
        rows = open_rows(data)  # images are in files, which are read when a row is
        return read_each(((number, number) for number in range(len(rows))), rows.__getitem__)
    table = adapter(data.path, data.split, streaming=True)
    if data.edit_types and table.type_column is None:
        raise ValueError(f"edit_types: {data.name} rows do not say their type; leave them out")
    found = islice(table.stream(data.first, data.edit_types), data.rows)
    return read_each(
        ((number, (row, number)) for number, row in found), lambda row: table.sample(table.opened(*row))
    )


def read_each(rows: Iterable[tuple[int, Any]], read: Callable[[Any], Any]) -> Iterator[Any]:
    """What `read` makes of each row; where it cannot, `Unreadable` with the row's number and the reason."""
    for number, row in rows:
        try:
            yield read(row)
        except (ValueError, OSError) as error:
            yield Unreadable(str(number), str(error))
