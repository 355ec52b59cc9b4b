"""Resampling of whole source images: results, weights of the resamples, intervals and p-values.

Intervals are from the 2.5th to the 97.5th percentile of resamples. For fewer than `FEW` source images these
are too short (30 images: 91 to 94 % of them hold the truth), and percentiles further out are used.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import norm, t

FEW = 100  # source images, below which intervals are widened
NONE = (float("nan"), float("nan"))  # the interval where there is none
Values = Sequence[float] | np.ndarray
Clusters = Sequence[Hashable] | np.ndarray


@dataclass(frozen=True)
class Estimate:
    """A statistic of some items, with its interval over their source images."""

    value: float  # NaN if it is undefined
    ci95: tuple[float, float]  # NaN if there is none
    n: int  # items
    clusters: int  # source images
    p: float | None = None  # two-sided, of the value 0; None where that is not tested
    reason: str = ""  # why value or interval are NaN, or what was left out

    def as_dict(self, name: str = "value") -> dict[str, Any]:
        """The fields, the value by this name, with None in place of NaN, which JSON does not have."""
        value, low, high = (x if np.isfinite(x) else None for x in (self.value, *self.ci95))
        rest = {"n": self.n, "clusters": self.clusters, "p": self.p}
        return {name: value, "ci95": (low, high), **rest} | ({"reason": self.reason} if self.reason else {})


@dataclass(frozen=True)
class Comparison:
    """The difference `a − b` of two variants on the same items."""

    mean_a: float  # mean of a; for rank correlations ρ itself
    mean_b: float
    difference: float
    ci95: tuple[float, float]  # 95 % interval of the difference
    n: int  # items
    clusters: int  # source images
    p: float | None  # two-sided, of no difference; None if no resample has one

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def cluster_names(cluster: Clusters | None, n: int) -> np.ndarray:
    """The source image of each of n items, by names of any kind: numpy would make tuples a second axis."""
    return np.fromiter(range(n) if cluster is None else cluster, dtype=object)


def cluster_index(names: np.ndarray) -> tuple[np.ndarray, int]:
    """The number of each item's source image, from 0, and how many there are."""
    distinct, index = np.unique(names, return_inverse=True)
    return index, len(distinct)


def require_two(names: np.ndarray) -> None:
    """Raises ValueError where all items are of one source image."""
    if len(set(names)) < 2:
        raise ValueError(f"expected at least two source images; got {len(set(names))}")


def drawn_counts(clusters: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Times that each source image is drawn, (clusters,), as many of them as there are with replacement."""
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        drawn = rng.integers(clusters, size=clusters)
        yield np.bincount(drawn, minlength=clusters).astype(float)


def percentile_interval(resamples: np.ndarray, clusters: int) -> tuple[float, float]:
    """The 95 % interval of resampled values; NaNs among them are left out.

    For few clusters: the expanded percentile interval (Hesterberg 2015, Sec. 5.2), whose outer share a side
    is Φ(−√(k / (k − 1)) · t) with t Student's 97.5 % quantile at k − 1 degrees of freedom.
    """
    if np.isnan(resamples).all():
        return NONE
    outside = 2.5
    if clusters < FEW:
        quantile = t.ppf(0.975, clusters - 1)
        outside = 100 * norm.cdf(-np.sqrt(clusters / (clusters - 1)) * quantile)
    low, high = np.nanpercentile(resamples, [outside, 100 - outside])
    return float(low), float(high)


def two_sided_p(resamples: np.ndarray, clusters: int) -> float | None:
    """The p-value of the value 0: the level at which `percentile_interval` would just hold it.

    With R resamples no share of them below 1 / (R + 1) can be told, and p is at least twice that for many
    clusters.
    """
    known = resamples[~np.isnan(resamples)]
    if not len(known):
        return None
    outside = min((known <= 0).mean(), (known >= 0).mean())
    outside = max(outside, 1 / (len(known) + 1))
    if clusters < FEW:
        outside = t.cdf(norm.ppf(outside) * np.sqrt((clusters - 1) / clusters), clusters - 1)
    return float(min(1.0, 2 * outside))
