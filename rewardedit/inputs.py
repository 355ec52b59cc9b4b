"""What local files and folders that settings name hold, so that what was made of others is known."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rewardedit.assets import resolve_model
from rewardedit.config import to_dict

PICTURES = frozenset((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"))
BLOCK = 2**16  # bytes that are read at once
BLOCKS = 16  # of a large file, spread over all of it


def input_digests(settings: Any) -> dict[str, str]:
    """Of each local file or folder that settings name, by that name, a digest of what is in it. A name is a
    text with a slash or a dot in it; of a run's folder its result counts.
    """
    texts = sorted(set(_texts(to_dict(settings))))
    named = [text for text in texts if ("/" in text or "." in text) and Path(text).name]
    return {text: _digest(Path(resolve_model(text))) for text in named if _exists(text)}


def _texts(settings: Any) -> Iterator[str]:
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, Mapping):
        for value in settings.values():
            yield from _texts(value)
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _texts(value)


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # longer than a name may be, or with a null in it
        return False


def _digest(path: Path) -> str:
    """Twelve hexadecimal digits of the SHA-256 of names, sizes and contents: of large files of blocks
    throughout them, of a folder's pictures of none. When a file was written does not count: it may have been
    copied.
    """
    found = hashlib.sha256()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        size = file.stat().st_size
        found.update(f"{file.relative_to(path)} {size}\0".encode(errors="surrogateescape"))
        if file == path or file.suffix.lower() not in PICTURES:
            with file.open("rb") as content:
                for first in range(0, size, max(BLOCK, size // BLOCKS)):
                    content.seek(first)
                    found.update(content.read(BLOCK))
    return found.hexdigest()[:12]
