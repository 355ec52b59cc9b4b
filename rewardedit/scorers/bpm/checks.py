"""BPM's two rule-based judges: whether an edited object's size and place are what was asked (Li et al. 2025,
Sec. 3.3, App. A.4).

Boxes are xyxy in pixels, y downwards. A judge says 1 or 0; of several objects, the share for which it says 1.
"""

from dataclasses import dataclass

from rewardedit.instructions.parsed import SizeState

Box = tuple[float, float, float, float]
BESIDE = ("left", "right", "up", "down")


@dataclass(frozen=True)
class JudgeConfig:
    """Thresholds. Where the paper gives none they are the released code's, or ours."""

    larger: float = 1.2  # the ratio of areas from which an object is larger (released code)
    smaller: float = 0.8  # and below which it is smaller (released code)
    # how many times larger or smaller what is put in an object's place may be (ours): another object has
    # another outline
    replaced: float = 4.0
    overlap: float = 0.4  # the IoU from which an object is where another is (released code)
    near: float = 0.25  # a gap up to this share of the image's longer side is near (ours)
    margin: float = 0.02  # of the longer side, by which what is inside may stand out (ours)


def size_judge(
    before: float | None,
    after: float | None,
    state: SizeState,
    config: JudgeConfig | None = None,
    replaced: bool = False,
) -> float:
    """1 where an object's area has changed as `state` says.

    Args:
        before: its area in the source; None where it was added: then its size is right (App. A.4).
        after: its area in the edited image; None where it was removed: it cannot have another size.
        replaced: another object took its place.

    Raises:
        ValueError: on an area of nothing.
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
    """1 where an edited object is where `position` says, relative to a reference.

    Three criteria for a direction (Sec. 3.3): its centre lies there, further in that direction than across
    it, and the two do not lie on one another.

    Args:
        edited: the object in the edited image; None where it was removed: its place is right (App. A.4).
        reference: the reference object; for an object that is moved or changed, where it was in the source.
            None where there is none: then only a place in the image can be judged, all else is right.
        position: one of BPM's seven relations, "on", or a place in the image such as "top left".
        image: height and width.
        resized: another size was asked for, so that an object that stays where it was overlaps with less of
            itself: the share of the smaller box counts in place of the IoU (ours).

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
        return float(is_inside(edited, reference, config.margin * longer))
    if position == "on":
        return float(is_on(edited, reference, config.margin * longer))
    if position == "near":
        return float(apart and gap(edited, reference) <= config.near * longer)
    return float(apart and is_beside(edited, reference, position))


def is_beside(edited: Box, reference: Box, direction: str) -> bool:
    """Whether a centre lies in that direction of another, and further so than across it."""
    x, y = centre(edited)
    other_x, other_y = centre(reference)
    right, down = x - other_x, y - other_y
    along, across = (right, down) if direction in ("left", "right") else (down, right)
    if direction in ("left", "up"):
        along = -along
    return along > abs(across)


def is_inside(edited: Box, reference: Box, margin: float = 0.0) -> bool:
    """Whether a box lies within another, up to a margin."""
    low = all(edited[i] >= reference[i] - margin for i in (0, 1))
    return low and all(edited[i] <= reference[i] + margin for i in (2, 3))


def is_on(edited: Box, reference: Box, margin: float = 0.0) -> bool:
    """Whether a box lies within another, or stands on it: above its middle, with its own middle between the
    sides and its lower edge no higher than the other's upper one, up to a margin (ours).
    """
    x, y = centre(edited)
    stands = (
        reference[0] <= x <= reference[2]
        and y <= centre(reference)[1]
        and reference[1] - margin <= edited[3] <= reference[3] + margin
    )
    return stands or is_inside(edited, reference, margin) or is_beside(edited, reference, "up")


def place_of(position: str) -> tuple[str, str] | None:
    """("top", "left") of "top left", ("", "center") of "center"; None where it is no place in the image."""
    words = position.split()
    rows = {"top", "bottom", "center"}
    columns = {"left", "right", "center"}
    if len(words) == 2 and words[0] in rows and words[1] in columns:
        return words[0], words[1]
    if position in ("top", "bottom"):
        return position, ""
    return ("center", "center") if position == "center" else None


def in_place(edited: Box, place: tuple[str, str], image: tuple[float, float]) -> bool:
    """Whether a box's centre lies in that third of the image, by rows and by columns."""
    x, y = centre(edited)
    thirds = {"top": (0, 1), "left": (0, 1), "center": (1, 2), "bottom": (2, 3), "right": (2, 3), "": (0, 3)}
    pairs = zip(place, (y / image[0], x / image[1]), strict=True)
    return all(thirds[name][0] / 3 <= at <= thirds[name][1] / 3 for name, at in pairs)


def centre(box: Box) -> tuple[float, float]:
    """x and y of a box's middle."""
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def area(box: Box) -> float:
    """Of a box; 0 where it is empty."""
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes; 0 where both are empty."""
    both = area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))
    union = area(a) + area(b) - both
    return both / union if union else 0.0


def share_of_smaller(a: Box, b: Box) -> float:
    """Intersection over the area of the smaller of two boxes; 0 where that is empty."""
    both = area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))
    smaller = min(area(a), area(b))
    return both / smaller if smaller else 0.0


def gap(a: Box, b: Box) -> float:
    """Pixels between the nearest points of two boxes; 0 where they touch."""
    across = max(a[0] - b[2], b[0] - a[2], 0.0)
    down = max(a[1] - b[3], b[1] - a[3], 0.0)
    return (across**2 + down**2) ** 0.5
