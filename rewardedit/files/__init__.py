"""Files and folders that are written whole or not at all, here or in an object store,
and arrays that are joined on disk.
"""

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from upath import UPath

from rewardedit.files.writers import is_left_of, partial_name
from rewardedit.untrusted import read_json_file, whole_text

JOINED_ROWS = 1024  # rows of joined arrays in memory at a time
AnyPath = Path | UPath  # of a file system, or of an object store through fsspec


def to_path(text: str) -> AnyPath:
    """A path as the command line names it: s3://bucket/folder and similar ones lie in an object store.

    Raises:
        ValueError: if the package for such a store is missing.
    """
    if "://" not in text:
        return Path(text)
    # Other processes write there too: listings of folders are not cached.
    path = UPath(text, use_listings_cache=False)
    try:
        _ = path.fs
    except ImportError as error:
        raise ValueError(f"{text}: {error}") from error
    return path


def reopened(path: AnyPath) -> AnyPath:
    """The path for a process that was forked after it was made: fsspec's connections do not survive that."""
    return path if isinstance(path, Path) else to_path(str(path))


@contextmanager
def replaced(path: AnyPath, in_stage: bool = False) -> Iterator[Path]:
    """Yields a hidden name next to `path`, unique to this process, to write a file or a folder under;
    at the end it replaces `path`.

    If the block raises, or the process is killed in it, `path` stays as it was. The content reaches the disk
    before it gets its name: it is whole even after a power cut. An object store gets the file in one piece
    once it is complete.

    Args:
        in_stage: `path` lies in the folder of a stage, which others may end and remove at any time: a folder
            that was removed is not created again, and a folder that is at `path` by then stays.

    Raises:
        ValueError: if a folder would be written to an object store, which cannot take it in one piece.
        FileNotFoundError: in a stage, if its folder was removed.
        FileExistsError: in a stage, if another process has put a folder at `path`.
    """
    if not isinstance(path, Path):
        with tempfile.TemporaryDirectory() as folder:
            aside = Path(folder) / path.name
            yield aside
            if aside.is_dir():
                raise ValueError(f"{path}: an object store holds only files; name a local folder")
            if in_stage and not path.parent.exists():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.fs.put_file(str(aside), path.path)
        return

    if not in_stage:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(path)  # in a stage that is done at its end
    aside = path.with_name(partial_name(path.name))
    try:
        yield aside
        if in_stage:
            _put(aside, path)
        else:
            put_in_place(aside, path)
    except BaseException:
        remove(aside)
        raise


def put_in_place(aside: Path, path: Path) -> None:
    """Renames a complete file or folder to `path`, replacing what was there, once it is on the disk."""
    if not aside.is_dir() or not path.is_dir():
        _put(aside, path)
        return
    before = path.with_name(partial_name(path.name))
    flush(aside)
    os.replace(path, before)  # a folder is never renamed onto one that holds something
    _put(aside, path)
    remove(before)


