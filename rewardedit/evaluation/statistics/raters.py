"""Reliability of raters: the intraclass correlations ICC(2,1) and ICC(2,k) of Shrout and Fleiss (1979)."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.stats import f

from rewardedit.evaluation.statistics.bootstrap import (
    NONE,
    Clusters,
    Estimate,
    cluster_index,
    cluster_names,
    drawn_counts,
    percentile_interval,
)

DRAWS = 10_000  # of the mean squares, for an interval


@dataclass(frozen=True)
class Reliability:
    """The share of the variance of ratings that lies between items, each in (-∞, 1]."""

    single: Estimate  # ICC(2,1), of one rater's rating
    average: Estimate  # ICC(2,k), of the mean of an item's raters
    raters: int
    k: float  # ratings an item, by their harmonic mean

    def as_dict(self) -> dict[str, Any]:
        both = {"single": self.single.as_dict(), "average": self.average.as_dict()}
        return {**both, "raters": self.raters, "k": self.k}


def reliability(
    ratings: np.ndarray,
    cluster: Clusters | None = None,
    compat: Literal["f"] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Reliability:
    """Absolute agreement of raters who are a sample of all raters, as the items are of all items.

    Where every rater rated every item, values are those of the two-way analysis of variance (McGraw and Wong
    1996, ICC(A,1) and ICC(A,k)), and intervals generalized ones (Tian and Cappelleri 2004). With missing
    ratings the variances of items, raters and errors are Henderson's moment estimates (method 1), the same
    where none is missing, and the interval is from resamples of source images; so it is where source images
    are given. Such an interval holds for these raters, not for others.

    Args:
        ratings: (items, raters); NaN where there is none. Items without a rating are left out.
        cluster: (items,) the source image of each item; None if each item has its own.
        compat: "f" for McGraw and Wong's interval of a complete table, which pingouin and others give. With
            three raters of unlike strictness and 560 items it holds the true value in 81 of 100 cases
            (benchmarks/results/coverage.json).

    Returns:
        NaN, with the reason, if the ratings do not vary.

    Raises:
        ValueError: on another shape, or fewer than two items with two ratings.
    """
    ratings = np.asarray(ratings, dtype=float)
    if ratings.ndim != 2 or ratings.shape[1] < 2:
        raise ValueError(f"ratings: expected (items, raters) with at least two raters; got {ratings.shape}")
    names = cluster_names(cluster, len(ratings))
    if len(names) != len(ratings):
        raise ValueError(f"cluster: expected one of each of {len(ratings)} items; got {len(names)}")
    rated = np.isfinite(ratings).any(1)
    ratings = ratings[rated]
    names = names[rated]
    known = np.isfinite(ratings)
    if (known.sum(1) >= 2).sum() < 2:
        raise ValueError("ratings: expected at least two items with two ratings each; there are fewer")

    k = float(len(ratings) / (1 / known.sum(1)).sum())
    raters = int(known.any(0).sum())
    if np.nanmax(ratings) == np.nanmin(ratings):
        clusters = len(set(names))
        nothing = Estimate(
            float("nan"), NONE, len(ratings), clusters, reason="undefined: all ratings are equal"
        )
        return Reliability(nothing, nothing, raters, k)
    if known.all() and cluster is None:
        return Reliability(*_by_analysis_of_variance(ratings, compat, seed), raters, k)
    return Reliability(*_by_moments(ratings, names, resamples, seed), raters, k)


def _by_analysis_of_variance(
    ratings: np.ndarray, compat: Literal["f"] | None, seed: int
) -> tuple[Estimate, Estimate]:
    """ICC(2,1) and ICC(2,k) of a complete table, with intervals and the F-test's p-value."""
    n, k = ratings.shape
    mean = ratings.mean()
    of_items = ratings.mean(1)
    of_raters = ratings.mean(0)
    items = k * ((of_items - mean) ** 2).sum() / (n - 1)
    raters = n * ((of_raters - mean) ** 2).sum() / (k - 1)
    rest = ratings - of_items[:, None] - of_raters[None] + mean
    error = (rest**2).sum() / ((n - 1) * (k - 1))
    value = (items - error) / (items + (k - 1) * error + k * (raters - error) / n)
    if 1 - value < 1e-12:
        reason = "no interval: all raters agree"
        both = Estimate(1.0, NONE, n, n, reason=reason)
        return both, both

    p = float(f.sf(items / error, n - 1, (n - 1) * (k - 1))) if error else 0.0
    ends = _f_interval if compat == "f" else _generalized_interval
    low, high = ends(n, k, items, raters, error, value, seed)
    single = Estimate(float(value), (low, high), n, n, p)
    steps = tuple(float(_of_mean(end, k)) for end in (value, low, high))
    return single, Estimate(steps[0], steps[1:], n, n, p)


