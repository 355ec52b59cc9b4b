"""BPM's two rule-based judges of the size and the position of an edited object (Li et al. 2025, Sec. 3.3,
App. A.4).

Boxes are xyxy in pixels, y downwards. A judge returns 1 or 0; for several objects the mean is taken.
"""

from dataclasses import dataclass

from rewardedit.instructions.parsed import SizeState

Box = tuple[float, float, float, float]
BESIDE = ("left", "right", "up", "down")
MAX_GAP = 0.25  # largest gap that counts as near, as a share of the image's longer side (ours)
MARGIN = 0.02  # overhang of an object that counts as inside, as a share of the longer side (ours)


@dataclass(frozen=True)
class JudgeConfig:
    """Thresholds of the judges. If the paper gives none they are the released code's, or ours."""

    larger: float = 1.2  # least ratio of areas of an object that became larger (released code)
    smaller: float = 0.8  # largest ratio of areas of an object that became smaller (released code)
    # most times by which an object may be larger or smaller than the one it replaces (ours): another object
    # has another outline
    replaced: float = 4.0
    overlap: float = 0.4  # least IoU of two boxes in the same place (released code)


def size_judge(
    before: float | None,
    after: float | None,
    state: SizeState,
    config: JudgeConfig | None = None,
    replaced: bool = False,
) -> float:
    """Returns 1 if an object's area has changed according to `state`, else 0.

    Args:
        before: its area in the source; None if it was added: then its size is right (App. A.4).
        after: its area in the edited image; None if it was removed: it cannot have another size.
        replaced: True if another object took its place.

    Raises:
        ValueError: on an area that is not above 0.
    """
    config = config or JudgeConfig()
    if before is None or after is None:
        return 1.0
    if before <= 0 or after <= 0:
        raise ValueError(f"expected areas above 0; got {before} and {after}")
    ratio = after / before
    if state == "larger":
        return float(ratio >= config.larger)
    if state == "smaller":
        return float(ratio <= config.smaller)
    if replaced:
        return float(1 / config.replaced < ratio < config.replaced)
    return float(config.smaller < ratio < config.larger)


def position_judge(
    edited: Box | None,
    reference: Box | None,
    position: str,
    image: tuple[float, float],
    config: JudgeConfig | None = None,
    resized: bool = False,
) -> float:
    """Returns 1 if an edited object has the given position relative to a reference, else 0.

    Three criteria for a direction (Sec. 3.3): its centre lies there, further in that direction than across
    it, and the two boxes do not overlap.

    Args:
        edited: the object in the edited image; None if it was removed: its position is right (App. A.4).
        reference: the reference object; for an object that is moved or changed, its box in the source.
            None: only a place in the image can be judged, everything else counts as right.
        position: one of BPM's seven relations, "on", or a place in the image such as "top left".
        image: height and width.
        resized: True if another size was requested, so that an object that stays in place overlaps with less
            of itself: the share of the smaller box also counts, besides the IoU (ours).

    Raises:
        ValueError: on another position.
    """
    config = config or JudgeConfig()
    place = place_of(position)
    if place is None and position not in (*BESIDE, "near", "inside", "on", "unchanged"):
        raise ValueError(f"position: expected a relation or a place in the image; got {position!r}")
    if edited is None:
        return 1.0
    if place is not None:
        return float(in_place(edited, place, image))
    if reference is None:
        return 1.0
    longer = max(image)
    apart = iou(edited, reference) < config.overlap
    if position == "unchanged":
        return float(not apart or (resized and share_of_smaller(edited, reference) >= config.overlap))
    if position == "inside":
        return float(is_inside(edited, reference, MARGIN * longer))
    if position == "on":
        return float(is_on(edited, reference, MARGIN * longer))
    if position == "near":
        return float(apart and gap(edited, reference) <= MAX_GAP * longer)
    return float(apart and is_beside(edited, reference, position))


def is_beside(edited: Box, reference: Box, direction: str) -> bool:
    """True if a box's centre lies in that direction from the other's, further along than across it."""
    x, y = centre(edited)
    other_x, other_y = centre(reference)
    right, down = x - other_x, y - other_y
    along, across = (right, down) if direction in ("left", "right") else (down, right)
    if direction in ("left", "up"):
        along = -along
    return along > abs(across)


def is_inside(edited: Box, reference: Box, margin: float = 0.0) -> bool:
    """True if a box lies within another, up to a margin."""
    low = all(edited[i] >= reference[i] - margin for i in (0, 1))
    return low and all(edited[i] <= reference[i] + margin for i in (2, 3))


def is_on(edited: Box, reference: Box, margin: float = 0.0) -> bool:
    """True if a box lies within or above another, or stands on it: its centre lies between the other's sides
    and above its centre, its lower edge between the other's upper and lower ones, up to a margin (ours).
    """
    x, y = centre(edited)
    stands = (
        reference[0] <= x <= reference[2]
        and y <= centre(reference)[1]
        and reference[1] - margin <= edited[3] <= reference[3] + margin
    )
    return stands or is_inside(edited, reference, margin) or is_beside(edited, reference, "up")


def place_of(position: str) -> tuple[str, str] | None:
    """Splits a place in the image: ("top", "left") for "top left", ("center", "center") for "center"; None if
    it is no place in the image.
    """
    words = position.split()
    rows = {"top", "bottom", "center"}
    columns = {"left", "right", "center"}
    if len(words) == 2 and words[0] in rows and words[1] in columns:
        return words[0], words[1]
    if position in ("top", "bottom"):
        return position, ""
    return ("center", "center") if position == "center" else None


def in_place(edited: Box, place: tuple[str, str], image: tuple[float, float]) -> bool:
    """True if a box's centre lies in that third of the image, by rows and by columns."""
    x, y = centre(edited)
    thirds = {"top": (0, 1), "left": (0, 1), "center": (1, 2), "bottom": (2, 3), "right": (2, 3), "": (0, 3)}
    pairs = zip(place, (y / image[0], x / image[1]), strict=True)
    return all(thirds[name][0] / 3 <= at <= thirds[name][1] / 3 for name, at in pairs)


def centre(box: Box) -> tuple[float, float]:
    """x and y of a box's centre."""
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def area(box: Box) -> float:
    """Area of a box; 0 if it is empty."""
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes; 0 if both are empty."""
    both = area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))
    union = area(a) + area(b) - both
    return both / union if union else 0.0


def share_of_smaller(a: Box, b: Box) -> float:
    """Intersection over the area of the smaller of two boxes; 0 if that is empty."""
    both = area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))
    smaller = min(area(a), area(b))
    return both / smaller if smaller else 0.0


def gap(a: Box, b: Box) -> float:
    """Pixels between the nearest points of two boxes; 0 if they touch."""
    across = max(a[0] - b[2], b[0] - a[2], 0.0)
    down = max(a[1] - b[3], b[1] - a[3], 0.0)
    return (across**2 + down**2) ** 0.5
