"""Correlations, their groups and Fisher's average: scipy, re-ranked resamples and hand-worked values."""

import numpy as np
import pytest
from scipy.stats import kendalltau, pearsonr, rankdata, spearmanr

from rewardedit.evaluation.statistics import (
    correlation,
    correlation_by_group,
    difference_by_group,
    fisher_mean,
    rater_agreement,
    spearman,
    spearman_difference,
)
from rewardedit.evaluation.statistics.correlation import WEIGHTED

ORACLES = {"spearman": spearmanr, "kendall": kendalltau, "pearson": pearsonr}


def rated(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and ratings of few levels, with ties in both."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=n).round(1)
    return scores, (scores + rng.normal(size=n)).round()


@pytest.mark.parametrize("method", ORACLES)
def test_values_and_p_values_are_scipy_s(method):
    scores, ratings = rated(60)
    found = correlation(scores, ratings, method=method, resamples=50)
    oracle = ORACLES[method](scores, ratings)
    assert found.value == pytest.approx(oracle.statistic, rel=1e-12)
    assert found.p == pytest.approx(oracle.pvalue, rel=1e-9)
    assert (found.n, found.clusters, found.reason) == (60, 60, "")


@pytest.mark.parametrize("method", ORACLES)
def test_weights_count_an_item_as_if_it_were_there_several_times(method):
    scores, ratings = rated(80)
    statistic = WEIGHTED[method](scores, ratings)
    rng = np.random.default_rng(1)
    for _ in range(5):
        times = rng.integers(0, 4, size=80)
        anew = ORACLES[method](np.repeat(scores, times), np.repeat(ratings, times)).statistic
        assert statistic(times.astype(float)) == pytest.approx(anew, rel=1e-12)
    assert np.isnan(statistic(np.zeros(80)))
    alone = np.zeros(80)
    alone[3] = 2
    assert np.isnan(statistic(alone)), "one item, twice"


@pytest.mark.parametrize("method", ORACLES)
def test_without_variation_there_is_no_correlation_and_the_reason_is_said(method):
    values = np.arange(6.0)
    found = correlation(np.full(6, 0.3), values, method=method)
    assert np.isnan(found.value)
    assert found.reason == "undefined: all first values are equal"
    assert found.as_dict() == {
        "value": None,
        "ci95": (None, None),
        "n": 6,
        "clusters": 6,
        "p": None,
        "reason": found.reason,
    }
    both = correlation(np.zeros(6), np.ones(6), method=method)
    assert both.reason == "undefined: all first and all second values are equal"


def test_the_p_value_of_clustered_items_does_not_take_them_for_independent():
    """30 independent pairs, each 40 times: scipy's p of the 1200 items is far below that of the 30."""
    rng = np.random.default_rng(6)
    a = rng.normal(size=30)
    b = 0.25 * a + rng.normal(size=30)
    alone = spearman(a, b)
    repeated = spearman(np.repeat(a, 40), np.repeat(b, 40), np.repeat(np.arange(30), 40))
    assert spearmanr(np.repeat(a, 40), np.repeat(b, 40)).pvalue < 1e-4
    assert alone.p is not None
    assert alone.p > 0.05
    assert repeated.p == pytest.approx(alone.p, abs=0.1)


@pytest.mark.parametrize("clusters", [12, 150])
def test_an_interval_holds_0_where_the_p_value_is_above_5_percent(clusters):
    rng = np.random.default_rng(0)
    below = 0
    for seed in range(20):
        a = rng.normal(size=2 * clusters)
        b = 1.8 / np.sqrt(clusters) * a + rng.normal(size=2 * clusters)
        found = spearman(a, b, np.arange(2 * clusters) // 2, resamples=199, seed=seed)
        low, high = found.ci95
        assert found.p is not None
        if abs(found.p - 0.05) > 0.02:  # percentiles are interpolated between resamples
            assert (found.p > 0.05) == (low <= 0 <= high)
        below += found.p < 0.05
    assert 3 < below < 18


def test_two_scorers_are_tested_on_the_same_resamples():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=200)
    near = truth + 0.5 * rng.normal(size=200)
    far = truth + 2 * rng.normal(size=200)
    ids = np.arange(200) // 2
    assert spearman_difference(near, far, truth, ids).p == pytest.approx(2 / 1001)
    assert spearman_difference(near, near, truth, ids, resamples=50).p == 1


# ρ = 1 − 6 Σd² / (n (n² − 1)): .8 of five items with Σd² = 4, .4 of four with Σd² = 6
FIVE = ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5])
FOUR = ([1, 2, 3, 4], [3, 1, 2, 4])


def test_fisher_s_average_and_the_slip_of_the_released_code():
    """arctanh .8 = ½ ln 9 and arctanh .4 = ½ ln(7/3), so the average is (√21 − 1) / (√21 + 1) = .642, where
    the slip gives tanh .6 = .537, below the plain mean.
    """
    a, b = (FIVE[0] + FOUR[0], FIVE[1] + FOUR[1])
    group = ["x"] * 5 + ["y"] * 4
    found = correlation_by_group(a, b, group, resamples=20)
    assert [one.value for one in found.groups.values()] == pytest.approx([0.8, 0.4])
    assert found.average.value == pytest.approx((21**0.5 - 1) / (21**0.5 + 1))
    assert found.mean == pytest.approx(0.6)
    slip = correlation_by_group(a, b, group, compat="viescore", resamples=20)
    assert slip.average.value == pytest.approx(0.53705, abs=1e-5)
    assert slip.mean == found.mean


