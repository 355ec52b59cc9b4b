"""Rows that are read as they are used, one after another or file by file, for data sets that are too large to
be downloaded first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.adapters import ADAPTERS
from rewardedit.data.datasets import DataConfig, open_rows, row_shards
from rewardedit.data.hub import ROW_NUMBER, HubRows, read_on
from rewardedit.data.reading import Unreadable
from rewardedit.data.sources import Rows, row_id
from rewardedit.models import is_hub_name
from rewardedit.untrusted import CONTENT_ERRORS, is_system_error


def stream_rows(data: DataConfig) -> Iterator[EditSample | Unreadable]:
    """The rows of `open_rows` in their order, bad ones as `Unreadable`; from a data set on the hub no more is
    downloaded than is read.

    Raises:
        ValueError: if files, columns or the split are missing, or if sources are held out or a share of them
            is used, for which all rows would have to be read.
    """
    if data.holdout_sources or data.fraction < 1:
        raise ValueError(
            "holdout_sources, fraction: streamed rows cannot tell which sources there are; use open_rows"
        )
    table = _streamed_table(data)
    if table is None:
        rows = open_rows(data)  # images are in files, which are read when a row is
        named = ((row_id(rows, number), number) for number in range(len(rows)))
        return read_each(named, rows.__getitem__)

    numbered = islice(table.stream(data.offset, data.edit_types), data.limit)
    named = ((table.row_id({**row, ROW_NUMBER: number}), (row, number)) for number, row in numbered)
    return read_each(named, lambda row: table.sample(table.opened(*row)))


def read_each(rows: Iterable[tuple[str, Any]], read: Callable[[Any], Any]) -> Iterator[Any]:
    """Yields the result of `read` for each row; on failure, `Unreadable` with the row's id and the reason."""
    for name, row in rows:
        try:
            yield read(row)
        except CONTENT_ERRORS as error:
            if is_system_error(error):
                raise
            yield Unreadable(name, str(error) or type(error).__name__)


def stores_images(data: DataConfig) -> bool:
    """True for a data set whose table stores its images."""
    adapter = ADAPTERS.get(data.name)
    return isinstance(adapter, type) and issubclass(adapter, HubRows)


def _streamed_table(data: DataConfig) -> HubRows | None:
    """The table of a data set that stores its images in it; None for others.

    Raises:
        ValueError: if files, columns or the split are missing, or rows do not say their type.
    """
    if not stores_images(data):
        return None
    table: HubRows = ADAPTERS[data.name](data.path, data.split, streaming=True, root=data.root)
    if data.edit_types and table.type_column is None:
        raise ValueError(f"edit_types: {data.name} rows do not say their type; leave them out")
    return table


class FetchedRows(Sequence):
    """Rows of one file of a table, in memory as they are stored: images are decoded when a row is read. A row
    without an id of its own is called "3-17": number 17 of file 3, both counted from 0.
    """

    def __init__(self, table: HubRows, file: int, rows: list[tuple[int, dict[str, Any]]]) -> None:
        self.table = table
        self.file = file
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def _number(self, index: int) -> str:
        return f"{self.file}-{self.rows[index][0]}"

    def id_of(self, index: int) -> str:
        """A row's id, also if the row cannot be read."""
        return self.table.row_id({**self.rows[index][1], ROW_NUMBER: self._number(index)})

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        return self.table.sample(self.table.opened(self.rows[index][1], self._number(index)))


@dataclass(frozen=True)
class Shard:
    """The rows of one shard of a stage, in the order of the data set."""

    rows: Rows

    def fetch(self) -> "Shard":
        """Returns itself; a streamed shard is read by this call."""
        return self


@dataclass(frozen=True)
class StreamedFile:
    """One file of a streamed table."""

    table: HubRows
    number: int
    edit_types: tuple[str, ...] = ()

    def fetch(self) -> Shard:
        """Its rows, read into memory as they are stored."""
        return Shard(self.rows())

    def rows(self) -> FetchedRows:
        """Its rows of these types of edit; none: all."""
        rows = self.table.rows.shard(num_shards=self.table.rows.num_shards, index=self.number)
        column = self.table.type_column
        chunk = []
        for number, row in enumerate(read_on(rows)):
            if not self.edit_types or row[column] in self.edit_types:
                chunk.append((number, row))
        return FetchedRows(self.table, self.number, chunk)


@dataclass(frozen=True)
class StreamedRows:
    """A data set that is read file by file; its number of rows is known only once all were read."""

    files: list[StreamedFile]


def stream_files(data: DataConfig) -> StreamedRows:
    """The rows that a recipe names with `stream: true`, file by file.

    Raises:
        ValueError: if files, columns or the split are missing, if only a part of the rows is requested, or
            if the data set's images are files of their own.
    """
    require_whole_files(data)
    table = _streamed_table(data)
    assert table is not None
    return StreamedRows([StreamedFile(table, i, data.edit_types) for i in range(table.rows.num_shards)])


def require_whole_files(data: DataConfig) -> None:
    """Raises ValueError if data are not to be read file by file: a part of their rows, or images that are
    files of their own.
    """
    if data.offset or data.limit is not None or data.holdout_sources:
        raise ValueError("stream: files are read whole; leave limit, offset and holdout_sources out")
    if not stores_images(data):
        raise ValueError(f"stream: images of {data.name} rows are files of their own; leave stream out")


def read_or_stream(data: DataConfig) -> Rows | StreamedRows:
    """`stream_files` if that is requested, else `open_rows`."""
    return stream_files(data) if data.stream else open_rows(data)


def shards_of(rows: Rows | StreamedRows, batch: int) -> Sequence[Shard | StreamedFile]:
    """Inputs of a stage's shards: parts of the rows (see `row_shards`), or a file each."""
    if isinstance(rows, StreamedRows):
        return rows.files
    return list(map(Shard, row_shards(rows, batch)))


def count_rows(rows: Rows | StreamedRows) -> int | None:
    """Number of rows; None if it is known only once all were read."""
    return None if isinstance(rows, StreamedRows) else len(rows)


def planned_rows(data: DataConfig) -> int | None:
    """Number of the rows that `read_or_stream` would read, as in `count_rows`; no stream from the hub is
    opened.
    """
    if data.stream and is_hub_name(data.path):
        require_whole_files(data)
        return None
    return count_rows(read_or_stream(data))
