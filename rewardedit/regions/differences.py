"""Differences between two images: their kinds, their boxes in shares of the image, and the area covered."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.regions.boxes import filled

Command = Literal["ADD", "REMOVE", "EDIT"]
COMMANDS: tuple[Command, ...] = get_args(Command)
Box = tuple[float, float, float, float]  # x0, y0, x1, y1 in [0, 1], y downwards
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Difference:
    """A difference between two images."""

    command: Command  # EDIT: the object is still there, or another is in its place
    subject: str  # the object in a few words
    box: Box  # the place of the object, in shares of the image's width and height
    confidence: float = 1.0  # in [0, 1]


@dataclass(frozen=True)
class Detection:
    """The differences that were found between two images, or the reason why nothing can be said."""

    differences: tuple[Difference, ...]
    items: int = 0  # items in the model's answer, readable or not
    reason: str | None = None

    @property
    def dropped(self) -> int:
        """Number of items of the answer that could not be read."""
        return self.items - len(self.differences)


@runtime_checkable
class DifferenceDetector(Protocol):
    """Finds differences between source and edited image."""

    def detect(self, batch: EditBatch) -> list[Detection]:
        """Finds the differences of each row."""
        ...


def pixel_boxes(boxes: Sequence[Box], height: int, width: int) -> Float[Tensor, "k 4"]:
    """Boxes in shares as boxes in pixels of an image of this size; 0 × 4 for none."""
    shares = torch.tensor(list(boxes), dtype=torch.float64).reshape(-1, 4)
    return (shares * shares.new_tensor([width, height, width, height])).float()


def covered(boxes: Sequence[Box], height: int, width: int) -> Bool[Tensor, "h w"]:
    """Mask of the pixels that lie in any of the boxes; each box covers at least one pixel."""
    return filled(pixel_boxes(boxes, height, width), (height, width)).any(0)
