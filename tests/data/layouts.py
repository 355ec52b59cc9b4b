"""Photographs, and samples of the shapes world, written in the layouts of data sets."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value
from datasets import Image as ImageFeature
from PIL import Image
from skimage import data

from rewardedit.data.labelled import LabelledEdit, encode_png, write_labelled
from rewardedit.shapes import Shapes

SIZE = (48, 32)


@cache
def photograph(name: str) -> Image.Image:
    """One of scikit-image's photographs, small."""
    return Image.fromarray(getattr(data, name)()).resize(SIZE)


def same(image: Any, name: str) -> bool:
    """True if an image equals the named photograph, pixel for pixel."""
    return np.array_equal(np.asarray(image), np.asarray(photograph(name)))


def mask() -> Image.Image:
    """White where the left half may change."""
    image = Image.new("L", SIZE)
    image.paste(255, (0, 0, SIZE[0] // 2, SIZE[1]))
    return image


NOT_AN_IMAGE = {"bytes": b"not an image", "path": None}

# Of every data set that has columns: its split, where the instruction and the images stand, and a row.
LAYOUTS: dict[str, dict[str, Any]] = {
    "instruct_pix2pix": {
        "split": "train",
        "instruction": "edit_prompt",
        "pictures": ("original_image", "edited_image"),
        "row": {
            "original_prompt": "a cat",
            "original_image": "chelsea",
            "edit_prompt": "make it coffee",
            "edited_prompt": "a cup",
            "edited_image": "coffee",
        },
        "expected": {"id": "0", "source_caption": "a cat", "target_caption": "a cup", "edit_type": None},
    },
    "emu_edit_generations": {
        "split": "validation",
        "instruction": "instruction",
        "pictures": ("image", "edited_image"),
        "row": {
            "instruction": "make it coffee",
            "image": "chelsea",
            "task": "global",
            "split": "test",
            "idx": 41,
            "hash": "f00",
            "input_caption": "a cat",
            "output_caption": "a cup",
            "edited_image": "coffee",
            "model": "emu_edit",
        },
        "expected": {"id": "41", "source_caption": "a cat", "target_caption": "a cup", "edit_type": "global"},
    },
    "ultraedit": {
        "split": "RegionBase",
        "instruction": "edit_prompt",
        "pictures": ("source_image", "edited_image", "mask_image"),
        "row": {
            "clip_sim_source": 0.3,
            "source_caption": "a cat",
            "target_caption": "a cup",
            "idx": 5,
            "edit_prompt": "make it coffee",
            "edit_object": "cat",
            "source_image": "chelsea",
            "edited_image": "coffee",
            "mask_image": "mask",
        },
        "expected": {"id": "5", "source_caption": "a cat", "target_caption": "a cup", "edit_type": None},
    },
    "aurora": {
        "split": "train",
        "instruction": "instruction",
        "pictures": ("input", "output"),
        "row": {
            "input": "chelsea",
            "output": "coffee",
            "instruction": "make it coffee",
            "source": "kubric",
        },
        "expected": {"id": "0", "source_caption": None, "target_caption": None, "edit_type": "kubric"},
    },
}


def cell(value: Any) -> Any:
    """An image where a cell names one, else what it is."""
    if value == "mask":
        return mask()
    return photograph(value) if value in ("chelsea", "coffee", "astronaut", "rocket") else value


def write_parquet(file: Path, rows: list[dict[str, Any]], pictures: tuple[str, ...]) -> None:
    """Rows whose pictures are names of photographs, None, or what is stored of an image file."""
    kinds = {str: Value("string"), int: Value("int64"), float: Value("float64"), type(None): Value("null")}

    def feature(column: str) -> Any:
        values = [row[column] for row in rows if row[column] is not None]
        if column in pictures and values:
            return ImageFeature()
        return kinds[type(values[0] if values else None)]

    features = Features({column: feature(column) for column in rows[0]})
    cells = [{k: cell(v) if k in pictures else v for k, v in row.items()} for row in rows]
    file.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_list(cells, features=features).to_parquet(str(file))


def write_layout(folder: Path, name: str, changes: tuple[dict[str, Any], ...] = ({},)) -> Path:
    """A data set's Parquet file with a row for each of the changes to its layout's row."""
    layout = LAYOUTS[name]
    rows = [{**layout["row"], **change} for change in changes]
    file = folder / "data" / f"{layout['split']}-00000-of-00001.parquet"
    write_parquet(file, rows, layout["pictures"])
    return file.parent


def write_seed(folder: Path, records: list[Any]) -> Path:
    """SEED-Data-Edit Part 2, as its folder is after the archive has been unpacked."""
    part = folder / "real_editing"
    (part / "annotations").mkdir(parents=True)
    (part / "images" / "photoshop").mkdir(parents=True)
    for name in ("chelsea", "coffee"):
        photograph(name).save(part / "images" / "photoshop" / f"{name}.png")
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (part / "annotations" / "split_0001.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def seed_record(**changes: Any) -> dict[str, Any]:
    names = {"source_image": "photoshop/chelsea.png", "target_image": "photoshop/coffee.png"}
    return {**names, "instruction": "make it coffee", **changes}


def write_dice(folder: Path, records: list[dict[str, Any]]) -> Path:
    """Differences as DICE's code keeps them, beside their images."""
    for name in ("chelsea", "coffee", "rocket"):
        photograph(name).save(folder / f"{name}.png")
    (folder / "differences.json").write_text(json.dumps(records))
    return folder


def difference(**changes: Any) -> dict[str, Any]:
    return {
        "original_path": "chelsea.png",
        "edited_path": "coffee.png",
        "complete_difference": "ADD: cup",
        "operation": "ADD",
        "bbox": [0.1, 0.1, 0.5, 0.6],
        "gt_prompt": "make it coffee",
        "confidence": 0.9,
        **changes,
    }


def write_labelled_shapes(folder: Path, axes: bool = False) -> str:
    """14 sources of the shapes world with label 0 and their targets with label 10, every other row with a
    label for "quality" where there are `axes`.
    """
    samples = Shapes("train").batch(0, 14)
    made = [
        LabelledEdit(
            id=f"{name}-{i}",
            source=encode_png(samples.source[i]),
            edited=encode_png(image[i]),
            instruction=samples.instruction[i],
            label=label,
            rule=name,
            source_id=samples.id[i],
            axes={"quality": 1.0} if axes and i % 2 else {},
        )
        for name, image, label in (("source", samples.source, 0.0), ("target", samples.target, 10.0))
        for i in range(14)
    ]
    write_labelled(made, folder / "train-00000.parquet")
    return str(folder)
