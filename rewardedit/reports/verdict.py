"""BPM's judgement of an edit in one sentence."""

import math
from collections.abc import Mapping

from rewardedit.scorers.bpm.bpm import Bpm

# Words for the lower, middle and upper third of a scale.
OVERALL = ("Failed", "Partly done", "Well done")
MODIFY = (
    "the change is hardly there",
    "the change is partly there",
    "the change is there",
)
PRESERVE = ("the rest is not kept", "the rest is partly kept", "the rest is kept")


def verdict(scorer: Bpm, score: float, parts: Mapping[str, float], reason: str | None) -> str:
    """Returns the sentence, e.g. "Partly done (BPM 1.10 of 2): the change is there, the rest is partly kept,
    size and position are right."
    """
    if not math.isfinite(score):
        return f"No score: {reason}."
    low, high = scorer.range
    ends = scorer.config.effective_calibration
    said = [
        _third(MODIFY, parts["modify"], ends.modify),
        _third(PRESERVE, parts["preserve"], ends.preserve),
        _rules(parts["size"] >= 0.5, parts["position"] >= 0.5),
    ]
    return f"{_third(OVERALL, score, (low, high))} (BPM {score:.2f} of {high:g}): {', '.join(said)}."


def _third(words: tuple[str, str, str], value: float, ends: tuple[float, float]) -> str:
    low, high = ends
    share = (value - low) / (high - low)
    return words[min(2, max(0, math.floor(3 * share)))]


def _rules(size: bool, position: bool) -> str:
    if size == position:
        return f"size and position are {'right' if size else 'wrong'}"
    return f"size is {'right' if size else 'wrong'} and position {'right' if position else 'wrong'}"
