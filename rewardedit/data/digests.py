"""Digests of the local files and folders that settings name, to detect results of other inputs."""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from rewardedit.config import to_dict
from rewardedit.data.table import table_in
from rewardedit.models import resolve_model
from rewardedit.untrusted import IMAGE_SUFFIXES

WRITTEN = "parser_cache"  # a setting whose file the run writes
PICTURES = frozenset(chain.from_iterable(IMAGE_SUFFIXES.values()))
BLOCK = 2**16  # bytes that are read at once
BLOCKS = 16  # blocks of a large file, spread over all of it


def file_digests(settings: Any, result: Any = None) -> dict[str, str]:
    """Digests of the contents of each local file or folder that settings name, by that name. A name is a
    text under `path`, or one with a slash or a dot in it.

    In a folder with a table only the table counts, in a run's folder its result, and in others everything
    except hidden files.

    Args:
        result: path of the output that is made of the inputs; it is not an input, wherever it lies.
    """
    digests = {}
    ends = [] if result is None else ["", ".parts", ".made_of.json"]
    results = [Path(f"{result}{end}").resolve() for end in ends]
    for text in sorted(set(_names(to_dict(settings)))):
        if _exists(text):
            digests[text] = _digest(Path(resolve_model(text)), results)
    return digests


def _names(settings: Any, key: str = "") -> Iterator[str]:
    if isinstance(settings, str):
        if key == "path" or ((("/" in settings) or "." in settings) and Path(settings).name):
            yield settings
    elif isinstance(settings, Mapping):
        for name, value in settings.items():
            if name != WRITTEN:
                yield from _names(value, name)
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _names(value, key)


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # longer than a name may be, or with a null in it
        return False


def _files(path: Path, results: list[Path]) -> Iterator[Path]:
    """Files of a folder, in order, without hidden ones and those of the result."""
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not hidden and not any(map(file.resolve().is_relative_to, results)):
            yield file


def _digest(path: Path, results: list[Path]) -> str:
    """Twelve hexadecimal digits of the SHA-256 of names, sizes and contents: for large files only blocks
    throughout them, for pictures in a folder no contents. Modification times do not count: a file may have
    been copied.
    """
    found = hashlib.sha256()
    path = table_in(path) or path
    for file in _files(path, results) if path.is_dir() else [path]:
        size = file.stat().st_size
        found.update(f"{file.relative_to(path)} {size}\0".encode(errors="surrogateescape"))
        if file == path or file.suffix.lower() not in PICTURES:
            with file.open("rb") as content:
                for first in range(0, size, max(BLOCK, size // BLOCKS)):
                    content.seek(first)
                    found.update(content.read(BLOCK))
    return found.hexdigest()[:12]
