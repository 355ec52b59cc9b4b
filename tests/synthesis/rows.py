"""Rows of a data set and their labelling, for tests of the rules."""

from collections.abc import Callable

import torch
from torch import Tensor

from rewardedit.batch import EditBatch, PixelBatch
from rewardedit.data import RowBatch
from rewardedit.synthesis.label_rules import Grade, Thresholds
from rewardedit.synthesis.labelling import Labelling
from rewardedit.synthesis.rules_config import RulesConfig

INSTRUCTIONS = [
    "remove the red circle",
    "paint the green star white",
    "erase the red circle",
    "remove the blue cross",
    "move the black square to the left",
    "remove the blue cross",
]
CAPTION = "a red circle, a blue cross and a black square on a pink background"


def batch(captions=None, targets=None):
    images = torch.zeros(len(INSTRUCTIONS), 3, 2, 2)
    return EditBatch(images, INSTRUCTIONS, images, source_caption=captions, target_caption=targets)


def part_of(rows: EditBatch) -> RowBatch:
    """The batch as it is read."""
    found = {name: getattr(rows, name) for name in ("source", "edited", "target", "mask")}
    images = {name: image for name, image in found.items() if image is not None}
    pixels = PixelBatch(images, rows.instruction, rows.source_caption, rows.target_caption)
    return RowBatch(list(range(len(rows))), [f"row-{i}" for i in range(len(rows))], pixels, {})


def labelling_of(
    rules: RulesConfig,
    grades: dict[str, Grade] | None = None,
    reconstruct: Callable[[Tensor], Tensor] = torch.clone,
    elsewhere: tuple[str, ...] = (),
    seed: int = 0,
) -> Labelling:
    """The rules with fixed thresholds; the autoencoder returns what it gets."""
    limits = Thresholds(0.2, (0.1, 0.1))
    return Labelling(rules, limits, grades or {}, reconstruct, frozenset(elsewhere), seed)