def _generalized_interval(
    n: int, k: int, items: float, raters: float, error: float, value: float, seed: int
) -> tuple[float, float]:
    """Percentiles of ICC(2,1) over mean squares that are drawn as χ² says they may have been."""
    rng = np.random.default_rng(seed)
    freedom = np.array([n - 1, k - 1, (n - 1) * (k - 1)])
    squares = np.array([items, raters, error])
    drawn = (squares * freedom)[:, None] / rng.chisquare(freedom[:, None], (3, DRAWS))
    of_items = drawn[0] - drawn[2]
    values = of_items / (of_items + k * drawn[2] + k * (drawn[1] - drawn[2]) / n)
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _f_interval(
    n: int, k: int, items: float, raters: float, error: float, value: float, seed: int
) -> tuple[float, float]:
    """The interval of McGraw and Wong (1996, Table 7) with approximate degrees of freedom."""
    of_rater = k * value / (n * (1 - value))
    of_error = 1 + k * value * (n - 1) / (n * (1 - value))
    denominator = (of_rater * raters) ** 2 / (k - 1) + (of_error * error) ** 2 / ((n - 1) * (k - 1))
    freedom = (of_rater * raters + of_error * error) ** 2 / denominator
    below = f.ppf(0.975, n - 1, freedom)
    above = f.ppf(0.975, freedom, n - 1)
    others = k * raters + (k * n - k - n) * error
    low = n * (items - below * error) / (below * others + n * items)
    high = n * (above * items - error) / (others + n * above * items)
    return float(low), float(high)


def _of_mean(single: float, k: float) -> float:
    """ICC(2,k) from ICC(2,1), by Spearman and Brown."""
    return k * single / (1 + (k - 1) * single)


def _by_moments(
    ratings: np.ndarray, names: np.ndarray, resamples: int, seed: int
) -> tuple[Estimate, Estimate]:
    """ICC(2,1) and ICC(2,k) of a table with gaps, with intervals over source images."""
    n = len(ratings)
    index, clusters = cluster_index(names)
    once = _moments(ratings, np.ones((1, n)))[0]
    if clusters < 2:
        reason = "no interval: all items are of one source image"
        single, average = (Estimate(float(value), NONE, n, clusters, reason=reason) for value in once)
        return single, average
    weights = np.stack([counts[index] for counts in drawn_counts(clusters, resamples, seed)])
    drawn = _moments(ratings, weights)
    estimates = []
    for value, values in zip(once, drawn.T, strict=True):
        estimates.append(Estimate(float(value), percentile_interval(values, clusters), n, clusters))
    single, average = estimates
    return single, average


def _moments(ratings: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """ICC(2,1) and ICC(2,k), (r, 2), for r rows of weights of the items (r, n).

    Four sums of squares (of all ratings, of the totals of items, of raters, and of the grand total, each
    over the number of ratings in it) have expectations that are linear in μ² and the variances of items,
    raters and errors.
    """
    known = np.isfinite(ratings)
    centred = np.where(known, ratings - np.nanmean(ratings), 0)
    each = known.sum(1)
    of_raters = weights @ known
    n = of_raters.sum(1)
    items = weights.sum(1)
    raters = (of_raters > 0).sum(1)
    total = weights @ centred
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample may lack a rater
        squares = np.stack(
            [
                weights @ (centred**2).sum(1),
                weights @ (centred.sum(1) ** 2 / each),
                np.where(of_raters > 0, total**2 / of_raters, 0).sum(1),
                total.sum(1) ** 2 / n,
            ],
            axis=1,
        )
    shares = (weights @ each**2 / n, (of_raters**2).sum(1) / n)
    expected = np.empty((len(weights), 4, 4))
    expected[:, 0] = n[:, None]
    expected[:, 1] = np.stack([n, n, items, items], axis=1)
    expected[:, 2] = np.stack([n, raters, n, raters], axis=1)
    expected[:, 3] = np.stack([n, *shares, np.ones(len(n))], axis=1)

    moments = np.full((len(weights), 2), np.nan)
    usable = (raters > 1) & (n > items)  # otherwise errors cannot be told from items or raters
    usable &= np.abs(np.linalg.det(expected / n[:, None, None])) > 1e-14
    solved = np.linalg.solve(expected[usable], squares[usable][:, :, None])[:, :, 0]
    k = items[usable] / (weights[usable] @ (1 / each))
    of_items, of_rater, of_error = solved[:, 1:].T
    with np.errstate(invalid="ignore", divide="ignore"):
        moments[usable, 0] = of_items / (of_items + of_rater + of_error)
        moments[usable, 1] = of_items / (of_items + (of_rater + of_error) / k)
    return moments
