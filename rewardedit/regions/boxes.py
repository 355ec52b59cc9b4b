"""Boxes as tensors: xyxy in pixels, y downwards, right and bottom exclusive."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import ndimage
from torch import Tensor


def pairwise_iou(a: Float[Tensor, "n 4"], b: Float[Tensor, "m 4"]) -> Float[Tensor, "n m"]:
    """Intersection over union of every box of `a` with every one of `b`; 0 where both are empty."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    both = (high - low).clamp_min(0).prod(2)
    union = areas(a)[:, None] + areas(b)[None] - both
    return torch.where(union > 0, both / union.clamp_min(1e-9), torch.zeros_like(both))


def areas(boxes: Float[Tensor, "n 4"]) -> Float[Tensor, " n"]:
    """Areas of boxes; 0 for an empty box."""
    return (boxes[:, 2:] - boxes[:, :2]).clamp_min(0).prod(1)


def suppress(
    boxes: Float[Tensor, "n 4"], confidence: Float[Tensor, " n"], overlap: float
) -> Int[Tensor, " k"]:
    """Greedy non-maximum suppression: indices of the boxes to keep, the most confident first; no two of them
    have an IoU above `overlap`.
    """
    overlaps = pairwise_iou(boxes, boxes)
    kept: list[int] = []
    for i in confidence.argsort(descending=True).tolist():
        if not kept or float(overlaps[i, kept].max()) <= overlap:
            kept.append(i)
    return torch.tensor(kept, dtype=torch.long, device=boxes.device)


def corners(boxes: Float[Tensor, "*n 4"]) -> Float[Tensor, "*n 4"]:
    """Converts boxes from centre, width and height to xyxy."""
    half = boxes[..., 2:] / 2
    return torch.cat([boxes[..., :2] - half, boxes[..., :2] + half], dim=-1)


def around(mask: Bool[Tensor, "h w"]) -> Float[Tensor, "4"]:
    """The box around the True pixels; zeros if there are none."""
    rows = mask.any(1).nonzero().flatten()
    columns = mask.any(0).nonzero().flatten()
    if not len(rows):
        return torch.zeros(4, device=mask.device)
    return torch.stack([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]).float()


def enclosing(boxes: Float[Tensor, "n 4"]) -> Float[Tensor, "4"]:
    """The smallest box around all boxes, at least one."""
    return torch.cat([boxes[:, :2].amin(0), boxes[:, 2:].amax(0)])


def filled(boxes: Float[Tensor, "n 4"], size: tuple[int, int]) -> Bool[Tensor, "n h w"]:
    """Masks of the pixels (of an image of `size`, height and width) whose centre lies in each box; for a box
    that holds no pixel centre, the pixel at the box's own centre.
    """
    h, w = size
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    pixel = middle.floor().clamp_min(0).minimum(boxes.new_tensor([w - 1, h - 1]))
    boxes = torch.cat([boxes[:, :2].minimum(pixel + 0.5), boxes[:, 2:].maximum(pixel + 0.75)], dim=1)
    y = torch.arange(h, device=boxes.device) + 0.5
    x = torch.arange(w, device=boxes.device) + 0.5
    x0, y0, x1, y1 = boxes.T[:, :, None]
    down = (y >= y0) & (y < y1)
    across = (x >= x0) & (x < x1)
    return down[:, :, None] & across[:, None, :]


def numbered_components(mask: Bool[Tensor, "h w"]) -> tuple[Int[Tensor, "h w"], list[tuple[slice, slice]]]:
    """The connected components of a mask, diagonals included: the number of the component at each pixel, from
    1, and 0 outside; and the rows and columns that each spans.
    """
    labelled: Any = ndimage.label(mask.cpu().numpy(), structure=np.ones((3, 3)))
    return torch.from_numpy(labelled[0]).to(mask.device), ndimage.find_objects(labelled[0])


def components(mask: Bool[Tensor, "h w"]) -> Bool[Tensor, "k h w"]:
    """The masks of the connected components of a mask, diagonals included."""
    numbers, places = numbered_components(mask)
    return numbers == torch.arange(1, len(places) + 1, device=mask.device)[:, None, None]
