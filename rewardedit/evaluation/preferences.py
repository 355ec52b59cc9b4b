"""Agreement of metrics with people's preferences: BPM's human alignment test and ground-truth test (Li et al.
2025, Sec. 4.1).

An edit without a score counts as worse than any that has one: if a metric cannot find the requested object,
that is, as a rule, the edit's fault.
"""

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from rewardedit.evaluation.statistics import Estimate, clustered_mean

Values = Sequence[float] | np.ndarray
# A metric's ties on pairs of which people prefer one: wrong, half right, or left out. "answer": people's ties
# count too, and a tie is right where both rate equal.
Ties = Literal["wrong", "half", "left out", "answer"]


@dataclass(frozen=True)
class Alignment:
    """Share of pairs of edits by one instruction in which a metric prefers the edit that people prefer."""

    share: float  # share of n pairs; NaN if n is 0
    n: int  # pairs that people do not rate equal
    ties: int  # those of them that the metric rates equal: they count as wrong
    dropped: int  # pairs that people rate equal, or nearly

    def as_dict(self) -> dict:
        return asdict(self)


def agreement(
    scores_a: Values,
    scores_b: Values,
    ratings_a: Values,
    ratings_b: Values,
    least: float = 0.0,
    ties: Ties = "wrong",
) -> np.ndarray:
    """Agreement (n,): 1 where the metric prefers what people prefer, 0 where it does not or rates both equal;
    NaN where people rate them equal, or their ratings differ by less than `least`.

    Args:
        scores_a: (n,) scores of an editor's edits; NaN: not scored.
        scores_b: (n,) scores of another editor's edits of the same rows; NaN: not scored.
        ratings_a: (n,) people's ratings of the first editor's edits.
        ratings_b: (n,) people's ratings of the other's.
        least: by "answer", ratings that differ by less are equal.
        ties: the policy for ties, BPM's by default.

    Raises:
        ValueError: on values of different length, or ratings that are not finite.
    """
    score_a = _worst_if_not_scored(scores_a)
    score_b = _worst_if_not_scored(scores_b)
    rating_a = np.asarray(ratings_a, dtype=float)
    rating_b = np.asarray(ratings_b, dtype=float)
    shapes = {score_a.shape, score_b.shape, rating_a.shape, rating_b.shape}
    if len(shapes) > 1 or score_a.ndim != 1:
        raise ValueError(f"expected four times (n,) values; got {sorted(shapes)}")
    if not np.isfinite(rating_a - rating_b).all():
        raise ValueError("expected a rating of every edit; some are not finite")

    said = np.where(score_a == score_b, 0.0, np.where(score_a > score_b, 1.0, -1.0))
    wanted = np.sign(rating_a - rating_b)
    apart = (wanted != 0) & (np.abs(rating_a - rating_b) >= least)
    if ties == "answer":
        return (said == np.where(apart, wanted, 0)).astype(float)
    right = (said == wanted).astype(float)
    right[said == 0] = {"wrong": 0.0, "half": 0.5, "left out": np.nan}[ties]
    return np.where(apart, right, np.nan)


def pairwise_accuracy(
    scores_a: Values,
    scores_b: Values,
    ratings_a: Values,
    ratings_b: Values,
    cluster: Sequence[Hashable] | np.ndarray | None = None,
    least: float = 0.0,
    ties: Ties = "wrong",
    seed: int = 0,
) -> Estimate:
    """The mean of `agreement` and its interval over source images.

    Two scorers are compared by `paired_bootstrap` of their agreements, over pairs that count for both.

    Args:
        cluster: (n,) the source image of each pair; None if each pair has its own.
    """
    right = agreement(scores_a, scores_b, ratings_a, ratings_b, least, ties)
    return clustered_mean(right, cluster, seed)


def _worst_if_not_scored(scores: Values) -> np.ndarray:
    return np.nan_to_num(np.asarray(scores, dtype=float), nan=-np.inf)


def alignment(
    scores_a: Values, scores_b: Values, ratings_a: Values, ratings_b: Values, least: float = 0.0
) -> Alignment:
    """The human alignment test of two editors; arguments and errors are those of `agreement`."""
    right = agreement(scores_a, scores_b, ratings_a, ratings_b, least)
    counted = ~np.isnan(right)
    same = _worst_if_not_scored(scores_a) == _worst_if_not_scored(scores_b)
    n = int(counted.sum())
    share = float(right[counted].mean()) if n else float("nan")
    return Alignment(share, n, int((same & counted).sum()), len(right) - n)


def alignment_of_editors(
    scores: Mapping[str, Values], ratings: Mapping[str, Values], least: float = 0.0
) -> dict[tuple[str, str], Alignment]:
    """The human alignment test of every two editors, by their names."""
    alignments = {}
    for a, b in itertools.combinations(scores, 2):
        alignments[a, b] = alignment(scores[a], scores[b], ratings[a], ratings[b], least)
    return alignments


def mean_share(alignments: Mapping[tuple[str, str], Alignment]) -> float:
    """The mean over pairs of editors, as the paper's "Average"."""
    return float(np.mean([alignment.share for alignment in alignments.values() if alignment.n]))


def favours(scores: Mapping[str, Values]) -> dict[str, np.ndarray]:
    """The ground-truth test, row by row: (n,) of each kind of image, 1 where it has the highest score, 0
    elsewhere; equal highest scores share their row.

    Args:
        scores: (n,) of each kind, e.g. "ground truth", "noise", "generated"; NaN: not scored.
    """
    table = np.stack(list(map(_worst_if_not_scored, scores.values())))
    best = table == table.max(0)
    return dict(zip(scores, best / best.sum(0), strict=True))


def favoured(scores: Mapping[str, Values]) -> dict[str, float]:
    """The share of rows in which each kind of image gets the highest score, by `favours`; they sum to 1."""
    return {name: float(values.mean()) for name, values in favours(scores).items()}


def better_equal_worse(before: Values, after: Values, tolerance: float = 0.0) -> tuple[float, float, float]:
    """Shares of rows in which a second edit is better than the first, equal up to `tolerance`, and worse, as
    in Table 15 of the paper.
    """
    gain = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    if not np.isfinite(gain).all():
        raise ValueError("expected finite values; leave invalid scores out first")
    up = float((gain > tolerance).mean())
    down = float((gain < -tolerance).mean())
    return up, 1 - up - down, down
