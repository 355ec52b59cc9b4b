"""Thresholds, shares that pass, rises and transfers, by hand."""

import numpy as np
import pytest

from rewardedit.evaluation.robustness.figures import (
    lowest,
    measure_baseline,
    measure_effect,
    pass_threshold,
    passes,
)

GOOD = np.array([9.0, 8, 7, 6, 5, 4, 3, 2, 1, 0])
FAILED = np.array([-1.0, 1, 0.5, np.nan])
SOURCES = ["a", "b", "c", "d"]


def test_threshold_is_the_highest_that_the_share_reaches():
    assert pass_threshold(GOOD, 0.9) == 1  # nine of ten are at least 1
    assert pass_threshold(GOOD, 1.0) == 0
    assert pass_threshold(GOOD, 0.5) == 5
    assert pass_threshold(np.array([3.0, np.nan, 3.0, 4.0]), 0.9) == 3
    with pytest.raises(ValueError, match="can score none"):
        pass_threshold(np.array([np.nan]), 0.9)


def test_edit_at_the_threshold_passes_and_one_without_score_fails():
    assert passes(FAILED, 1.0).tolist() == [0, 1, 0, 0]


def test_baseline_of_a_table_by_hand():
    found = measure_baseline(GOOD, FAILED, list("abcdefghij"), SOURCES, 0.9)
    assert found.threshold == 1
    assert found.good.value == 0.9
    assert found.failed.value == 0.25
    assert found.not_scored == pytest.approx(1 / 14)
    assert found.median == 3.0  # of 13 values
    assert found.spread == pytest.approx(np.std([*GOOD, -1, 1, 0.5], ddof=1))


def test_effect_counts_the_same_edits_before_and_after():
    baseline = measure_baseline(GOOD, FAILED, list("abcdefghij"), SOURCES, 0.9)
    found = measure_effect(FAILED, np.array([2.0, 3, 0, 5]), SOURCES, baseline)
    assert (found.passed.mean_b, found.passed.mean_a) == (0.25, 0.75)
    assert found.passed.n == 4
    assert found.rise is not None
    assert found.rise.n == 3  # the last had no score before
    assert found.rise.difference == pytest.approx((3 + 2 - 0.5) / 3 / baseline.spread)
    assert found.rise.ci95[0] < found.rise.difference < found.rise.ci95[1]


def test_effect_without_two_scored_sources_has_no_rise():
    baseline = measure_baseline(GOOD, FAILED, list("abcdefghij"), SOURCES, 0.9)
    found = measure_effect(FAILED, np.array([np.nan, 3, np.nan, np.nan]), SOURCES, baseline)
    assert found.rise is None
    assert found.passed.difference == 0


def test_lowest_of_centred_scores_by_hand():
    found = lowest([np.array([1.0, 4.0, np.nan]), np.array([10.0, 0.0, 1.0])], [(1.0, 3.0), (0.0, 10.0)])
    np.testing.assert_allclose(found, [0.0, 0.0, np.nan])
