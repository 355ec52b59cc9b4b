"""Paired comparisons and rank correlations with bootstrap intervals, clustered by source image.

Intervals are from the 2.5th to the 97.5th percentile of resamples. For fewer than `FEW` source images these
are too short (30 images: 91 to 94 % of them hold the truth), and percentiles further out are used.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy.stats import bootstrap, norm, rankdata, t
from torch import Tensor

FEW = 100  # source images, below which intervals are widened


@dataclass(frozen=True)
class Comparison:
    """The difference `a − b` of two variants on the same items."""

    mean_a: float  # of a; for rank correlations ρ itself
    mean_b: float
    difference: float
    ci95: tuple[float, float]  # of the difference
    n: int  # items
    clusters: int  # source images

    def as_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Correlation:
    """Spearman's ρ of two rankings of the same items."""

    rho: float  # NaN if one of them does not vary
    ci95: tuple[float, float]  # NaN if all items are of one source image
    n: int

    def as_dict(self) -> dict:
        """The fields, with None in place of NaN, which JSON does not have."""
        rho, low, high = (value if np.isfinite(value) else None for value in (self.rho, *self.ci95))
        return {"rho": rho, "ci95": (low, high), "n": self.n}


def valid_means(values: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Means (of (n,) each) over the rows that are not NaN; None if there are none."""
    means: dict[str, float | None] = {}
    for name, value in values.items():
        means[name] = float(value.nanmean()) if value.isfinite().any() else None
    return means


def spearman(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    cluster: Sequence[Hashable] | np.ndarray | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Correlation:
    """Spearman's ρ with ties at their mean rank; percentile 95 % interval,
    whole source images drawn with replacement.

    Args:
        a, b: (n,) values of the same items, e.g. scores and people's ratings.
        cluster: (n,) the source image of each item; None if each item has its own.

    Raises:
        ValueError: on values of different length or that are not finite, or fewer than three items.
    """
    a = np.asarray(a, dtype=float)
    b = np.asarray(b, dtype=float)
    names = _names(cluster, len(a))
    if a.shape != b.shape or a.ndim != 1 or len(names) != len(a) or len(a) < 3:
        raise ValueError(
            f"expected paired (n,) values of at least 3 items; got {a.shape}, {b.shape}, {names.shape}"
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("expected finite values; leave invalid scores out first")
    if len(set(names)) < 2:
        return Correlation(_rho(a, b), (float("nan"), float("nan")), len(a))
    drawn = _resampled(names, resamples, seed)
    found = np.asarray([_rho(a[rows], b[rows]) for rows in drawn])
    return Correlation(_rho(a, b), _interval(found, len(set(names))), len(a))


def spearman_difference(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    truth: Sequence[float] | np.ndarray,
    cluster: Sequence[Hashable] | np.ndarray,
    resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Percentile 95 % interval of ρ(a, truth) − ρ(b, truth), whole source images drawn with replacement, the
    same ones for both.

    Args:
        a, b, truth: (n,) values of the same items, e.g. two scorers' and people's.
        cluster: (n,) the source image of each item.

    Raises:
        ValueError: as `spearman`, and on fewer than two source images.
    """
    rho_a, rho_b = (spearman(values, truth, cluster, resamples=1).rho for values in (a, b))
    a, b, truth = (np.asarray(values, dtype=float) for values in (a, b, truth))
    names = _names(cluster, len(a))
    _require_two(names)
    drawn = _resampled(names, resamples, seed)
    found = np.asarray([_rho(a[rows], truth[rows]) - _rho(b[rows], truth[rows]) for rows in drawn])
    clusters = len(np.unique(names))
    return Comparison(rho_a, rho_b, rho_a - rho_b, _interval(found, clusters), len(a), clusters)


def _names(cluster: Sequence[Hashable] | np.ndarray | None, n: int) -> np.ndarray:
    """The source image of each of n items, by names of any kind: numpy would make tuples a second axis."""
    return np.fromiter(range(n) if cluster is None else cluster, dtype=object)


def _require_two(names: np.ndarray) -> None:
    if len(set(names)) < 2:
        raise ValueError(f"expected at least two source images; got {len(set(names))}")


def _resampled(names: np.ndarray, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Indices of the items of clusters that are drawn with replacement."""
    _, index = np.unique(names, return_inverse=True)
    members = np.split(np.argsort(index, kind="stable"), np.cumsum(np.bincount(index))[:-1])
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.concatenate([members[k] for k in rng.integers(len(members), size=len(members))])


def _interval(resamples: np.ndarray, clusters: int) -> tuple[float, float]:
    """The 95 % interval of resampled values; NaNs among them are left out.

    For few clusters: the expanded percentile interval (Hesterberg 2015, Sec. 5.2), whose outer share a side
    is Φ(−√(k / (k − 1)) · t) with t Student's 97.5 % quantile at k − 1 degrees of freedom.
    """
    outside = 2.5
    if clusters < FEW:
        quantile = t.ppf(0.975, clusters - 1)
        outside = 100 * norm.cdf(-np.sqrt(clusters / (clusters - 1)) * quantile)
    low, high = np.nanpercentile(resamples, [outside, 100 - outside])
    return float(low), float(high)


def _rho(a: np.ndarray, b: np.ndarray) -> float:
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])


def paired_bootstrap(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    cluster: Sequence[Hashable] | np.ndarray | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Percentile 95 % interval of mean(a) − mean(b), with whole source images drawn with replacement.

    Args:
        a, b: (n,) values of the two variants on the same items.
        cluster: (n,) the source image of each item; None if each item has its own.

    Raises:
        ValueError: on variants of different length, fewer than two clusters, or values that are not finite.
    """
    difference = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    names = _names(cluster, len(difference))
    if np.shape(a) != np.shape(b) or np.ndim(a) != 1 or len(names) != len(difference):
        raise ValueError(
            f"expected paired (n,) values and clusters; got {np.shape(a)}, {np.shape(b)}, {np.shape(names)}"
        )
    if not np.isfinite(difference).all():
        raise ValueError("expected finite values; leave invalid scores out before comparing")
    _require_two(names)
    _, index = np.unique(names, return_inverse=True)
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
        _interval(drawn.bootstrap_distribution, len(total)),
        len(difference),
        len(total),
    )


def difference_of_groups(
    values: Sequence[float] | np.ndarray,
    in_a: Sequence[bool] | np.ndarray,
    cluster: Sequence[Hashable] | np.ndarray,
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
    names = _names(cluster, len(values))
    if not values.shape == in_a.shape == names.shape or values.ndim != 1:
        raise ValueError(f"expected (n,) values, groups and clusters; got {values.shape}, {in_a.shape}")
    if not np.isfinite(values).all():
        raise ValueError("expected finite values; leave invalid scores out before comparing")
    if in_a.all() or not in_a.any():
        raise ValueError("expected items in both groups; one has none")
    _require_two(names)
    _, index = np.unique(names, return_inverse=True)
    k = int(index.max()) + 1
    total_a = np.bincount(index, values * in_a, k)
    total_b = np.bincount(index, values * ~in_a, k)
    count_a = np.bincount(index, in_a, k)
    count_b = np.bincount(index, ~in_a, k)
    rng = np.random.default_rng(seed)
    drawn = np.stack([np.bincount(rng.integers(k, size=k), minlength=k) for _ in range(resamples)])
    with np.errstate(invalid="ignore"):  # a resample may hold none of a group
        differences = drawn @ total_a / (drawn @ count_a) - drawn @ total_b / (drawn @ count_b)
    mean_a = float(values[in_a].mean())
    mean_b = float(values[~in_a].mean())
    return Comparison(mean_a, mean_b, mean_a - mean_b, _interval(differences, k), len(values), k)
