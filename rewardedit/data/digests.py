"""Digests of the local files and folders that settings name, to detect results of other inputs."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, product
from pathlib import Path
from typing import Any

from rewardedit.config import to_dict
from rewardedit.data.table import read_records, table_in
from rewardedit.models import resolve_model
from rewardedit.untrusted import IMAGE_SUFFIXES, file_inside, read_json_file

WRITTEN = "parser_cache"  # a setting whose file the run writes
PICTURES = frozenset(chain.from_iterable(IMAGE_SUFFIXES.values()))
BLOCK = 2**16  # bytes that are read at once
BLOCKS = 16  # blocks of a large file, spread over all of it


def file_digests(settings: Any, result: Any = None, pictures: bool = False) -> dict[str, str]:
    """Digests of the contents of each local file or folder that settings name, by that name. A name is a
    text under `path`, or one with a slash or a dot in it.

    In a folder with a table only the table counts, in a run's folder its result, and in others everything
    except hidden files.

    Args:
        result: path of the output that is made of the inputs; it is not an input, wherever it lies.
        pictures: contents of pictures count too, also of those that rows of a table or a JSON file name,
            relative to its folder or to one that settings name under `root`. Otherwise only names and sizes
            of pictures in a folder do, as a training's data are too many to be read twice.
    """
    digests = {}
    ends = [] if result is None else ["", ".parts", ".made_of.json"]
    results = [Path(f"{result}{end}").resolve() for end in ends]
    named = set(_texts(to_dict(settings)))
    roots = sorted(Path(text) for key, text in named if key == "root")
    for text in sorted({text for key, text in named if _may_be_file(key, text)}):
        if _exists(text):
            digests[text] = _digest(Path(resolve_model(text)), results, roots if pictures else None)
    return digests


def _texts(values: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All texts in settings or in records, each with the name that it stands under."""
    if isinstance(values, str):
        yield key, values
    elif isinstance(values, Mapping):
        for name, value in values.items():
            if name != WRITTEN:
                yield from _texts(value, name)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _texts(value, key)


def _may_be_file(key: str, text: str) -> bool:
    return key == "path" or (("/" in text or "." in text) and bool(Path(text).name))


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # longer than a name may be, or with a null in it
        return False


def _files(path: Path, results: list[Path]) -> Iterator[Path]:
    """Files of a folder, in order, without hidden ones and those of the result."""
    for file in sorted(path.rglob("*")):
        hidden = any(name.startswith(".") for name in file.relative_to(path).parts)
        if file.is_file() and not hidden and not any(map(file.resolve().is_relative_to, results)):
            yield file


def _digest(path: Path, results: list[Path], roots: Sequence[Path] | None = None) -> str:
    """Twelve hexadecimal digits of the SHA-256 of names, sizes and contents, for large files only blocks
    throughout them. Modification times do not count: a file may have been copied.

    Args:
        roots: further folders of pictures that rows name; None: no contents of pictures count.
    """
    digest = hashlib.sha256()
    path = table_in(path) or path
    if path.is_dir():
        files = {str(file.relative_to(path)): file for file in _files(path, results)}
    else:
        files = {".": path}
        if roots is not None:
            files |= _pictures(path, [path.parent, *roots])

    for name, file in files.items():
        size = file.stat().st_size
        digest.update(f"{name} {size}\0".encode(errors="surrogateescape"))
        if roots is None and file != path and file.suffix.lower() in PICTURES:
            continue
        with file.open("rb") as content:
            for first in range(0, size, max(BLOCK, size // BLOCKS)):
                content.seek(first)
                digest.update(content.read(BLOCK))
    return digest.hexdigest()[:12]


def _pictures(file: Path, folders: Sequence[Path]) -> dict[str, Path]:
    """The pictures in these folders that a table's rows or a JSON file name, by these names; a file of
    another kind names none.
    """
    try:
        records = read_json_file(file) if file.suffix.lower() == ".json" else read_records(file)
    except ValueError:
        return {}

    pictures = {}
    for folder, name in product(folders, sorted({text for _, text in _texts(records)})):
        if Path(name).suffix.lower() in PICTURES:
            with suppress(ValueError, FileNotFoundError):  # a row that cannot be read has no score
                pictures[name] = file_inside(folder, name)
    return pictures
