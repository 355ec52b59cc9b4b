"""Intraclass correlations: the literature's table, pingouin's values, and tables with gaps."""

import numpy as np
import pytest
from scipy.stats import chi2

from rewardedit.evaluation.statistics import reliability

# Shrout and Fleiss 1979, Table 2: six targets, four judges
TABLE = np.array(
    [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]], dtype=float
)


def test_a_complete_table_by_pingouin():
    """Values by pingouin 0.7.0:

    table = pandas.DataFrame(
        [(i, j, TABLE[i, j]) for i in range(6) for j in range(4)], columns=["item", "rater", "rating"]
    )
    pingouin.options["round.column.CI95"] = 10
    pingouin.intraclass_corr(table, "item", "rater", "rating")  # rows ICC(A,1) and ICC(A,k)
    """
    found = reliability(TABLE, compat="f")
    assert found.single.value == pytest.approx(0.289763779528, rel=1e-9)  # .29 in the paper
    assert found.single.ci95 == pytest.approx((0.01878651, 0.76108437), abs=1e-8)
    assert found.average.value == pytest.approx(0.620050547599, rel=1e-9)  # .62 in the paper
    assert found.average.ci95 == pytest.approx((0.07113682, 0.92723204), abs=1e-8)
    assert found.single.p == pytest.approx(0.000134566516, rel=1e-6)
    assert (found.raters, found.k, found.single.n) == (4, 4, 6)


def test_the_generalized_interval_by_its_limits():
    """Of many items the spread of the raters' mean square alone is left: with χ² of k − 1 degrees of freedom
    at its 2.5 and 97.5 %, and items and errors at their values.
    """
    rng = np.random.default_rng(0)
    ratings = rng.normal(size=(40_000, 1)) + np.array([-0.5, 0, 0.5]) + rng.normal(0, 0.7, (40_000, 3))
    found = reliability(ratings)
    of_raters = 0.25 * 2 / chi2.ppf([0.025, 0.975], 2)
    assert found.single.ci95 == pytest.approx(tuple(1 / (1 + of_raters + 0.49)), abs=0.02)
    k = 3
    steps = [k * end / (1 + (k - 1) * end) for end in found.single.ci95]
    assert found.average.ci95 == pytest.approx(steps)
    assert reliability(ratings[:50], seed=1).single.ci95 != reliability(ratings[:50]).single.ci95


def test_the_generalized_interval_holds_the_truth_where_that_of_f_does_not():
    truth = 1 / (1 + 0.25 + 0.5)
    hits = {None: 0, "f": 0}
    for seed in range(200):
        rng = np.random.default_rng(seed)
        ratings = rng.normal(size=(300, 1)) + rng.normal(0, 0.5, 3) + rng.normal(0, 0.5**0.5, (300, 3))
        for compat in hits:
            low, high = reliability(ratings, compat=compat).single.ci95
            hits[compat] += low <= truth <= high
    assert 181 <= hits[None] <= 198
    assert hits["f"] < 177


def test_the_moment_estimates_of_a_complete_table_are_those_of_the_analysis_of_variance():
    found = reliability(TABLE, cluster=["a", "a", "b", "c", "d", "e"], resamples=200)
    assert found.single.value == pytest.approx(0.289763779528, rel=1e-9)
    assert found.average.value == pytest.approx(0.620050547599, rel=1e-9)
    assert found.single.clusters == 5
    assert found.single.ci95[0] < found.single.value < found.single.ci95[1]


def test_a_table_with_a_gap_by_hand():
    """Three items, two raters, one gap: (1, 2), (3, 3), (5, –). Sums of squares over their numbers, and their
    expectations with σ² of items I, raters R, errors E and m = μ²:
    of all ratings 48 = 5m + 5I + 5R + 5E;
    of items' totals 9/2 + 36/2 + 25 = 47.5 = 5m + 5I + 3R + 3E;
    of raters' totals 81/3 + 25/2 = 39.5 = 5m + 2I + 5R + 2E;
    of the grand total 196/5 = 39.2 = 5m + 9/5 I + 13/5 R + E.
    The first two give R + E = 1/4, the first and third I + E = 17/6, the third and fourth
    1/5 I + 12/5 R + E = 3/10, so that 1/5 (17/6 − E) + 12/5 (1/4 − E) + E = 3/10:
    E = 13/24, I = 55/24, R = −7/24.
    """
    found = reliability(np.array([[1.0, 2], [3, 3], [5, np.nan]]), resamples=50)
    assert found.single.value == pytest.approx(55 / 61)
    assert found.k == pytest.approx(1.5)  # 3 / (1/2 + 1/2 + 1)
    assert found.average.value == pytest.approx((55 / 24) / (55 / 24 + (6 / 24) / 1.5))
    assert found.raters == 2


def test_gaps_leave_the_estimate_where_it_is():
    """400 items, five raters, a third of the ratings missing."""
    rng = np.random.default_rng(0)
    raters = np.array([-1.2, -0.6, 0.1, 0.6, 1.3])
    ratings = rng.normal(0, 2, (400, 1)) + raters + rng.normal(0, 2**0.5, (400, 5))
    whole = reliability(ratings)
    ratings[rng.random((400, 5)) < 1 / 3] = np.nan
    found = reliability(ratings, resamples=200)
    assert found.single.value == pytest.approx(whole.single.value, abs=0.03)
    assert found.single.ci95[0] < whole.single.value < found.single.ci95[1]
    assert found.single.value < found.average.value < whole.average.value
    assert found.single.n < 400, "items without any rating are left out"


def test_ratings_that_do_not_vary_or_always_agree():
    equal = reliability(np.ones((5, 3)))
    assert np.isnan(equal.single.value)
    assert equal.single.reason == "undefined: all ratings are equal"
    agreed = reliability(np.array([[1.0, 1], [2, 2], [3, 3]]))
    assert agreed.single.value == agreed.average.value == 1
    assert np.isnan(agreed.single.ci95).all()
    assert agreed.as_dict()["single"]["ci95"] == (None, None)
    one = reliability(np.array([[1.0, 2], [2, 2], [3, 4]]), ["a"] * 3)
    assert one.single.reason == "no interval: all items are of one source image"


def test_tables_that_say_nothing_of_raters_are_refused():
    with pytest.raises(ValueError, match="at least two raters"):
        reliability(np.ones((5, 1)))
    with pytest.raises(ValueError, match="two ratings each"):
        reliability(np.array([[1.0, np.nan], [np.nan, 2], [3, 4]]))
    with pytest.raises(ValueError, match="expected one of each of 2 items; got 1"):
        reliability(np.array([[1.0, 2], [3, 4]]), ["a"])
