"""The parts of BPM's score that need no model, given the regions of an edit (Li et al. 2025, Sec. 3.3,
3.4).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from rewardedit.instructions.parsed import ParsedEdit
from rewardedit.regions.base import EditRegions, Instances
from rewardedit.scorers.bpm.checks import Box, JudgeConfig, position_judge, size_judge


def boxes_of(instances: Instances) -> list[Box]:
    """Boxes as plain tuples, the most confident first."""
    return [(x0, y0, x1, y1) for x0, y0, x1, y1 in instances.boxes.tolist()]


def size_verdict(regions: EditRegions, parsed: ParsedEdit, config: JudgeConfig) -> float:
    """S_size, 0 or 1: 1 if the total area of the source objects has changed as requested.

    Also 1 for an added object (App. A.4), if the whole image changes, and if only a mask is known.
    """
    if regions.missing == "target":
        return 0.0
    if regions.is_global or not regions.is_named:
        return 1.0
    before = None if regions.is_added else float(regions.source.mask.sum())
    after = None if regions.is_removed else float(regions.edited.mask.sum())
    return size_judge(before, after, parsed.size, config, replaced=parsed.edit_type == "replace")


def position_verdict(
    regions: EditRegions, parsed: ParsedEdit, image: tuple[int, int], config: JudgeConfig
) -> float:
    """S_position, in [0, 1]: the share of the edited objects at the requested position relative to the
    reference object, or to the source object if none is named.

    1 if the whole image changes and if only a mask is known.
    """
    if regions.missing in ("target", "reference"):
        return 0.0
    if regions.is_global or not regions.is_named:
        return 1.0
    edited: list[Box | None] = [None] if regions.is_removed else [*boxes_of(regions.edited)]
    references: list[Box | None] = [None]
    if regions.reference is not None and parsed.position != "unchanged":
        references = [*boxes_of(regions.reference)]
    elif not regions.is_added:
        references = [*boxes_of(regions.source)]

    resized = parsed.size != "unchanged"
    total = 0.0
    for box in edited:
        scores = []
        for reference in references:
            scores.append(position_judge(box, reference, parsed.position, image, config, resized))
        total += max(scores)
    return total / len(edited)


def preserve(
    source: Float[Tensor, "b 3 h w"], edited: Float[Tensor, "b 3 h w"], regions: Sequence[EditRegions]
) -> Float[Tensor, " b"]:
    """S_preserve (Alg. 2, line 11), in [0, 1]: 1 minus the root mean square over channels, averaged over all
    pixels outside M_origin ∪ M_edit.

    1 if no pixel is outside: nothing was to be kept. Unchanged pixels have no gradient.
    """
    outside = torch.stack([~region.mask for region in regions]).float()
    square = (edited - source).square().mean(1)
    changed = square > 0
    distance = torch.where(changed, square, torch.ones_like(square)).sqrt() * changed
    return 1 - (distance * outside).sum((1, 2)) / outside.sum((1, 2)).clamp_min(1)


def crop(image: Float[Tensor, "3 h w"], box: Sequence[float], context: float) -> Float[Tensor, "3 s s"]:
    """A square crop around a box, `context` times as large as the box's longer side, shifted into the image
    as far as it fits; the rest is filled with gray. Its gradient reaches the image.
    """
    h, w = image.shape[-2:]
    x0, y0, x1, y1 = box
    side = max(2, min(round(context * max(x1 - x0, y1 - y0)), max(h, w)))
    left = _first(round((x0 + x1 - side) / 2), side, w)
    top = _first(round((y0 + y1 - side) / 2), side, h)
    inside = image[:, max(top, 0) : top + side, max(left, 0) : left + side]
    before = (max(-left, 0), max(-top, 0))
    after = (side - before[0] - inside.shape[2], side - before[1] - inside.shape[1])
    return F.pad(inside, (before[0], after[0], before[1], after[1]), value=0.5)


def _first(start: int, side: int, length: int) -> int:
    """Start of an interval of length `side`, shifted to lie within `length`, or around it if it is longer."""
    if side >= length:
        return -((side - length) // 2)
    return min(max(start, 0), length - side)
