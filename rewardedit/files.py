"""Files and folders that are there whole or not at all, here or in an object store,
and arrays that are joined on disk.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from upath import UPath

AnyPath = Path | UPath  # of a file system, or of an object store through fsspec


def to_path(text: str) -> AnyPath:
    """A path as the command line names it: s3://bucket/folder and its like lie in an object store.

    Raises:
        ValueError: where the package for such a store is missing.
    """
    if "://" not in text:
        return Path(text)
    # Other processes write there too: what a folder held a moment ago is not remembered.
    path = UPath(text, use_listings_cache=False)
    try:
        _ = path.fs
    except ImportError as error:
        raise ValueError(f"{text}: {error}") from error
    return path


def reopened(path: AnyPath) -> AnyPath:
    """The path in a process that was forked since it was made: fsspec's connections do not survive that."""
    return path if isinstance(path, Path) else to_path(str(path))


@contextmanager
def replaced(path: AnyPath, writer: str = "") -> Iterator[Path]:
    """A hidden name beside `path`, to write a file or a folder under;
    at the end it takes the place of `path`.

    Where the block raises, or the process is killed in it, `path` stays as it was. An object store gets the
    file in one piece when it is whole.

    Args:
        writer: tells apart processes that may write the same path at one time.

    Raises:
        ValueError: where a folder would be written to an object store, which cannot take it in one piece.
    """
    if not isinstance(path, Path):
        with tempfile.TemporaryDirectory() as folder:
            aside = Path(folder) / path.name
            yield aside
            if aside.is_dir():
                raise ValueError(f"{path}: an object store takes files alone; name a folder of a file system")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.fs.put_file(str(aside), path.path)
        return
    aside = path.with_name(f".{path.name}{writer and '.' + writer}.partial")
    remove(aside)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield aside
    except BaseException:
        remove(aside)
        raise
    if aside.is_dir():  # a folder is never renamed onto one that holds something
        remove(path)
    os.replace(aside, path)


def remove(path: AnyPath) -> None:
    """Removes a file, or a folder with all it holds; nothing where there is none."""
    if not isinstance(path, Path):
        if path.exists():
            path.fs.rm(path.path, recursive=True)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def rename(path: AnyPath, name: str) -> None:
    """Gives a file another name in its folder.

    Raises:
        FileNotFoundError: where it is not there.
    """
    if isinstance(path, Path):
        os.replace(path, path.with_name(name))
    else:  # a store cannot rename: for a moment both are there
        path.with_name(name).write_text(path.read_text())
        path.unlink()


def create(path: AnyPath, text: str) -> None:
    """Writes a file that is not there yet.

    Of two processes that come at one time one is refused; an object store may let both.

    Raises:
        FileExistsError: where it is there.
    """
    if isinstance(path, Path):
        with path.open("x") as file:
            try:
                file.write(text)
                file.flush()
            except OSError:  # a full disk
                path.unlink()
                raise
        return
    if path.exists():
        raise FileExistsError(str(path))
    path.write_text(text)


def write_json(path: AnyPath, values: Any, writer: str = "") -> None:
    """Written aside and renamed, so that a reader never meets half a file; `writer` as in `replaced`."""
    with replaced(path, writer) as aside:
        aside.write_text(json.dumps(values, indent=2) + "\n")


def append_json_line(path: Path, values: dict[str, Any]) -> None:
    """One more line of a JSONL file; what a full disk or a kill left of a line before it stays by itself."""
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
        begin = b"\n" if size and file.read(1) != b"\n" else b""
        file.write(begin + json.dumps(values).encode() + b"\n")


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines that `append_json_line` wrote; half a line, which a kill may leave, is passed over."""
    found = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        with suppress(json.JSONDecodeError):
            found.append(json.loads(text))
    return found


def read_log(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of a log; of a step logged twice (before and after a resume), the later."""
    by_step = {line["step"]: line for line in read_json_lines(folder / name)}
    return [line for _, line in sorted(by_step.items())]


def stamp(path: AnyPath | str) -> str | None:
    """Twelve hexadecimal digits that change when a file, or a file of a folder, is written again; None where
    nothing is there, as of a model on the hub.
    """
    at = Path(path)
    files = sorted(file for file in at.rglob("*") if file.is_file()) if at.is_dir() else [at]
    if not files or not files[0].exists():
        return None
    seen = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:12]


def join_arrays(parts: Sequence[Path], path: Path) -> None:
    """One .npy file with the rows of several, one part in memory at a time; written aside and renamed."""
    arrays = [np.load(part, mmap_mode="r") for part in parts]
    rows = sum(len(array) for array in arrays)
    with replaced(path) as aside:
        joined = np.lib.format.open_memmap(aside, "w+", arrays[0].dtype, (rows, *arrays[0].shape[1:]))
        first = 0
        for array in arrays:
            joined[first : first + len(array)] = array
            first += len(array)
        joined.flush()


def join_lists(parts: Sequence[Path]) -> dict[str, list[Any]]:
    """The lists of several JSON files, each name's one after another."""
    found = [json.loads(part.read_text()) for part in parts]
    return {name: [value for lists in found for value in lists[name]] for name in found[0]}
