"""Files in the layouts of public benchmarks, with small photographs."""

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from PIL import Image, ImageEnhance
from skimage import data

PUBLIC = Path(__file__).parents[2] / "data" / "public"
PHOTOS = (data.chelsea, data.coffee, data.rocket, data.astronaut)
BROKEN = b"no image"


@cache
def whole_photograph(number: int) -> Image.Image:
    return Image.fromarray(PHOTOS[number]()).convert("RGB").resize((320, 240))


def photograph(number: int, brightness: float = 1.0, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A part of a photograph, another one for each number."""
    left = 16 * (number // len(PHOTOS))
    part = whole_photograph(number % len(PHOTOS)).crop((left, 0, left + 200, 150)).resize(size)
    return ImageEnhance.Brightness(part).enhance(brightness)


def stored(image: Image.Image | bytes) -> dict[str, Any]:
    """An image as 🤗 datasets stores it."""
    if isinstance(image, bytes):
        return {"bytes": image, "path": None}
    file = io.BytesIO()
    image.save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def write_table(file: Path, rows: list[dict[str, Any]]) -> Path:
    """A Parquet file as the hub has them; images are those of `stored`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(rows).to_parquet(file)
    return file


def save(folder: Path, name: str, image: Image.Image | bytes) -> str:
    """Writes an image file; returns its name."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(image, bytes):
        path.write_bytes(image)
    else:
        image.save(path)
    return name


def noisy(values: dict[str, float], spread: float, seed: int = 0) -> dict[str, float | None]:
    """Values with noise: the scores of a scorer that agrees more or less."""
    rng = np.random.default_rng(seed)
    return {name: float(value + rng.normal(0, spread)) for name, value in values.items()}


def cells_in(out: Path) -> dict[str, dict[str, Any]]:
    """Cells of the first table that a command wrote, by row."""
    (table, *_) = json.loads((out / "bench.json").read_text())["tables"]
    return {row["name"]: row["cells"] for row in table["rows"]}
