"""Rules that label edits from 0 to 10 without human raters (ADIEE Sec. 3.1).

A rule of `OUTPUT_RULES` examines the measurements of one output of an editing method. The rules are tried in
order: the first that holds gives the label, and an output for which none holds has no label. The other rules
need no measurement: they label images that a data set already has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rewardedit.synthesis.rules_config import ThresholdsConfig

Grade = Literal["weak", "strong", "other"]  # usual quality of a method's outputs
FAILED = 0.0
PARTLY = 5.0
RIGHT = 10.0


@dataclass(frozen=True)
class Measured:
    """Measurements of an output; None for those that cannot be taken."""

    clip_d: float | None  # CLIP directional similarity (Eq. 1); None if the two captions are the same
    # similarity to the target by two image encoders (Eq. 2, 3); None without a target
    similarity: tuple[float | None, float | None]


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the measurements; `find_thresholds` takes them from a data set."""

    clip_d: float
    similarity: tuple[float, float]  # threshold of each encoder


@dataclass(frozen=True)
class Rule:
    """A condition and the label that it gives."""

    name: str
    label: float
    holds: Callable[[Measured, Thresholds, Grade], bool]


def no_progress(measured: Measured, thresholds: Thresholds, grade: Grade) -> bool:
    """True for CLIP-D ≤ 0: the output is no nearer to the target caption than the source, or equals it."""
    return measured.clip_d is not None and measured.clip_d <= 0


def unlike_target(measured: Measured, thresholds: Thresholds, grade: Grade) -> bool:
    """True if, by both encoders, the output is less similar to the target than nearly all sources are."""
    pairs = zip(measured.similarity, thresholds.similarity, strict=True)
    return all(value is not None and value < limit for value, limit in pairs)


def weak_method(measured: Measured, thresholds: Thresholds, grade: Grade) -> bool:
    """True for an output of a method that usually fails."""
    return grade == "weak"


def partly_done(measured: Measured, thresholds: Thresholds, grade: Grade) -> bool:
    """True for an output of a strong method with a CLIP-D below the threshold."""
    return grade == "strong" and measured.clip_d is not None and measured.clip_d < thresholds.clip_d


OUTPUT_RULES = (
    Rule("no_progress", FAILED, no_progress),
    Rule("unlike_target", FAILED, unlike_target),
    Rule("weak_method", FAILED, weak_method),
    Rule("partly_done", PARTLY, partly_done),
)
# Labels of the data set's own images, by rule.
OWN_LABELS = {
    "target": RIGHT,
    "source": FAILED,
    "augmented_source": FAILED,
    "another_image": FAILED,  # another row's target with this row's instruction
    # this row's target, or an output near it, with another row's instruction, with its own for another
    # object of the image, and with its own with a word altered
    "another_instruction": FAILED,
    "another_object": FAILED,
    "another_word": FAILED,
}
DAMAGED = "damaged_target"  # this row's target with a damage that gives the label
UNREACHED = "unreached"  # a method's output, labelled by its distance from the target
UNTOUCHED = "untouched"  # a method's output that changes almost nothing: FAILED
LEFT_BEHIND = "left_behind"  # a method's output that leaves the object to be moved in its place: FAILED
ANOTHER_INSTRUCTION = "output_another_instruction"  # a method's output with another row's: FAILED
ANOTHER_TURN = "another_turn"  # a turn's edit with a later turn's instruction: FAILED
DROPPED = "dropped"  # no rule holds


def label_output(measured: Measured, thresholds: Thresholds, grade: Grade) -> tuple[str, float | None]:
    """Name and label of the first rule that holds; `DROPPED` and None if none does."""
    for rule in OUTPUT_RULES:
        if rule.holds(measured, thresholds, grade):
            return rule.name, rule.label
    return DROPPED, None


def find_thresholds(
    config: ThresholdsConfig, sources: Sequence[Measured], targets: Sequence[Measured]
) -> Thresholds:
    """Percentiles over a data set's own sources and targets, which are measured in the same way as outputs.

    Raises:
        ValueError: if no source has a similarity.
    """
    similarity = []
    for encoder in range(2):
        values = [measured.similarity[encoder] for measured in sources]
        what = f"the sources' similarity to their targets by encoder {encoder + 1}"
        similarity.append(percentile(values, config.similarity_percentile, what))

    clip_d = config.clip_d
    if clip_d is None:
        known_values = [measured.clip_d for measured in targets if measured.clip_d is not None]
        # Without captions no output has a CLIP-D either, so the threshold does not matter.
        clip_d = float(np.percentile(known_values, config.clip_d_percentile)) if known_values else 0.0
    return Thresholds(clip_d, (similarity[0], similarity[1]))


def percentile(values: Sequence[float | None], q: float, what: str) -> float:
    """Percentile q of the values that are not None, by linear interpolation.

    Raises:
        ValueError: if all are None.
    """
    known = [value for value in values if value is not None]
    if not known:
        raise ValueError(f"label rules: no row has {what}")
    return float(np.percentile(known, q))
