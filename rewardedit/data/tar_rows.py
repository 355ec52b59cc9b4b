"""Rows of .tar files in WebDataset's layout: the members of a row have one name and different endings.

Nothing in a file is decoded here, and only requested members are read. A fault of a file or a member becomes
a row that reports it.
"""

import tarfile
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, starmap
from typing import Any, Protocol, runtime_checkable

from rewardedit.untrusted import CONTENT_ERRORS, MAX_IMAGE_BYTES, is_system_error, printable

KEY = "__key__"  # key next to a row's members: its name
FAULT = "fault"  # key of a row that cannot be read: the reason


@runtime_checkable
class Open(Protocol):
    """A way to open a file by its name, here or on the hub, for reading bytes at any place."""

    def __call__(self, name: str, /) -> Any: ...


class _Bounded:
    """A file whose reads are bounded: the header of a member may claim any length."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_IMAGE_BYTES:
            raise tarfile.ReadError(f"a header claims {size} bytes")
        return self.file.read(size)


def read_members(name: str, file: Any, is_wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """The rows of an open file: `KEY`, and for each wanted member (offset, size) by its endings. Of several
    members of one name the first counts. If the file cannot be read further, a last row has `FAULT`.
    """
    row: dict[str, Any] = {}
    try:
        for member in _members(file):
            folder, _, base = member.name.rpartition("/")
            stem, _, endings = base.partition(".")
            if not (member.isreg() and not member.issparse() and stem and endings):
                continue
            key = f"{folder}/{stem}" if folder else stem
            if row and row[KEY] != key:
                yield row
                row = {}
            row.setdefault(KEY, key)
            if is_wanted(endings):
                row.setdefault(endings, (member.offset_data, member.size))
    except CONTENT_ERRORS as error:
        if is_system_error(error):
            raise
        if row:
            yield row
        row = {KEY: name.rsplit("/", 1)[-1], FAULT: f"{name}: the file cannot be read further ({error})"}

    if row:
        yield row


def _members(file: Any) -> Iterator[tarfile.TarInfo]:
    """The members of a .tar file.

    Raises:
        tarfile.ReadError: if it is damaged, which `tarfile` takes for its end.
    """
    with tarfile.TarFile(fileobj=_Bounded(file)) as tar:  # type: ignore[arg-type]
        member = tar.next()
        while member is not None:
            if tar.offset <= member.offset:  # a length below zero
                raise tarfile.ReadError(f"the header at byte {member.offset} leads back")
            yield member
            tar.members = []  # type: ignore[misc]  # which would grow with the file
            member = tar.next()
        file.seek(tar.offset)
        if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError(f"no header at byte {tar.offset}")


def load(file: Any, row: dict[str, Any]) -> dict[str, Any]:
    """A row with its members' bytes, or with `FAULT` if one of them is too large."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        if not isinstance(value, tuple):
            columns[name] = value
            continue
        offset, size = value
        if not 0 <= size <= MAX_IMAGE_BYTES:
            most = MAX_IMAGE_BYTES // 2**20
            reason = f"{printable(name)}: expected at most {most} MiB; got {size // 2**20} MiB"
            return {KEY: row[KEY], FAULT: reason}
        file.seek(offset)
        columns[name] = file.read(size)
    return columns


class TarRows(Sequence):
    """Rows of local files by number: their positions are read at once, their members with each row."""

    def __init__(self, files: Sequence[str], is_wanted: Callable[[str], bool]) -> None:
        self.files = files
        self.rows: list[tuple[str, dict[str, Any]]] = []
        for name in files:
            with open(name, "rb") as file:
                for row in read_members(name, file, is_wanted):
                    self.rows.append((name, row))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:  # type: ignore[override]
        return self.only(index, lambda name: True)

    def only(self, index: int, is_wanted: Callable[[str], bool]) -> dict[str, Any]:
        """A row with some of its members."""
        name, row = self.rows[index]
        with open(name, "rb") as file:
            wanted = {}
            for key, value in row.items():
                if not isinstance(value, tuple) or is_wanted(key):
                    wanted[key] = value
            return load(file, wanted)


class StreamedTarRows:
    """Rows in order, read as they are used."""

    def __init__(self, files: Sequence[str], is_wanted: Callable[[str], bool], opener: Open) -> None:
        self.files = files
        self.is_wanted = is_wanted
        self.opener = opener

    @property
    def num_shards(self) -> int:
        return len(self.files)

    def shard(self, num_shards: int, index: int) -> "StreamedTarRows":
        """The rows of one file."""
        assert num_shards == self.num_shards, "a shard is a file"
        return StreamedTarRows([self.files[index]], self.is_wanted, self.opener)

    def _located(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        for name in self.files:
            with self.opener(name) as file:
                for row in read_members(name, file, self.is_wanted):
                    place = file.tell()
                    yield file, row
                    file.seek(place)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.skip(0)

    def skip(self, n: int) -> Iterator[dict[str, Any]]:
        """The rows after the first n; the members of those n are not read."""
        return starmap(load, islice(self._located(), n, None))
