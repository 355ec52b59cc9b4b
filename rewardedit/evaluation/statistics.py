"""Paired comparisons with bootstrap intervals, clustered by source image."""

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Comparison:
    """The difference `a − b` of two arms on the same items."""

    mean_a: float
    mean_b: float
    difference: float
    ci95: tuple[float, float]  # of the difference
    n: int  # items
    clusters: int  # source images

    def as_dict(self) -> dict:
        return asdict(self)


def paired_bootstrap(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    cluster: Sequence[Hashable] | np.ndarray | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Percentile 95 % interval of mean(a) − mean(b), where whole source images are drawn with replacement.

    Args:
        a, b: (n,) values of the two arms on the same items.
        cluster: (n,) the source image of each item; None where each item has its own.

    Raises:
        ValueError: on arms of different length, fewer than two clusters, or values that are not finite.
    """
    difference = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    names = np.arange(len(difference)) if cluster is None else np.asarray(cluster)
    if np.shape(a) != np.shape(b) or np.ndim(a) != 1 or len(names) != len(difference):
        raise ValueError(f"expected paired (n,) values and clusters; got {np.shape(a)}, {np.shape(b)}, {np.shape(names)}")
    if not np.isfinite(difference).all():
        raise ValueError("expected finite values; leave invalid scores out before comparing")
    _, index = np.unique(names, return_inverse=True)
    total, count = np.bincount(index, difference), np.bincount(index)
    k = len(total)
    if k < 2:
        raise ValueError(f"expected at least two source images; got {k}")
    rng = np.random.default_rng(seed)
    means = np.concatenate(
        [
            total[drawn].sum(1) / count[drawn].sum(1)
            for drawn in (rng.integers(k, size=(min(500, resamples - done), k)) for done in range(0, resamples, 500))
        ]
    )
    low, high = np.percentile(means, [2.5, 97.5])
    return Comparison(
        float(np.mean(a)), float(np.mean(b)), float(difference.mean()), (float(low), float(high)), len(difference), k
    )
