"""Pages, their fenced blocks, recorded results, and the files that the pages say their reader has."""

import ast
import builtins
import importlib
import json
import re
from pathlib import Path
from typing import Any

from rewardedit.images import to_pil
from rewardedit.shapes import Shapes
from rewardedit.shapes.table import write_table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BENCHMARKS = ROOT / "benchmarks"
WORLD = ROOT / "rewardedit" / "shapes"
RESULTS = (BENCHMARKS / "results", WORLD / "benchmarks" / "results")
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(BENCHMARKS.glob("*.md")),
    WORLD / "README.md",
    *DOCS,
)
PAIRS = 200
PHOTO = (67, 61)  # width and height of photo.jpg
SIZE = ", 512)"  # at which the pages' blocks edit it


def smaller(block: str) -> str:
    """A block that edits at 64 pixels."""
    return block.replace(SIZE, ", 64)")


def recorded(name: str) -> dict[str, Any]:
    """A recorded result."""
    (path,) = [folder / f"{name}.json" for folder in RESULTS if (folder / f"{name}.json").is_file()]
    return json.loads(path.read_text())


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def undefined_names(block: str) -> list[str]:
    """Names that a block imports and that are not there, or uses without defining them."""
    nodes = list(ast.walk(ast.parse(block)))
    missing = []
    defined = set(dir(builtins))
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            missing += [f"{node.module}.{a.name}" for a in node.names if not hasattr(module, a.name)]
        if isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        if isinstance(node, ast.arg):
            defined.add(node.arg)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
    used = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    return missing + [name for name in dict.fromkeys(used) if name not in defined]


def sections(*titles: str) -> str:
    """The README's text under these headings, one after another."""
    parts = re.split(r"^## (.*)\n", README, flags=re.M)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return "\n".join(found[title] for title in titles)


def write_images(folder: Path) -> None:
    """photo.jpg, and edited.png, in which its circle is white, as files and in folders: the images that the
    README's commands name. Their sides are multiples of nothing, as those of photographs.
    """
    samples = Shapes("test").batch(3, 1)
    to_pil(samples.source[0]).resize(PHOTO).save(folder / "photo.jpg", quality=95)
    to_pil(samples.target[0]).resize(PHOTO).save(folder / "edited.png")
    for name, image in (("photos", samples.source), ("A", samples.target), ("B", samples.source)):
        (folder / name).mkdir()
        to_pil(image[0]).save(folder / name / "cat.png")


def write_pairs(folder: Path, n: int = PAIRS) -> None:
    """pairs.csv with the columns that the README names, and its images."""
    write_table(folder, Shapes("train", seed=7), n)
