"""Frames around parts of images, in the colours of DICE."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.regions.differences import Box

FRAMES = {"ADD": (255, 0, 0), "EDIT": (0, 255, 0), "REMOVE": (0, 0, 255)}  # RGB of the kinds of differences
LINE = 128  # a line is this part of the longer side


def framed(image: Float[Tensor, "3 h w"], box: Box, colour: tuple[int, int, int]) -> Float[Tensor, "3 h w"]:
    """The image with a frame just outside of a box, which stays visible.

    At an edge of the image the line lies on the outermost pixels of the box.

    Args:
        colour: RGB from 0 to 255.
    """
    h, w = image.shape[-2:]
    line = max(1, round(max(h, w) / LINE))
    x0, y0, x1, y1 = box
    left = max(math.floor(x0 * w), line)
    top = max(math.floor(y0 * h), line)
    right = min(math.ceil(x1 * w), w - line)
    bottom = min(math.ceil(y1 * h), h - line)
    on_line = torch.zeros(h, w, dtype=torch.bool, device=image.device)
    on_line[top - line : bottom + line, left - line : right + line] = True
    on_line[top:bottom, left:right] = False
    paint = image.new_tensor(colour)[:, None, None] / 255
    return torch.where(on_line, paint, image)
