"""Images that lie in a folder."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from rewardedit.processes import notice
from rewardedit.untrusted import IMAGE_SUFFIXES, readable_suffixes

HEIC_REMEDY = "pip install pillow-heif reads them"


def list_images(folder: Path) -> list[Path]:
    """Returns the images of a folder, sorted by name; one line reports the other files, which are skipped.

    Hidden files are left out, such as ._cat.jpg, which macOS writes next to cat.jpg; folders too.
    """
    readable = readable_suffixes()
    images: list[Path] = []
    others: Counter[str] = Counter()
    hidden = 0
    for path in sorted(filter(Path.is_file, folder.iterdir())):
        ending = path.suffix.lower()
        if path.name.startswith("."):
            hidden += ending in readable
        elif ending in readable:
            images.append(path)
        else:
            others[ending or "without an ending"] += 1

    parts = [f"{n} {ending}{_remedy(ending)}" for ending, n in sorted(others.items())]
    if hidden:
        parts.append(f"{hidden} hidden")
    if parts:
        notice(f"{folder}: {len(images)} images; files passed over: {', '.join(parts)}")
    return images


def _remedy(ending: str) -> str:
    return f" ({HEIC_REMEDY})" if ending in IMAGE_SUFFIXES["HEIF"] else ""


def by_stem(files: Iterable[Path]) -> dict[str, Path]:
    """Files by their names without the ending.

    Raises:
        ValueError: if two have the same.
    """
    paths: dict[str, Path] = {}
    for file in files:
        if file.stem in paths:
            raise ValueError(
                f"{file.parent}: {paths[file.stem].name} and {file.name} differ only in their suffix; "
                "rename one"
            )
        paths[file.stem] = file
    return paths
