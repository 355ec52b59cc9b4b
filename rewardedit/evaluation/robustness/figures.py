"""Figures of an attack on a scorer: the rise of its scores, and the failed edits that pass for good ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rewardedit.evaluation.statistics import Comparison, Estimate, clustered_mean, paired_bootstrap

RESAMPLES = 2000


@dataclass(frozen=True)
class Baseline:
    """A scorer on edits that were not attacked."""

    threshold: float  # failed edits that reach it pass for good ones
    median: float  # median score of all edits
    spread: float  # standard deviation of all edits' scores
    good: Estimate  # share of good edits that reach the threshold
    failed: Estimate  # share of failed edits that do
    not_scored: float  # share of all edits without a score


@dataclass(frozen=True)
class Effect:
    """An attack on failed edits, as one scorer sees it."""

    rise: Comparison | None  # scores after and before, in spreads; None if fewer than two sources have both
    passed: Comparison  # shares that pass after and before


def pass_threshold(good: np.ndarray, share: float) -> float:
    """The highest score that at least `share` of the good edits with a score reach.

    A user who keeps an edit if its score is at least this loses no more than 1 − share of the good ones; the
    failed edits that reach it are those that would slip through.

    Raises:
        ValueError: if no good edit has a score.
    """
    known = np.sort(good[np.isfinite(good)])
    if not len(known):
        raise ValueError("expected a score of some good edit; the scorer can score none of them")
    return float(known[math.floor((1 - share) * len(known) + 1e-9)])


def passes(scores: np.ndarray, threshold: float) -> np.ndarray:
    """1 where a score reaches the threshold, else 0; an edit without a score does not pass."""
    return (np.nan_to_num(scores, nan=-np.inf) >= threshold).astype(float)


def measure_baseline(
    good: np.ndarray, failed: np.ndarray, of_good: Sequence[str], of_failed: Sequence[str], share: float
) -> Baseline:
    """A scorer's figures without an attack.

    Args:
        good: (n,) scores of good edits; NaN without one.
        failed: (n,) scores of failed edits; NaN without one.
        of_good: source images of the good edits.
        of_failed: source images of the failed edits.
        share: of good edits that are to pass.
    """
    threshold = pass_threshold(good, share)
    scores = np.concatenate([good, failed])
    known = scores[np.isfinite(scores)]
    return Baseline(
        threshold,
        float(np.median(known)),
        float(known.std(ddof=1)) if len(known) > 1 else 0.0,
        clustered_mean(passes(good, threshold), of_good),
        clustered_mean(passes(failed, threshold), of_failed),
        1 - len(known) / len(scores),
    )


def measure_effect(
    before: np.ndarray, after: np.ndarray, sources: Sequence[str], baseline: Baseline
) -> Effect:
    """The effect of an attack.

    Args:
        before: (n,) scores of failed edits; NaN without one.
        after: (n,) scores of the same edits after the attack. A rise counts edits that have both scores.
        sources: their source images, at least two.
    """
    names = np.asarray(sources, dtype=object)
    both = np.isfinite(before) & np.isfinite(after)
    rise = None
    if len(set(names[both])) >= 2 and baseline.spread > 0:
        scaled = (after[both] / baseline.spread, before[both] / baseline.spread)
        rise = paired_bootstrap(*scaled, names[both], RESAMPLES)
    passed = [passes(scores, baseline.threshold) for scores in (after, before)]
    return Effect(rise, paired_bootstrap(passed[0], passed[1], names, RESAMPLES))


def lowest(scores: Sequence[np.ndarray], centres: Sequence[tuple[float, float]]) -> np.ndarray:
    """Scores (n,) of `lower_of`: the lowest of (score − median) / spread; NaN where one is missing."""
    centred = []
    for values, (median, spread) in zip(scores, centres, strict=True):
        centred.append((values - median) / spread)
    return np.min(centred, axis=0)
