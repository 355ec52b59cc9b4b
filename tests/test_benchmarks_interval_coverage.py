"""The simulation of intervals: its true values, and a run of a few."""

import sys

import numpy as np
import pytest
from scipy.stats import spearmanr

from tests.readme import BENCHMARKS

sys.path[:0] = [str(BENCHMARKS)]


def test_true_values_are_those_of_many_items():
    import interval_coverage

    rng = np.random.default_rng(0)
    source = interval_coverage.sources(rng, 40_000)
    assert set(np.bincount(source)) == {1, 2, 3, 4, 5}
    ratings = interval_coverage.normal(rng, source)
    assert ratings.std() == pytest.approx(1, abs=0.01)
    scores = interval_coverage.following(rng, source, ratings, 0.6)
    assert np.corrcoef(scores, ratings)[0, 1] == pytest.approx(0.6, abs=0.01)
    assert spearmanr(scores, ratings)[0] == pytest.approx(interval_coverage.spearman_of_normal(0.6), abs=0.01)


def test_a_few_simulations_and_seconds(monkeypatch):
    import interval_coverage

    monkeypatch.setattr(interval_coverage, "RESAMPLES", 50)
    for name in interval_coverage.INTERVALS:
        assert interval_coverage.coverage(name, 30, 4) >= 0.5, name
    assert interval_coverage.rejected(30, 3) <= 2 / 3
    assert set(interval_coverage.cpu_seconds(200, 20)) > {"spearman", "pairwise accuracy"}
