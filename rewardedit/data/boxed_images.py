"""Images with named boxes, in the formats of COCO and LVIS: one JSON file with images, annotations and
categories.

LVIS names for each image only the categories that were looked for in it: a category without a box there may
still be in the image.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardedit.data.annotations import find_image
from rewardedit.regions.differences import Box
from rewardedit.scorers.dice_text import plain_subject
from rewardedit.untrusted import printable, read_json_file

FOLDERS = ("", "images", "train2017", "val2017")  # in which an image may lie, in the given folder


@dataclass(frozen=True)
class BoxedObject:
    """An object in an image."""

    name: str
    box: Box
    # outline as x, y, x, y … in shares of the image; empty: the box
    polygons: tuple[tuple[float, ...], ...] = ()

    @property
    def area(self) -> float:
        """Share of the image that the box covers."""
        x0, y0, x1, y1 = self.box
        return (x1 - x0) * (y1 - y0)


@dataclass(frozen=True)
class BoxedImage:
    """An image file with its objects."""

    id: str
    file: str
    objects: tuple[BoxedObject, ...]

    @property
    def names(self) -> set[str]:
        """Names of its objects."""
        return {thing.name for thing in self.objects}


def read_boxed_images(annotations: Path, limit: int | None = None) -> list[BoxedImage]:
    """The images of an annotation file that have objects, in the file's order.

    Objects without an area, and crowds, are left out.

    Raises:
        ValueError: if the file is not in the format of COCO or LVIS, or a class with objects has no name.
    """
    whole = read_json_file(annotations)
    try:
        names = {one["id"]: str(one["name"]).replace("_", " ") for one in whole["categories"]}
        records = {one["id"]: one for one in whole["images"]}
        objects: dict[Any, list[BoxedObject]] = {}
        for one in whole["annotations"]:
            thing = _object(one, records[one["image_id"]], names)
            if thing is not None:
                objects.setdefault(one["image_id"], []).append(thing)
        kept = [one for number, one in records.items() if number in objects][:limit]
        return [BoxedImage(str(one["id"]), _file(one), tuple(objects[one["id"]])) for one in kept]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{annotations}: expected images, annotations and categories as in COCO or LVIS; got a record "
            f"that cannot be read ({type(error).__name__}: {printable(str(error))})"
        ) from error


def find_file(image: BoxedImage, folder: Path) -> Path:
    """The image's file in a folder.

    Raises:
        ValueError: if it is not there.
    """
    return find_image(folder, image.file, FOLDERS)


def _file(record: dict[str, Any]) -> str:
    if "file_name" in record:
        return str(record["file_name"])
    return "/".join(str(record["coco_url"]).split("/")[-2:])  # of LVIS, such as train2017/000000391895.jpg


def _object(record: dict[str, Any], image: dict[str, Any], names: dict[Any, str]) -> BoxedObject | None:
    """The object of an annotation; None for a crowd, or without an area."""
    width, height = float(image["width"]), float(image["height"])
    x, y, w, h = map(float, record["bbox"])
    x0, y0 = max(x / width, 0.0), max(y / height, 0.0)
    x1, y1 = min((x + w) / width, 1.0), min((y + h) / height, 1.0)
    if record.get("iscrowd") or x1 <= x0 or y1 <= y0:
        return None
    outline = record.get("segmentation")
    polygons = []
    for points in outline if isinstance(outline, list) else ():
        if len(points) >= 6:
            sides = [width, height] * (len(points) // 2)
            polygons.append(tuple(float(value) / side for value, side in zip(points, sides, strict=True)))
    name = names[record["category_id"]]
    if not plain_subject(name):
        raise ValueError(f"category {record['category_id']}: expected a name; got {name!r}")
    return BoxedObject(name, (x0, y0, x1, y1), tuple(polygons))
