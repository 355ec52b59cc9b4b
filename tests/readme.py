"""The README's fenced blocks, and the files that it says its reader has."""

import re
from pathlib import Path

from rewardedit.images import to_pil
from rewardedit.shapes import Shapes
from rewardedit.shapes.table import write_table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BENCHMARKS = (ROOT / "benchmarks" / "README.md").read_text()
PAIRS = 200


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def sections(*titles: str) -> str:
    """The README's text under these headings, one after another."""
    parts = re.split(r"^## (.*)\n", README, flags=re.M)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return "\n".join(found[title] for title in titles)


def write_images(folder: Path) -> None:
    """photo.jpg, and edited.png, in which its circle is white, as files and in folders: the images that the
    README's commands name.
    """
    samples = Shapes("test").batch(3, 1)
    to_pil(samples.source[0]).save(folder / "photo.jpg", quality=95)
    to_pil(samples.target[0]).save(folder / "edited.png")
    for name, image in (("photos", samples.source), ("A", samples.target), ("B", samples.source)):
        (folder / name).mkdir()
        to_pil(image[0]).save(folder / name / "cat.png")


def write_pairs(folder: Path) -> None:
    """pairs.csv with the columns that the README names, and its images."""
    write_table(folder, Shapes("train", seed=7), PAIRS)