def test_a_group_without_variation_or_items_is_left_out_and_named():
    a = [*FIVE[0], 1, 1, 1, 4, 5]
    b = [*FIVE[1], 1, 2, 3, 4, 5]
    found = correlation_by_group(a, b, ["x"] * 5 + ["constant"] * 3 + ["short"] * 2, resamples=20)
    assert found.average.value == pytest.approx(0.8)
    assert (
        found.average.reason
        == "constant: undefined: all first values are equal; short: undefined: 2 of 3 items"
    )
    assert found.average.n == 5
    assert np.isnan(found.groups["constant"].value)
    assert found.as_dict()["groups"]["short"]["value"] is None
    nothing = correlation_by_group(np.ones(4), b[:4], ["x"] * 4, resamples=20)
    assert nothing.as_dict()["mean"] is None
    assert nothing.as_dict()["average"]["value"] is None


def test_a_perfect_group_decides_the_average():
    assert fisher_mean([1.0, 0.2]) == 1
    assert fisher_mean([0.5, np.nan]) == pytest.approx(0.5)
    assert np.isnan(fisher_mean([np.nan]))
    assert fisher_mean([1.0, 0.2], "viescore") == pytest.approx(np.tanh(0.6))


def test_a_group_perfect_in_resamples_alone_leaves_the_average():
    """Of five items of a group few distinct ones may be drawn, in order."""
    scores, ratings = rated(200)
    a = np.concatenate([FIVE[0], scores])
    b = np.concatenate([FIVE[1], ratings])
    group = ["few"] * 5 + ["many"] * 200
    found = correlation_by_group(a, b, group, resamples=200)
    assert found.groups["few"].ci95[1] == pytest.approx(1)
    assert found.average.ci95[1] < 0.99
    assert "|ρ| = 1 left out in " in found.average.reason
    change = difference_by_group(a, np.concatenate([FIVE[1], -scores]), b, group, resamples=200)
    assert np.abs(change.ci95).max() < 1.99
    whole = correlation_by_group(
        [1, 2, 3, *scores], [1, 2, 3, *ratings], ["x"] * 3 + ["y"] * 200, resamples=20
    )
    assert (whole.average.value, whole.average.reason) == (1, "")


def test_the_average_s_interval_draws_a_source_with_the_edits_of_all_groups():
    """Of two groups with the same values the average is that of one, in every resample."""
    scores, ratings = rated(40)
    twice = correlation_by_group(
        np.tile(scores, 2),
        np.tile(ratings, 2),
        ["x"] * 40 + ["y"] * 40,
        np.tile(np.arange(40), 2),
        resamples=99,
    )
    once = spearman(scores, ratings, resamples=99)
    assert twice.average.ci95 == pytest.approx(once.ci95)
    assert twice.groups["y"].ci95 == pytest.approx(once.ci95)
    assert (twice.average.n, twice.average.clusters, twice.groups["y"].clusters) == (80, 40, 40)


def test_two_scorers_averages_are_compared_over_the_groups_that_both_have():
    rng = np.random.default_rng(3)
    truth = rng.normal(size=120)
    near = truth + 0.4 * rng.normal(size=120)
    far = truth + 2 * rng.normal(size=120)
    far[80:] = 1.0  # no variation in the third group
    group = np.repeat(["x", "y", "z"], 40).tolist()
    found = difference_by_group(near, far, truth, group, resamples=99)
    kept = [
        fisher_mean([spearmanr(s[r], truth[r])[0] for r in (slice(40), slice(40, 80))]) for s in (near, far)
    ]
    assert [found.mean_a, found.mean_b] == pytest.approx(kept)
    assert 0 < found.ci95[0] < found.difference < found.ci95[1]
    same = difference_by_group(near, near, truth, group, resamples=20)
    assert (same.difference, same.ci95, same.p) == (0, (0, 0), 1)


def test_raters_are_each_compared_with_the_mean_of_the_others():
    ratings = np.array([[1.0, 2, 1], [2, 1, np.nan], [3, 4, 2], [4, 3, 4], [5, 5, np.nan]])
    found = rater_agreement(ratings, ["x"] * 5, resamples=20)
    others = [np.nanmean(np.delete(ratings, rater, 1), axis=1) for rater in range(3)]
    kept = np.isfinite(ratings[:, 2])
    each = [
        np.corrcoef(rankdata(ratings[:, 0]), rankdata(others[0]))[0, 1],
        np.corrcoef(rankdata(ratings[:, 1]), rankdata(others[1]))[0, 1],
        np.corrcoef(rankdata(ratings[kept, 2]), rankdata(others[2][kept]))[0, 1],
    ]
    assert found.average.value == pytest.approx(fisher_mean(each))
    with pytest.raises(ValueError, match="at least two raters"):
        rater_agreement(ratings[:, :1], ["x"] * 5)
    with pytest.raises(ValueError, match="expected one of each of 5 items; got 4"):
        rater_agreement(ratings, ["x"] * 4)
