"""Coverage of 95 % intervals over source images: python benchmarks/interval_coverage.py [N] [--write]

N simulated data sets (1000 by default) for each number of source images: the share of them whose interval
holds the true value, and of tests between two equally good scorers the share with p < .05. CPU seconds are
of 100,000 pairs of 5,000 source images with 1,000 resamples.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from command_line import read_command_line

from rewardedit.evaluation.preferences import pairwise_accuracy
from rewardedit.evaluation.statistics import (
    clustered_mean,
    correlation,
    correlation_by_group,
    fisher_mean,
    paired_bootstrap,
    reliability,
    spearman,
    spearman_difference,
)

CLUSTERS = (30, 140, 560)
SIMULATIONS = 1000
RESAMPLES = 1000
SHARED = 0.4  # share of each variance that is the source's
FOLLOWS = 0.6  # Pearson's correlation of a score with people's rating
EDITORS = (0.3, 0.5, 0.7)  # its correlations within the edits by each editor
RATERS = np.array([-0.5, 0.0, 0.5])
ERROR = 0.5  # variance of a rater's error; that of items is 1

Interval = tuple[float, float]
Rng = np.random.Generator


def sources(rng: Rng, clusters: int) -> np.ndarray:
    """The source of each item: 1 to 5 items of each."""
    return np.repeat(np.arange(clusters), rng.integers(1, 6, size=clusters))


def normal(rng: Rng, source: np.ndarray) -> np.ndarray:
    """Values of variance 1 that are partly those of the source."""
    shared = rng.normal(size=source[-1] + 1)[source]
    return np.sqrt(SHARED) * shared + np.sqrt(1 - SHARED) * rng.normal(size=len(source))


def following(rng: Rng, source: np.ndarray, ratings: np.ndarray, r: float) -> np.ndarray:
    """Scores with Pearson's correlation r with the ratings."""
    return r * ratings + np.sqrt(1 - r**2) * normal(rng, source)


def spearman_of_normal(r: float) -> float:
    """Spearman's ρ of two normal variables with Pearson's correlation r."""
    return 6 / np.pi * np.arcsin(r / 2)


def of_spearman(rng: Rng, clusters: int, seed: int) -> tuple[Interval, float]:
    source = sources(rng, clusters)
    ratings = normal(rng, source)
    scores = following(rng, source, ratings, FOLLOWS)
    return spearman(scores, ratings, source, RESAMPLES, seed).ci95, spearman_of_normal(FOLLOWS)


def of_pearson(rng: Rng, clusters: int, seed: int) -> tuple[Interval, float]:
    source = sources(rng, clusters)
    ratings = normal(rng, source)
    scores = following(rng, source, ratings, FOLLOWS)
    return correlation(scores, ratings, source, "pearson", RESAMPLES, seed).ci95, FOLLOWS


def of_groups(rng: Rng, clusters: int, seed: int) -> tuple[Interval, float]:
    source = np.arange(clusters)
    ratings = [normal(rng, source) for _ in EDITORS]
    scores = [
        following(rng, source, editor_ratings, r) for editor_ratings, r in zip(ratings, EDITORS, strict=True)
    ]
    estimate = correlation_by_group(
        np.concatenate(scores),
        np.concatenate(ratings),
        np.repeat(EDITORS, clusters).tolist(),
        np.tile(source, len(EDITORS)),
        resamples=RESAMPLES,
        seed=seed,
    )
    return estimate.average.ci95, fisher_mean([spearman_of_normal(r) for r in EDITORS])


def of_accuracy(rng: Rng, clusters: int, seed: int) -> tuple[Interval, float]:
    source = sources(rng, clusters)
    right = rng.random(len(source)) < rng.beta(3, 2, size=clusters)[source]
    return clustered_mean(right.astype(float), source, seed).ci95, 0.6


def of_mean_difference(rng: Rng, clusters: int, seed: int) -> tuple[Interval, float]:
    source = sources(rng, clusters)
    a = normal(rng, source) + 0.3
    return paired_bootstrap(a, normal(rng, source), source, seed=seed).ci95, 0.3


def of_spearman_difference(rng: Rng, clusters: int, seed: int) -> tuple[Interval, float]:
    source = sources(rng, clusters)
    ratings = normal(rng, source)
    scores = [following(rng, source, ratings, r) for r in (0.7, 0.5)]
    estimate = spearman_difference(*scores, ratings, source, RESAMPLES, seed)
    return estimate.ci95, spearman_of_normal(0.7) - spearman_of_normal(0.5)


