"""Evaluation of a detector on the shapes world, whose objects and names are known."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewardedit import devices
from rewardedit.files import write_json
from rewardedit.regions.boxes import pairwise_iou
from rewardedit.regions.detector import Detector
from rewardedit.shapes import Shapes
from rewardedit.shapes.objects import NAMES, SceneObjects, scene_objects

FOUND = 0.5  # least IoU of a box that counts as an object's
LEAST_SURE = 0.02  # the lowest threshold that is tried


def measure_detector(folder: Path, n: int) -> dict[str, Any]:
    """Measures the saved detector on val's targets, queried for objects, each by one of its names, and for as
    many absent ones; saves the threshold with the most right answers next to it.

    An answer is right if its boxes are exactly those of the objects with the name.
    """
    samples = Shapes("val", backdrops=("plain", "plain", "textured", "photo")).batch(0, n)
    objects = scene_objects(samples.after)
    asked = _questions(objects, torch.Generator().manual_seed(0))
    detector = Detector.from_pretrained(str(folder), threshold=LEAST_SURE).to(devices.default_device())
    grid = torch.arange(LEAST_SURE, 0.9, 0.02)

    right: list[list[bool]] = []
    for first in range(0, len(asked), 280):
        rows, names, truths = zip(*asked[first : first + 280], strict=True)
        images = samples.target[list(rows)].to(devices.default_device())
        for (boxes, confidence), truth in zip(detector(images, list(names)), truths, strict=True):
            matches = pairwise_iou(truth, boxes.cpu()) >= FOUND
            sure = confidence.cpu()
            right.append([is_right(matches[:, sure >= t]) for t in grid])

    rates = torch.tensor(right, dtype=torch.float64)
    best = int(rates.mean(0).argmax())
    threshold = round(float(grid[best]), 2)
    write_json(folder / Detector.SETTINGS, {"threshold": threshold})
    present = torch.tensor([len(truth) > 0 for _, _, truth in asked])
    return {
        "n": len(asked) // 2,
        "threshold": threshold,
        "found": float(rates[present, best].mean()),
        "not_seen_where_absent": float(rates[~present, best].mean()),
    }


def _questions(objects: SceneObjects, generator: torch.Generator) -> list[tuple[int, str, Tensor]]:
    """For each object its image, one of its names and the boxes of all objects with that name; then a name
    that no object of the image has, half of the time one with its colour or shape.
    """
    asked = []
    words_of = [set(name.split()) for name in NAMES]
    colour_and_shape = torch.tensor(list(map(len, words_of))) == 2
    for i in range(len(objects.row)):
        row = int(objects.row[i])
        of_image = objects.row == row
        name = _draw(objects.names[i], generator)
        asked.append((row, NAMES[name], objects.boxes[of_image & objects.names[:, name]]))
        absent = colour_and_shape & ~objects.names[of_image].any(0)
        words = words_of[int((objects.names[i] & colour_and_shape).nonzero()[0])]
        alike = absent & ~torch.tensor(list(map(words.isdisjoint, words_of)))
        wrong = _draw(alike if i % 2 and alike.any() else absent, generator)
        asked.append((row, NAMES[wrong], torch.zeros(0, 4)))
    return asked


def _draw(among: Tensor, generator: torch.Generator) -> int:
    return int(torch.multinomial(among.float(), 1, generator=generator))


def is_right(matches: Tensor) -> bool:
    """True if each object (rows) has a box (columns) of its own, and no box is left over."""
    objects, boxes = matches.shape
    return objects == boxes and bool(matches.any(1).all()) and bool(matches.any(0).all())