def _put(aside: Path, path: Path) -> None:
    """Renames a complete file or folder to `path`, replacing at most a file, once it is on the disk.

    Raises:
        FileExistsError: if a folder that is not empty is there.
    """
    flush(aside)
    try:
        os.replace(aside, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
    _sync(path.parent)


def flush(path: Path) -> None:
    """Waits until a file, or a folder with all it holds, has reached the disk."""
    for inner in path.rglob("*") if path.is_dir() else ():
        if not inner.is_symlink():
            _sync(inner)
    _sync(path)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot, e.g. for folders
            raise
    finally:
        os.close(number)


def _remove_left(path: Path) -> None:
    """Removes half-written versions of `path` left by dead processes of this machine."""
    for name in os.listdir(path.parent):
        if is_left_of(name, path.name):
            remove(path.with_name(name))


def sizes(path: Path) -> dict[str, int]:
    """The bytes of a file, or of each file in a folder by its name there.

    Raises:
        FileNotFoundError: if it is not there.
    """
    files = _files_in(path) if path.is_dir() else [path]
    return {file.relative_to(path).as_posix(): file.stat().st_size for file in files}


def _files_in(folder: Path) -> list[Path]:
    return sorted(filter(Path.is_file, folder.rglob("*")))


def remove(path: AnyPath) -> None:
    """Removes a file, or a folder with all it holds; for a link only the link; nothing if there is none.

    Raises:
        ValueError: if no program may remove the folder; see `require_removable`.
    """
    if not isinstance(path, Path):
        if path.exists():
            path.fs.rm(path.path, recursive=True)
    elif path.is_dir() and not path.is_symlink():
        require_removable(path)
        shutil.rmtree(path, onerror=_unless_gone)
    else:
        path.unlink(missing_ok=True)


def _unless_gone(function: Any, path: str, error: Any) -> None:
    """Ignores errors for files that another process has removed meanwhile."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


def require_removable(folder: Path) -> None:
    """Raises ValueError if a folder is one that no program may remove: the home folder, the working folder
    or one that holds either, a disk, or a git repository.
    """
    whole = folder.resolve()
    kept = (Path(os.path.expanduser("~")).resolve(), Path().resolve())
    if any(place.is_relative_to(whole) for place in kept) or os.path.ismount(whole):
        raise ValueError(f"{folder}: is the home or working folder, holds it, or is a disk; not removed")
    if (folder / ".git").exists():
        raise ValueError(f"{folder}: is a git repository; not removed")


def rename(path: AnyPath, name: str) -> None:
    """Gives a file another name in its folder.

    Raises:
        FileNotFoundError: if it is not there.
    """
    if isinstance(path, Path):
        os.replace(path, path.with_name(name))
        _sync(path.parent)
    else:  # a store cannot rename: for a moment both are there
        path.with_name(name).write_text(path.read_text())
        path.unlink()


def create(path: AnyPath, text: str) -> None:
    """Writes a file that is not there yet.

    If two processes try at the same time, one is refused; an object store may let both.

    Raises:
        FileExistsError: if it is there.
    """
    if isinstance(path, Path):
        with path.open("x") as file:
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            except OSError:  # a full disk
                path.unlink(missing_ok=True)
                raise
        return
    if path.exists():
        raise FileExistsError(str(path))
    path.write_text(text)


def to_json(values: Any, indent: int | None = None) -> str:
    """Values as JSON, with null for NaN and infinity, which JSON does not have, as for missing values."""
    return json.dumps(_without_nan(values), indent=indent, allow_nan=False)


def _without_nan(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _without_nan(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return list(map(_without_nan, values))
    return None if isinstance(values, float) and not math.isfinite(values) else values


def write_json(path: AnyPath, values: Any, in_stage: bool = False) -> None:
    """Writes a JSON file aside and renames it: no reader meets half of it; `in_stage` as in `replaced`."""
    with replaced(path, in_stage) as aside:
        aside.write_text(to_json(values, indent=2) + "\n")


def append_json_line(path: Path, values: dict[str, Any]) -> None:
    """Appends a line to a JSONL file, apart from a partial one that a full disk or a kill may have left."""
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
        begin = b"\n" if size and file.read(1) != b"\n" else b""
        file.write(begin + to_json(values).encode() + b"\n")


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines that `append_json_line` wrote; anything else, such as half a line that a kill may leave, is
    skipped.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    records = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                records.append(record)
    return records


def read_log(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of a log; for a step logged twice (before and after a resume), the later one."""
    by_step = {}
    for line in read_json_lines(folder / name):
        if _is_step(line.get("step")):
            by_step[line["step"]] = line
    return [by_step[step] for step in sorted(by_step)]


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def stamp(path: AnyPath | str) -> str | None:
    """Twelve hexadecimal digits that change when a file, or a file of a folder, is written again; None if
    nothing is there, as for a model on the hub.
    """
    at = Path(path)
    files = _files_in(at) if at.is_dir() else [at]
    if not files or not files[0].exists():
        return None
    seen = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:12]


def write_parquet(records: Sequence[dict[str, Any]], schema: Any, path: Path, **options: Any) -> None:
    """Writes records as a Parquet file; halves of a surrogate pair in texts become "�".

    Args:
        schema: pyarrow schema of the file.
        options: of `pyarrow.parquet.write_table`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    whole = list(map(_whole_record, records))
    pq.write_table(pa.Table.from_pylist(whole, schema), path, **options)


def _whole_record(record: dict[str, Any]) -> dict[str, Any]:
    return {name: _whole(value) for name, value in record.items()}


def _whole(value: Any) -> Any:
    if isinstance(value, list | tuple):  # pairs of a map stay tuples
        return type(value)(map(_whole, value))
    return whole_text(value) if isinstance(value, str) else value


def join_arrays(parts: Sequence[Path], path: Path) -> None:
    """Joins several .npy files by rows into one of a type that holds all, a few rows in memory at a time;
    written aside and renamed.

    It is written and not mapped: a process that fills a mapped file is killed if the disk is full.
    """
    arrays = [np.load(array_path, mmap_mode="r") for array_path in parts]
    rows = sum(map(len, arrays))
    shape = (rows, *arrays[0].shape[1:])
    dtype = np.result_type(*arrays)
    descr = np.lib.format.dtype_to_descr(dtype)
    with replaced(path) as aside, aside.open("wb") as file:
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for array in arrays:
            for first in range(0, len(array), JOINED_ROWS):
                file.write(np.ascontiguousarray(array[first : first + JOINED_ROWS], dtype).data)


def join_lists(parts: Sequence[Path]) -> dict[str, list[Any]]:
    """The lists of several JSON files, concatenated by name."""
    joined: dict[str, list[Any]] = {}
    for path in parts:
        for name, values in read_json_file(path).items():
            joined.setdefault(name, []).extend(values)
    return joined
