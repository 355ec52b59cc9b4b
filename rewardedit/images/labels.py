"""Masks that hold labels, numbers of classes, instead of brightness."""

import warnings
from collections.abc import Callable

import numpy as np
from PIL import Image
from torch import Tensor

MOST_LABELS = 31  # the greatest number that is taken for a label: as brightness it would be nearly black


def to_labels(mask: Tensor) -> Tensor:
    """A mask of booleans or of integer labels as 0 and 1, 1 for every label above 0; others as they are.

    Integers from 0 to `MOST_LABELS` are labels; a warning says so if one is above 1.
    """
    if mask.is_floating_point() or mask.is_complex() or mask.is_meta or not mask.numel():
        return mask
    low, high = (0, 1) if str(mask.dtype) == "torch.bool" else map(int, mask.aminmax())
    if low < 0 or high > MOST_LABELS:
        return mask
    _warn(high)
    return (mask > 0).float()


def label_reader(image: Image.Image) -> Callable[[Image.Image, int], np.ndarray] | None:
    """Returns a function that reads the labels of parts of an image as bytes (h, w, 1), 255 for every label
    above 0; None if the image holds brightness.

    An image holds labels if it has a palette of colours, as for VOC's classes, or if its greatest value is 1
    to `MOST_LABELS`; a warning says so if that value is above 1.
    """
    is_as_stored = _is_coloured(image) or image.mode.startswith("I;")

    def numbers(strip: Image.Image) -> np.ndarray:
        return np.asarray(strip if is_as_stored else strip.convert("L"))

    highest = int(numbers(image).max())
    if not (_is_coloured(image) or 0 < highest <= MOST_LABELS):
        return None
    _warn(highest)
    return lambda strip, channels: np.where(numbers(strip)[:, :, None] > 0, np.uint8(255), np.uint8(0))


def _is_coloured(image: Image.Image) -> bool:
    if image.mode != "P":
        return False
    palette = np.asarray(image.getpalette("RGB"), dtype=np.uint8).reshape(-1, 3)
    used = palette[np.unique(np.minimum(np.asarray(image), len(palette) - 1))]
    return bool((used != used[:, :1]).any())


def _warn(highest: int) -> None:
    if highest > 1:
        warnings.warn(
            f"mask: its values up to {highest} are read as labels: the edit may change pixels above 0",
            stacklevel=3,
        )
