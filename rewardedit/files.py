"""Files and folders that are there whole or not at all, and arrays that are joined on disk."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A hidden name beside `path`, to write a file or a folder under;
    at the end it takes the place of `path`.

    Where the block raises, or the process is killed in it, `path` stays as it was.
    """
    aside = path.with_name(f".{path.name}.partial")
    remove(aside)
    path.parent.mkdir(parents=True, exist_ok=True)
    yield aside
    if aside.is_dir():  # a folder is never renamed onto one that holds something
        remove(path)
    os.replace(aside, path)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all it holds; nothing where there is none."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_json(path: Path, values: Any) -> None:
    """Written aside and renamed, so that a reader never meets half a file."""
    with replaced(path) as aside:
        aside.write_text(json.dumps(values, indent=2) + "\n")


def append_json_line(path: Path, values: dict[str, Any]) -> None:
    """One more line of a JSONL file."""
    with path.open("a") as file:
        file.write(json.dumps(values) + "\n")


def read_log(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of a log; of a step logged twice (before and after a resume), the later."""
    path = folder / name
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    by_step = {line["step"]: line for line in lines}
    return [line for _, line in sorted(by_step.items())]


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
