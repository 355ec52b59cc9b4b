"""BPM as its released code computes it (joyli-x/BPM), which differs from the paper in every part.

Distances are measured at 500 × 500 pixels, whatever the aspect ratio (crops are not: CLIP's own preprocessing
trims them). Both images are cropped to the same box. Differences are
those of bytes, which wrap around. Sizes are those of the first boxes, and judged only if a size is requested;
positions are judged for added objects only. Missing objects are given a value, and a row is invalid only if
its instruction cannot be parsed.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from rewardedit.images import resize
from rewardedit.instructions.parsed import ParsedEdit
from rewardedit.regions.base import EditRegions, Instances
from rewardedit.scorers.bpm.checks import BESIDE, Box, centre, iou, is_beside, is_inside
from rewardedit.scorers.bpm.terms import boxes_of

CANVAS = 500  # pixels a side of both images
EXPAND = 1.5  # size of an object's crop relative to its box
LARGER = 1.2
SMALLER = 0.8
OVERLAP = 0.4  # least IoU of boxes that count as the same place
STILL = 40  # pixels of the canvas: a smaller L1 distance of centres is no change of place

Features = Callable[[list[Tensor]], Tensor]  # images (3, h, w) to features
TextFeatures = Callable[[list[str]], Tensor]
Segment = Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor]]  # images and boxes to masks


def on_canvas(instances: Instances, image: tuple[int, int]) -> list[Box]:
    """Boxes in pixels of the canvas, the most confident first."""
    across = CANVAS / image[1]
    down = CANVAS / image[0]
    return [(x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in boxes_of(instances)]


def size_verdict(regions: EditRegions, parsed: ParsedEdit) -> float:
    """1 unless a size is requested and the areas of the first boxes contradict it."""
    if parsed.size == "unchanged" or regions.is_global or not len(regions.source) or not len(regions.edited):
        return 1.0
    before = _area(boxes_of(regions.source)[0])
    after = _area(boxes_of(regions.edited)[0])
    ratio = after / max(before, 1e-9)
    return float(ratio > LARGER if parsed.size == "larger" else ratio < SMALLER)


def position_verdict(regions: EditRegions, parsed: ParsedEdit, image: tuple[int, int]) -> float:
    """1 unless an object is added next to a named one; then 1, 0.5 or 0: all, some or none of the added
    objects have the relation to the first box of that object.
    """
    if parsed.source is not None or parsed.reference is None:
        return 1.0
    edited = on_canvas(regions.edited, image)
    reference = on_canvas(regions.reference, image) if regions.reference is not None else []
    if not edited or not reference:
        return 1.0
    verdicts = [_has_position(box, reference[0], parsed.position) for box in edited]
    return 1.0 if all(verdicts) else 0.5 if any(verdicts) else 0.0


def _has_position(edited: Box, reference: Box, position: str) -> bool:
    # The paper's seven words (Fig. 6) have none for "on": "on the screen of the laptop" is inside.
    position = "inside" if position == "on" else position
    if position == "unchanged":
        here = centre(edited)
        reference_centre = centre(reference)
        return abs(here[0] - reference_centre[0]) + abs(here[1] - reference_centre[1]) < STILL
    if position == "inside":
        return is_inside(edited, reference)
    if position in BESIDE:
        return iou(edited, reference) < OVERLAP and is_beside(edited, reference, position)
    return True  # a relation that the code does not know


def preserve(
    source: Float[Tensor, "3 h w"], edited: Float[Tensor, "3 h w"], may_change: Bool[Tensor, "h w"]
) -> float:
    """−L2 outside the region that may change, in bytes that wrap around: the square of 50 is 196, not 2500,
    so that 50 counts as 14.
    """
    difference = _bytes(edited) - _bytes(source)
    square = difference * difference
    distance = square.float().mean(0).sqrt()
    outside = ~may_change
    return -float((distance * outside).sum() / outside.sum().clamp_min(1)) / 255


def modify(
    source: Float[Tensor, "3 h w"],
    edited: Float[Tensor, "3 h w"],
    regions: EditRegions,
    parsed: ParsedEdit,
    images: Features,
    texts: TextFeatures,
) -> Float[Tensor, ""]:
    """The directional similarity of the same crop of both images; if the whole image is to change, or the
    source object is not found, the similarity of the edited image with the target's name; 0 if the target is
    not found.
    """
    if regions.is_global or regions.missing == "source":
        seen = images([edited])[0]
        return F.cosine_similarity(seen, texts([parsed.target or "none"])[0], dim=0)
    if regions.missing == "target" or not len(regions.source):
        return edited.new_zeros(())
    x0, y0, x1, y1 = regions.source.box.tolist()  # for an added object this is the edited side's box
    h, w = source.shape[-2:]
    across = (EXPAND - 1) / 2 * (x1 - x0)
    down = (EXPAND - 1) / 2 * (y1 - y0)
    rows = _within(y0 - down, y1 + down, h)
    columns = _within(x0 - across, x1 + across, w)
    before, after = images([source[:, rows, columns], edited[:, rows, columns]])
    named = [name for name in (parsed.source, parsed.target) if name is not None]
    words = dict(zip(named, texts(named), strict=True))
    nothing = torch.zeros_like(before)
    direction = words.get(parsed.target or "", nothing) - words.get(parsed.source or "", nothing)
    return F.cosine_similarity(after - before, direction, dim=0)


def _within(low: float, high: float, length: int) -> slice:
    """The pixels between two coordinates along a side, at least one."""
    first = min(max(0, round(low)), length - 1)
    return slice(first, max(first + 1, min(length, round(high))))


def parts(
    source: Float[Tensor, "b 3 h w"],
    edited: Float[Tensor, "b 3 h w"],
    parsed: Sequence[ParsedEdit],
    regions: Sequence[EditRegions],
    images: Features,
    texts: TextFeatures,
    segment: Segment,
) -> dict[str, Float[Tensor, " b"]]:
    """The four parts of each edit; preserve is −L2, in [−1, 0], and 0 if the whole image is to change."""
    image = (source.shape[-2], source.shape[-1])
    # The source's boxes mark the place in the edited image too.
    again = segment(edited, [region.source.boxes for region in regions])
    masks = [region.source.mask | mask.any(0) for region, mask in zip(regions, again, strict=True)]
    before = _canvas(source)
    after = _canvas(edited)
    may_change = _canvas_masks(masks)

    modified = []
    kept = []
    sizes = []
    positions = []
    for i, (region, edit) in enumerate(zip(regions, parsed, strict=True)):
        modified.append(modify(source[i], edited[i], region, edit, images, texts))
        kept.append(0.0 if region.is_global else preserve(before[i], after[i], may_change[i]))
        sizes.append(size_verdict(region, edit))
        positions.append(position_verdict(region, edit, image))
    return {
        "modify": torch.stack(modified),
        "preserve": edited.new_tensor(kept),
        "size": edited.new_tensor(sizes),
        "position": edited.new_tensor(positions),
    }


def _bytes(image: Tensor) -> Tensor:
    return (image * 255).round().to(torch.uint8)


def _canvas(images: Tensor) -> Tensor:
    return resize(images, (CANVAS, CANVAS), "bilinear")


def _canvas_masks(masks: Sequence[Tensor]) -> Tensor:
    stacked = torch.stack(list(masks))[:, None].float()
    return F.interpolate(stacked, (CANVAS, CANVAS), mode="nearest")[:, 0] > 0


def _area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])
