import numpy as np
import pytest

from rewardedit.evaluation.statistics import paired_bootstrap


def test_the_interval_of_a_plain_difference_is_that_of_the_normal_theory():
    rng = np.random.default_rng(0)
    b = rng.normal(size=2000)
    a = b + 0.5 + rng.normal(size=2000)
    found = paired_bootstrap(a, b)
    assert found.difference == pytest.approx((a - b).mean())
    half = 1.96 * (a - b).std() / np.sqrt(2000)
    assert found.ci95 == pytest.approx((found.difference - half, found.difference + half), abs=0.01)


def test_items_of_one_source_count_as_one():
    rng = np.random.default_rng(1)
    shared = np.repeat(rng.normal(size=50), 20)
    alone = paired_bootstrap(shared, np.zeros(1000))
    clustered = paired_bootstrap(shared, np.zeros(1000), np.repeat(np.arange(50), 20))
    assert clustered.clusters == 50
    width = [c.ci95[1] - c.ci95[0] for c in (alone, clustered)]
    assert width[1] / width[0] == pytest.approx(np.sqrt(20), rel=0.2)


def test_it_covers_the_truth_about_95_times_in_a_hundred():
    rng = np.random.default_rng(2)
    hits = 0
    for seed in range(200):
        low, high = paired_bootstrap(rng.normal(0.3, 1, 80), np.zeros(80), resamples=500, seed=seed).ci95
        hits += low <= 0.3 <= high
    assert 180 <= hits <= 199


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="paired"):
        paired_bootstrap([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="finite"):
        paired_bootstrap([1.0, float("nan")], [1.0, 2.0])
    with pytest.raises(ValueError, match="at least two source images"):
        paired_bootstrap([1.0, 2.0], [1.0, 2.0], ["a", "a"])