def of_reliability(rng: Rng, clusters: int, seed: int) -> tuple[Interval, float]:
    """A complete table: ICC(2,1), the raters drawn anew each time."""
    return reliability(rated(rng, clusters), seed=seed).single.ci95, 1 / (1 + 0.25 + ERROR)


def of_reliability_by_f(rng: Rng, clusters: int, seed: int) -> tuple[Interval, float]:
    """The same tables with the interval of McGraw and Wong."""
    return reliability(rated(rng, clusters), compat="f").single.ci95, 1 / (1 + 0.25 + ERROR)


def rated(rng: Rng, items: int) -> np.ndarray:
    """Ratings (items, three raters of unlike strictness)."""
    raters = rng.normal(0, 0.5, 3)
    return rng.normal(size=(items, 1)) + raters + rng.normal(0, ERROR**0.5, (items, 3))


def of_reliability_with_gaps(rng: Rng, clusters: int, seed: int) -> tuple[Interval, float]:
    """A fifth of the ratings missing: ICC(2,1), of the same raters each time."""
    ratings = rng.normal(size=(clusters, 1)) + RATERS + rng.normal(0, ERROR**0.5, (clusters, 3))
    ratings[rng.random(ratings.shape) < 0.2] = np.nan
    return reliability(ratings, resamples=RESAMPLES, seed=seed).single.ci95, 1 / (
        1 + RATERS.var(ddof=1) + ERROR
    )


INTERVALS: dict[str, Callable[[Rng, int, int], tuple[Interval, float]]] = {
    "spearman": of_spearman,
    "pearson": of_pearson,
    "fisher average of three editors": of_groups,
    "pairwise accuracy": of_accuracy,
    "mean difference": of_mean_difference,
    "difference of two spearman": of_spearman_difference,
    "ICC(2,1), complete": of_reliability,
    "ICC(2,1), complete, McGraw and Wong": of_reliability_by_f,
    "ICC(2,1), with gaps": of_reliability_with_gaps,
}


def coverage(name: str, clusters: int, simulations: int) -> float:
    """The share of simulated data sets whose interval holds the true value."""
    hits = 0
    for seed in range(simulations):
        (low, high), truth = INTERVALS[name](np.random.default_rng([seed, clusters]), clusters, seed)
        hits += int(low <= truth <= high)
    return hits / simulations


def rejected(clusters: int, simulations: int) -> float:
    """The share of comparisons of two equally good scorers with p < .05."""
    rejections = 0
    for seed in range(simulations):
        rng = np.random.default_rng([seed, clusters])
        source = sources(rng, clusters)
        ratings = normal(rng, source)
        scores = [following(rng, source, ratings, FOLLOWS) for _ in range(2)]
        p = spearman_difference(*scores, ratings, source, RESAMPLES, seed).p
        rejections += p is not None and p < 0.05
    return rejections / simulations


def cpu_seconds(n: int = 100_000, clusters: int = 5_000) -> dict[str, float]:
    """Seconds of the intervals of one scorer over many pairs, and of a test between two."""
    rng = np.random.default_rng(0)
    source = rng.integers(clusters, size=n)
    shared = rng.normal(size=(3, clusters))[:, source]
    ratings, first, second = shared + rng.normal(size=(3, n))
    work: dict[str, Callable[[], Any]] = {
        "spearman": lambda: spearman(first + ratings, ratings, source),
        "spearman, five levels": lambda: spearman(first + ratings, ratings.round().clip(-2, 2), source),
        "pairwise accuracy": lambda: pairwise_accuracy(first + ratings, second, ratings, second, source),
        "difference of two spearman": lambda: spearman_difference(
            first + ratings, second + ratings, ratings, source
        ),
    }
    spent = {}
    for name, run in work.items():
        began = time.process_time()
        run()
        spent[name] = round(time.process_time() - began, 2)
    return spent


def main(simulations: int) -> dict[str, Any]:
    """All figures."""
    covered = {}
    for name in INTERVALS:
        covered[name] = {k: coverage(name, k, simulations) for k in CLUSTERS}
        print(name, covered[name], flush=True)
    return {
        "n": simulations,
        "resamples": RESAMPLES,
        "coverage": covered,
        "rejected_equal_scorers": {k: rejected(k, simulations) for k in CLUSTERS},
        "cpu_seconds": cpu_seconds(),
    }


if __name__ == "__main__":
    line = read_command_line(__doc__, "N", many=False)
    line.keep("coverage", main(int(line.words[0]) if line.words else SIMULATIONS))
