"""Labels edits by their distance from the target, as a share of the edited area.

For data sets where the target is nearly the only right answer, such as drawn images. Needs neither people
nor models.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.images import gaussian_blur
from rewardedit.instructions.grammar.grammar import parse_all
from rewardedit.instructions.parsed import Parsed, ParsedEdit
from rewardedit.regions.change_map import GRID, change_mask, oklab
from rewardedit.synthesis.label_rules import FAILED, LEFT_BEHIND, UNREACHED, UNTOUCHED
from rewardedit.synthesis.places import edited_places, moved
from rewardedit.synthesis.rules_config import ByTargetConfig

LEVELS = (0.04, 0.1)  # OKLab distances below and above which a pixel counts as alike and as different
BLUR = 0.7  # blur of the images, in 1/64 of their side: noise of single pixels is not a difference
# least share of edited pixels: targets that change less count as changing this much
MIN_CHANGED_SHARE = 0.004
UNEDITED_BELOW = 0.1  # an edit that changes less, as a share of what the target changes, counts as none
# Edits with only one right result. An added or moved object may lie elsewhere, and a resized one be larger
# still: an edit that is far from the target may be right as well.
NO_CHOICE = ("remove", "recolour", "replace", "background")
MAX_UNCERTAIN_DISTANCE = 0.2  # largest distance at which edits of other types get a label as well
CLEARED = 0.3  # the least share of a moved object's old place that must look different


def distance_to_target(
    source: Float[Tensor, "b 3 h w"],
    target: Float[Tensor, "b 3 h w"],
    edited: Float[Tensor, "b 3 h w"],
    mask: Float[Tensor, "b 1 h w"] | None = None,
) -> Float[Tensor, " b"]:
    """Number of pixels that differ between edited image and target, divided by the number of edited pixels.

    0 for the target itself. The source has 1 without a mask, and less if a part of the masked area looks
    the same before and after. Unwanted changes count as well as missing ones, so there is no upper limit.
    Images are RGB in [0, 1].

    Args:
        mask: edited area, objects before and after; None: the pixels in which source and target differ.
    """
    return _differ(edited, target) / _edited(source, target, mask)


def unedited(
    source: Float[Tensor, "b 3 h w"], target: Float[Tensor, "b 3 h w"], edited: Float[Tensor, "b 3 h w"]
) -> list[bool]:
    """True for each edit that changes almost nothing, relative to the change of the target."""
    changed = _differ(edited, source) / _edited(source, target)
    return ((changed <= UNEDITED_BELOW) & (_differ(source, target) >= MIN_CHANGED_SHARE)).tolist()


def object_not_moved(
    source: Float[Tensor, "3 h w"], target: Float[Tensor, "3 h w"], edited: Float[Tensor, "3 h w"]
) -> bool:
    """True if an object that the target moves is still visible in its old place."""
    places = edited_places(change_mask(source[None], target[None])[0])
    move = moved(source, target, places)
    if move is None:
        return False
    changed = _differences(edited[None], source[None])[0]
    return float(changed[move[0]].mean()) < CLEARED


def label_by_distance(distance: float, edit: Parsed, labels: Sequence[tuple[float, float]]) -> float | None:
    """Label of an edit by its distance `distance` from the target; None if the edit may be right all the
    same.

    Args:
        labels: ascending shares and their labels; values in between are interpolated.
    """
    no_choice = isinstance(edit, ParsedEdit) and edit.edit_type in NO_CHOICE
    if distance > MAX_UNCERTAIN_DISTANCE and not no_choice:
        return None
    return round(float(np.interp(distance, *zip(*labels, strict=True))), 1)


def labels_by_target(
    batch: EditBatch, images: Sequence[Tensor | None], config: ByTargetConfig
) -> list[tuple[str, float | None]] | None:
    """Rule and label of each edited image, by its distance to the row's target. The label is None if the
    distance is inconclusive or the image is missing. Returns None for rows without targets.
    """
    if batch.target is None:
        return None
    pairs = zip(images, batch.source, strict=True)
    edited = torch.stack([source if image is None else image for image, source in pairs])

    labels: list[tuple[str, float | None]] = []
    for image, source, target, share, nothing, edit in zip(
        images,
        batch.source,
        batch.target,
        distance_to_target(batch.source, batch.target, edited, batch.mask).tolist(),
        unedited(batch.source, batch.target, edited),
        parse_all(batch.instruction),
        strict=True,
    ):
        if image is None:
            labels.append((UNREACHED, None))
        elif nothing:
            labels.append((UNTOUCHED, FAILED))
        elif config.object_not_moved and _is_move(edit) and object_not_moved(source, target, image):
            labels.append((LEFT_BEHIND, FAILED))
        else:
            labels.append((UNREACHED, label_by_distance(share, edit, config.labels)))

    return labels


def _edited(source: Tensor, target: Tensor, mask: Tensor | None = None) -> Float[Tensor, " b"]:
    """Share of pixels that is edited."""
    changed = _differ(source, target)
    if mask is not None:
        changed = torch.maximum(changed, mask.flatten(1).mean(1))
    return changed.clamp_min(MIN_CHANGED_SHARE)


def _is_move(edit: Parsed) -> bool:
    """True if an instruction asks to move an object."""
    return isinstance(edit, ParsedEdit) and edit.edit_type == "move"


def _differ(a: Tensor, b: Tensor) -> Float[Tensor, " b"]:
    """Share of pixels in which images differ; slight differences count in part."""
    return _differences(a, b).flatten(1).mean(1)


def _differences(a: Tensor, b: Tensor) -> Float[Tensor, "b h w"]:
    """Difference of images at each pixel, 0 to 1."""
    unit = max(1, round(max(a.shape[-2:]) / GRID))
    distance = gaussian_blur(oklab(a) - oklab(b), BLUR * unit).norm(dim=1)
    low, high = LEVELS
    return ((distance - low) / (high - low)).clamp(0, 1)
