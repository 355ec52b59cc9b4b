"""Differences found in both orders of a pair of images, as one detection."""

from collections.abc import Sequence
from dataclasses import replace

from rewardedit.regions.boxes import pairwise_iou
from rewardedit.regions.differences import Detection, Difference, pixel_boxes

SAME = 0.5  # least IoU of two boxes that stand for one difference


def merge_orders(forward: Detection, backward: Detection) -> Detection:
    """Merges the differences of a pair with those of the pair in reverse order.

    A model finds an object better in the second image, which it sees next to its answer, than in the first.
    So each object is taken from the order in which the second image has it: ADDs from `forward`, REMOVEs
    from `backward`, in which they are ADDs. EDITs come from both. Two of them are one if their boxes have an
    IoU of at least `SAME`: its box is their mean weighted by confidence, its confidence their mean (Weighted
    Boxes Fusion, Solovyev et al. 2021). The confidence of one that a single order finds is halved.

    Returns:
        the differences of the pair as `forward` has it; not readable if one of the two is not.
    """
    reason = forward.reason or backward.reason
    if reason is not None:
        return Detection((), forward.items + backward.items, reason)
    added = _of_command(forward, "ADD")
    removed = [replace(one, command="REMOVE") for one in _of_command(backward, "ADD")]
    edited = _merge(_of_command(forward, "EDIT"), _of_command(backward, "EDIT"))
    differences = (*added, *removed, *edited)
    return Detection(differences, len(differences) + forward.dropped + backward.dropped)


def _of_command(detection: Detection, command: str) -> list[Difference]:
    return [one for one in detection.differences if one.command == command]


def _merge(first: Sequence[Difference], second: Sequence[Difference]) -> list[Difference]:
    """Differences of both lists, those at one place once and by their name in the first list."""
    overlaps = pairwise_iou(pixel_boxes(first, 1, 1), pixel_boxes(second, 1, 1)).tolist()
    left = set(range(len(second)))
    merged = []
    for one, ious in zip(first, overlaps, strict=True):
        near = [j for j in left if ious[j] >= SAME]
        if not near:
            merged.append(_halved(one))
            continue
        nearest = max(near, key=lambda j, ious=ious: ious[j])
        left.remove(nearest)
        merged.append(_mean(one, second[nearest]))
    return merged + [_halved(second[j]) for j in sorted(left)]


def _halved(one: Difference) -> Difference:
    return replace(one, confidence=one.confidence / 2)


def _mean(one: Difference, other: Difference) -> Difference:
    total = one.confidence + other.confidence
    share = one.confidence / total if total > 0 else 0.5
    x0, y0, x1, y1 = (a * share + b * (1 - share) for a, b in zip(one.box, other.box, strict=True))
    return replace(one, box=(x0, y0, x1, y1), confidence=total / 2)
