"""What local files and folders that settings name hold, so that what was made of others is known."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rewardedit.config import to_dict
from rewardedit.data.table import table_in
from rewardedit.models import resolve_model
from rewardedit.untrusted import IMAGE_SUFFIXES

WRITTEN = "parser_cache"  # a setting whose file the run writes
PICTURES = frozenset(suffix for suffixes in IMAGE_SUFFIXES.values() for suffix in suffixes)
BLOCK = 2**16  # bytes that are read at once
BLOCKS = 16  # of a large file, spread over all of it


def input_digests(settings: Any, result: Any = None) -> dict[str, str]:
    """Of each local file or folder that settings name, by that name, a digest of what is in it. A name is
    what stands under `path`, or a text with a slash or a dot in it.

    Of a folder with a table the table counts, of a run's folder its result, and of others all but what is
    hidden.

    Args:
        result: where what is made of the inputs goes: it is no input, wherever it lies.
    """
    found = {}
    ends = [] if result is None else ["", ".parts", ".made_of.json"]
    own = [Path(f"{result}{end}").resolve() for end in ends]
    for text in sorted(set(_names(to_dict(settings)))):
        if _exists(text):
            found[text] = _digest(Path(resolve_model(text)), own)
    return found


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


def _files(path: Path, own: list[Path]) -> Iterator[Path]:
    """The files of a folder, in order, without hidden ones and those of the result."""
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        whole = file.resolve()
        if file.is_file() and not hidden and not any(whole == at or at in whole.parents for at in own):
            yield file


def _digest(path: Path, own: list[Path]) -> str:
    """Twelve hexadecimal digits of the SHA-256 of names, sizes and contents: of large files of blocks
    throughout them, of a folder's pictures of none. When a file was written does not count: it may have been
    copied.
    """
    found = hashlib.sha256()
    path = table_in(path) or path
    for file in _files(path, own) if path.is_dir() else [path]:
        size = file.stat().st_size
        found.update(f"{file.relative_to(path)} {size}\0".encode(errors="surrogateescape"))
        if file == path or file.suffix.lower() not in PICTURES:
            with file.open("rb") as content:
                for first in range(0, size, max(BLOCK, size // BLOCKS)):
                    content.seek(first)
                    found.update(content.read(BLOCK))
    return found.hexdigest()[:12]
