"""Correlations of two ratings of the same items, with intervals over source images.

A resample only changes how often each item counts. Values are ranked once; with the counts as weights,
the mean rank of the items of one value is the weight below it plus half of its own, and ρ follows from these
to the last rounding as if the resample had been ranked anew.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy.stats import kendalltau, pearsonr, spearmanr

from rewardedit.evaluation.statistics.bootstrap import (
    NONE,
    Clusters,
    Comparison,
    Estimate,
    Values,
    cluster_index,
    cluster_names,
    drawn_counts,
    percentile_interval,
    require_two,
    two_sided_p,
)

Method = Literal["spearman", "kendall", "pearson"]
Weighted = Callable[[np.ndarray], float]  # a correlation from the items' weights (n,), in [-1, 1]; or NaN


def correlation(
    a: Values,
    b: Values,
    cluster: Clusters | None = None,
    method: Method = "spearman",
    resamples: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Spearman's ρ with ties at their mean rank, Kendall's τ-b or Pearson's r, in [-1, 1].

    The interval is from resamples of whole source images. The p-value is scipy's if each item has a source
    image of its own, and from the resamples otherwise, as scipy's takes items for independent. Kendall's τ is
    computed anew for each resample: a minute and more for 100,000 items, where the others take seconds.

    Args:
        a: (n,) values of the items, e.g. scores.
        b: (n,) other values of the same items, e.g. people's ratings.
        cluster: (n,) the source image of each item; None if each item has its own.

    Returns:
        NaN, with the reason, if one of them does not vary; no interval if all items are of one source image.

    Raises:
        ValueError: on values of different length or that are not finite, or fewer than three items.
    """
    a, b, names = checked(a, b, cluster)
    index, clusters = cluster_index(names)
    reason = constant(a, b)
    if reason:
        return Estimate(float("nan"), NONE, len(a), clusters, reason=reason)
    statistic = WEIGHTED[method](a, b)
    value = statistic(np.ones(len(a)))
    if clusters < 2:
        return Estimate(
            value, NONE, len(a), clusters, reason="no interval: all items are of one source image"
        )

    drawn = np.array([statistic(counts[index]) for counts in drawn_counts(clusters, resamples, seed)])
    p = two_sided_p(drawn, clusters) if clusters < len(a) else float(TESTS[method](a, b).pvalue)
    return Estimate(value, percentile_interval(drawn, clusters), len(a), clusters, p)


def spearman(
    a: Values, b: Values, cluster: Clusters | None = None, resamples: int = 1000, seed: int = 0
) -> Estimate:
    """Spearman's ρ by `correlation`."""
    return correlation(a, b, cluster, "spearman", resamples, seed)


def spearman_difference(
    a: Values, b: Values, truth: Values, cluster: Clusters, resamples: int = 1000, seed: int = 0
) -> Comparison:
    """The difference ρ(a, truth) − ρ(b, truth), its 95 % interval and p-value, whole source images drawn with
    replacement, the same ones for both.

    Args:
        a: (n,) values of the items, e.g. a scorer's.
        b: (n,) another scorer's values of the same items.
        truth: (n,) values that both are correlated with, e.g. people's.
        cluster: (n,) the source image of each item.

    Raises:
        ValueError: as `correlation`, and on fewer than two source images.
    """
    first, truth_of_first, names = checked(a, truth, cluster)
    second, _, _ = checked(b, truth, cluster)
    require_two(names)
    rho_a = weighted_spearman(first, truth_of_first)
    rho_b = weighted_spearman(second, truth_of_first)
    index, clusters = cluster_index(names)
    drawn = []
    for counts in drawn_counts(clusters, resamples, seed):
        weight = counts[index]
        drawn.append(rho_a(weight) - rho_b(weight))

    once = np.ones(len(first))
    return compared(rho_a(once), rho_b(once), np.array(drawn), len(first), clusters)


def compared(a: float, b: float, drawn: np.ndarray, n: int, clusters: int) -> Comparison:
    """The comparison of two values by resampled differences."""
    return Comparison(
        a, b, a - b, percentile_interval(drawn, clusters), n, clusters, two_sided_p(drawn, clusters)
    )


def checked(a: Values, b: Values, cluster: Clusters | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Paired values and the names of their source images, as arrays.

    Raises:
        ValueError: as `correlation`.
    """
    a = np.asarray(a, dtype=float)
    b = np.asarray(b, dtype=float)
    names = cluster_names(cluster, len(a))
    if a.shape != b.shape or a.ndim != 1 or len(names) != len(a) or len(a) < 3:
        raise ValueError(
            f"expected paired (n,) values of at least 3 items; got {a.shape}, {b.shape}, {names.shape}"
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("expected finite values; leave invalid scores out first")
    return a, b, names


def constant(a: np.ndarray, b: np.ndarray) -> str:
    """The reason why a correlation is undefined; empty if both vary."""
    named = [name for name, values in (("first", a), ("second", b)) if np.ptp(values) == 0]
    return f"undefined: all {' and all '.join(named)} values are equal" if named else ""


def weighted_spearman(a: np.ndarray, b: np.ndarray) -> Weighted:
    """Spearman's ρ as a function of the items' weights."""
    _, of_a = np.unique(a, return_inverse=True)
    _, of_b = np.unique(b, return_inverse=True)
    order = np.argsort(of_a, kind="stable")  # neighbours in memory are neighbours in rank
    of_a = of_a[order]
    of_b = of_b[order]

    def rho(weight: np.ndarray) -> float:
        weight = weight[order]
        rank_a, spread_a = _centred_ranks(of_a, weight)
        rank_b, spread_b = _centred_ranks(of_b, weight)
        together = np.dot(weight * rank_a[of_a], rank_b[of_b])
        return _ratio(together, spread_a, spread_b)

    return rho


def _centred_ranks(group: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, float]:
    """Mean rank of each distinct value less the mean of all, and the weighted sum of their squares."""
    weights = np.bincount(group, weight)
    up_to = np.cumsum(weights)
    rank = up_to - (weights + up_to[-1]) / 2
    return rank, float(np.dot(weights, rank**2))


def weighted_pearson(a: np.ndarray, b: np.ndarray) -> Weighted:
    """Pearson's r as a function of the items' weights."""
    a = a - a.mean()
    b = b - b.mean()

    def r(weight: np.ndarray) -> float:
        total = max(weight.sum(), 1.0)
        kept_a = a - np.dot(weight, a) / total
        kept_b = b - np.dot(weight, b) / total
        weighted_a = weight * kept_a
        return _ratio(np.dot(weighted_a, kept_b), np.dot(weighted_a, kept_a), np.dot(weight, kept_b**2))

    return r


def weighted_kendall(a: np.ndarray, b: np.ndarray) -> Weighted:
    """Kendall's τ-b as a function of the items' whole-numbered weights."""

    def tau(weight: np.ndarray) -> float:
        times = weight.astype(int)
        first = np.repeat(a, times)
        second = np.repeat(b, times)
        if not len(first) or constant(first, second):
            return float("nan")
        return float(kendalltau(first, second).statistic)

    return tau


def _ratio(together: float, spread_a: float, spread_b: float) -> float:
    if spread_a <= 0 or spread_b <= 0:
        return float("nan")
    return float(min(1.0, max(-1.0, together / np.sqrt(spread_a * spread_b))))


WEIGHTED = {"spearman": weighted_spearman, "kendall": weighted_kendall, "pearson": weighted_pearson}
TESTS = {"spearman": spearmanr, "kendall": kendalltau, "pearson": pearsonr}
