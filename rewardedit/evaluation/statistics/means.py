"""Means and their differences, with bootstrap intervals over source images."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import bootstrap
from torch import Tensor

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

AT_ONCE = 500  # resamples


def valid_means(values: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Means (of (n,) each) over the rows that are not NaN; None if there are none."""
    means: dict[str, float | None] = {}
    for name, value in values.items():
        means[name] = float(value.nanmean()) if value.isfinite().any() else None
    return means


def paired_bootstrap(
    a: Values,
    b: Values,
    cluster: Clusters | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Percentile 95 % interval of mean(a) − mean(b), with whole source images drawn with replacement.

    Args:
        a: (n,) values of one variant.
        b: (n,) values of the other variant on the same items.
        cluster: (n,) the source image of each item; None if each item has its own.

    Raises:
        ValueError: on variants of different length, fewer than two clusters, or values that are not finite.
    """
    difference = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    names = cluster_names(cluster, len(difference))
    if np.shape(a) != np.shape(b) or np.ndim(a) != 1 or len(names) != len(difference):
        raise ValueError(
            f"expected paired (n,) values and clusters; got {np.shape(a)}, {np.shape(b)}, {np.shape(names)}"
        )
    if not np.isfinite(difference).all():
        raise ValueError("expected finite values; leave invalid scores out before comparing")
    require_two(names)

    index, clusters = cluster_index(names)
    total = np.bincount(index, difference)
    count = np.bincount(index)
    drawn = bootstrap(
        (total, count),
        lambda total, count, axis: total.sum(axis) / count.sum(axis),
        paired=True,
        n_resamples=resamples,
        batch=500,
        method="percentile",
        rng=np.random.default_rng(seed),
    )

    return Comparison(
        float(np.mean(a)),
        float(np.mean(b)),
        float(difference.mean()),
        # scipy's own interval is that of percentile 2.5000000000000022: other last digits.
        percentile_interval(drawn.bootstrap_distribution, clusters),
        len(difference),
        clusters,
        two_sided_p(drawn.bootstrap_distribution, clusters),
    )


def clustered_mean(values: Values, cluster: Clusters | None = None, seed: int = 0) -> Estimate:
    """The mean of values of which NaNs are left out, e.g. the share of right decisions; its interval as in
    `paired_bootstrap`.

    Returns:
        NaN, with the reason, if there are no values; no interval if all are of one source image.
    """
    values = np.asarray(values, dtype=float)
    names = cluster_names(cluster, len(values))
    known = ~np.isnan(values)
    values = values[known]
    names = names[known]
    clusters = len(set(names))
    if not clusters:
        return Estimate(float("nan"), NONE, 0, 0, reason="undefined: there are no items")
    if clusters < 2:
        reason = "no interval: all items are of one source image"
        return Estimate(float(values.mean()), NONE, len(values), clusters, reason=reason)
    difference = paired_bootstrap(values, np.zeros(len(values)), names, seed=seed)
    return Estimate(difference.mean_a, difference.ci95, difference.n, difference.clusters)


def difference_of_groups(
    values: Values,
    in_a: Sequence[bool] | np.ndarray,
    cluster: Clusters,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Percentile 95 % interval of the mean of one group of items minus that of the others, with whole source
    images, which may have items in both groups, drawn with replacement.

    Args:
        values: (n,) of all items.
        in_a: (n,) True for the items of the first group.
        cluster: (n,) the source image of each item.

    Raises:
        ValueError: on values of different length or that are not finite, a group without items, or fewer than
            two source images.
    """
    values = np.asarray(values, dtype=float)
    in_a = np.asarray(in_a, dtype=bool)
    names = cluster_names(cluster, len(values))
    if not values.shape == in_a.shape == names.shape or values.ndim != 1:
        raise ValueError(f"expected (n,) values, groups and clusters; got {values.shape}, {in_a.shape}")
    if not np.isfinite(values).all():
        raise ValueError("expected finite values; leave invalid scores out before comparing")
    if in_a.all() or not in_a.any():
        raise ValueError("expected items in both groups; one has none")
    require_two(names)

    index, k = cluster_index(names)
    total_a = np.bincount(index, values * in_a, k)
    total_b = np.bincount(index, values * ~in_a, k)
    count_a = np.bincount(index, in_a, k)
    count_b = np.bincount(index, ~in_a, k)
    drawn = np.stack(list(drawn_counts(k, resamples, seed)))
    with np.errstate(invalid="ignore"):  # a resample may hold none of a group
        differences = drawn @ total_a / (drawn @ count_a) - drawn @ total_b / (drawn @ count_b)

    mean_a = float(values[in_a].mean())
    mean_b = float(values[~in_a].mean())
    return Comparison(
        mean_a,
        mean_b,
        mean_a - mean_b,
        percentile_interval(differences, k),
        len(values),
        k,
        two_sided_p(differences, k),
    )


def clustered_means(
    columns: np.ndarray, cluster: Clusters, resamples: int = 10_000, seed: int = 0
) -> list[Estimate]:
    """Means of several columns, e.g. of differences, from the same resamples of whole source images.

    Args:
        columns: (n, m) values; NaNs are left out.
        cluster: (n,) the source image of each row.

    Returns:
        For each column its mean, 95 % interval and p-value of a mean of 0, as in `paired_bootstrap`; NaN with
        the reason where it has no values, no interval where all are of one source image.

    Raises:
        ValueError: on another shape.
    """
    columns = np.asarray(columns, dtype=float)
    names = cluster_names(cluster, len(columns))
    if columns.ndim != 2 or len(names) != len(columns):
        raise ValueError(f"expected (n, m) values and n clusters; got {columns.shape} and {names.shape}")
    known = ~np.isnan(columns)
    index, clusters = cluster_index(names)
    totals = np.zeros((clusters, columns.shape[1]))
    counts = np.zeros_like(totals)
    np.add.at(totals, index, np.where(known, columns, 0.0))
    np.add.at(counts, index, known)

    drawn = []
    rng = np.random.default_rng(seed)
    for first in range(0, resamples, AT_ONCE):
        size = min(AT_ONCE, resamples - first)
        # each resample's source images, numbered apart from those of the others, and counted together
        chosen = rng.integers(clusters, size=(size, clusters)) + clusters * np.arange(size)[:, None]
        times = np.bincount(chosen.ravel(), minlength=size * clusters).reshape(size, clusters).astype(float)
        with np.errstate(invalid="ignore"):  # a resample may hold none of a column
            drawn.append((times @ totals) / (times @ counts))
    resampled = np.concatenate(drawn)
    return [_estimate(totals[:, i], counts[:, i], resampled[:, i]) for i in range(columns.shape[1])]


def _estimate(total: np.ndarray, count: np.ndarray, resampled: np.ndarray) -> Estimate:
    n = int(count.sum())
    clusters = int((count > 0).sum())
    if not n:
        return Estimate(float("nan"), NONE, 0, 0, reason="undefined: there are no items")
    value = float(total.sum() / n)
    if clusters < 2:
        return Estimate(value, NONE, n, clusters, reason="no interval: all items are of one source image")
    return Estimate(
        value, percentile_interval(resampled, clusters), n, clusters, two_sided_p(resampled, clusters)
    )
