"""BPM's two tests, by cases that are worked out by hand."""

import math

import numpy as np
import pytest

from rewardedit.evaluation.preferences import (
    agreement,
    alignment,
    alignment_of_editors,
    better_equal_worse,
    favoured,
    mean_share,
    pairwise_accuracy,
)

NAN = float("nan")


def test_a_metric_is_right_where_it_prefers_what_people_prefer():
    found = agreement([2, 1, 1, 3, 0], [1, 2, 1, 3, 9], [5, 5, 5, 4, 7], [3, 3, 3, 4, 6.5])
    assert found[:3].tolist() == [1, 0, 0]  # the third is a tie of the metric's
    assert math.isnan(found[3])  # a tie of people's
    assert found[4] == 0


def test_small_differences_of_ratings_can_be_left_out():
    found = alignment([2, 0, 1], [1, 9, 2], [5, 7, 1], [3, 6.5, 2], least=1)
    assert (found.share, found.n, found.ties, found.dropped) == (1, 2, 0, 1)
    assert alignment([1], [1], [2], [1]).ties == 1
    assert math.isnan(alignment([1], [1], [2], [2]).share)


def test_what_has_no_score_is_worse_than_what_has_one():
    assert agreement([NAN, 1, NAN], [-5, NAN, NAN], [1, 2, 1], [2, 1, 2]).tolist() == [1, 1, 0]


def test_the_policy_for_ties_is_the_caller_s():
    """Right, wrong, a tie of the metric's, a tie of people's, and a tie of both."""
    rows = ([2, 1, 1, 1, 1], [1, 2, 1, 2, 1], [5, 5, 5, 4, 4], [3, 3, 3, 4, 4])
    known = {
        "wrong": [1, 0, 0, NAN, NAN],
        "half": [1, 0, 0.5, NAN, NAN],
        "left out": [1, 0, NAN, NAN, NAN],
        "answer": [1, 0, 0, 0, 1],
    }
    for ties, expected in known.items():
        np.testing.assert_array_equal(agreement(*rows, ties=ties), expected)
        found = pairwise_accuracy(*rows, ties=ties)
        assert found.value == pytest.approx(np.nanmean(expected))
        assert found.n == np.isfinite(expected).sum()
    near = agreement([1, 1], [1, 2], [4, 4], [3.5, 3.5], least=1, ties="answer")
    assert near.tolist() == [1, 0], "ratings that are nearly equal are a tie"


def test_pairs_of_one_source_are_drawn_together():
    scores = np.repeat(np.arange(40) % 3 > 0, 10).astype(float)
    ratings = np.ones(400)
    sources = np.repeat(np.arange(40), 10)
    found = pairwise_accuracy(scores, 0 * ratings, ratings, 0 * ratings, sources)
    assert found.value == pytest.approx(26 / 40)
    assert (found.n, found.clusters) == (400, 40)
    alone = pairwise_accuracy(scores, 0 * ratings, ratings, 0 * ratings)
    widths = [one.ci95[1] - one.ci95[0] for one in (found, alone)]
    assert widths[0] / widths[1] == pytest.approx(10**0.5, rel=0.2)
    one_source = pairwise_accuracy(scores, 0 * ratings, ratings, 0 * ratings, ["a"] * 400)
    assert one_source.reason == "no interval: all items are of one source image"


def test_every_two_editors_are_compared_and_pairs_count_alike():
    scores = {"a": [1, 1], "b": [2, 0], "c": [0, 5]}
    ratings = {"a": [1, 1], "b": [2, 2], "c": [0, 1]}
    found = alignment_of_editors(scores, ratings)
    assert list(found) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [(pair.share, pair.n) for pair in found.values()] == [(0.5, 2), (1, 1), (0.5, 2)]
    assert mean_share(found) == pytest.approx(2 / 3)


def test_values_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="four times"):
        agreement([1, 2], [1], [1, 2], [1, 2])
    with pytest.raises(ValueError, match="a rating of every edit"):
        agreement([1], [2], [NAN], [1])


def test_the_ground_truth_test_shares_ties():
    found = favoured({"truth": [3, 1, 2, NAN], "noise": [1, 1, 5, NAN], "generated": [0, 0, 1, 0]})
    assert found == pytest.approx({"truth": 1.5 / 4, "noise": 1.5 / 4, "generated": 1 / 4})
    assert sum(found.values()) == pytest.approx(1)


def test_better_equal_and_worse():
    assert better_equal_worse([1, 1, 1, 1], [2, 1.05, 0.5, 1], 0.1) == (0.25, 0.5, 0.25)
    with pytest.raises(ValueError, match="finite"):
        better_equal_worse(np.array([1.0]), np.array([NAN]))
