"""Comparison of editors: a table worked by hand, scipy as an oracle, and what lacks a score."""

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from rewardedit.evaluation.editors import EditorScores, compare_editors, holm
from rewardedit.evaluation.statistics import clustered_means, paired_bootstrap

NONE = float("nan")
# requests of two kinds of edit; editors a, b, c
SCORES = np.array([[3, 1, 2], [4, 1, 4], [2, 2, 0], [5, 3, NONE], [1, NONE, 3], [2, 1, 1]])


def given(scores=SCORES, **more) -> EditorScores:
    made = np.ones(scores.shape, dtype=bool)
    made[3, 2] = False  # c made no edit; b's fifth edit could not be scored
    sources = ["cat", "cat", "cup", "dog", "dog", "owl"]
    kinds = ["add", "add", "add", "remove", "remove", "remove"]
    return EditorScores(["a", "b", "c"], {"s": scores, **more}, made, sources, kinds)


def test_a_table_worked_by_hand():
    found = compare_editors(given())
    one = found.scorers["s"]
    assert one.requests == 4  # the first three and the last
    means = {name: standing.mean.value for name, standing in one.standings.items()}
    assert means == {"a": 11 / 4, "b": 5 / 4, "c": 7 / 4}
    assert one.ranked == ["a", "c", "b"]
    counts = {name: (s.valid, s.invalid, s.missing) for name, s in one.standings.items()}
    assert counts == {"a": (6, 0, 0), "b": (5, 1, 0), "c": (5, 0, 1)}

    pair = one.pair("a", "b")
    assert (pair.wins, pair.ties, pair.losses) == (4, 1, 0)
    assert pair.difference.value == pytest.approx((2 + 3 + 0 + 2 + 1) / 5)
    assert (pair.difference.n, pair.difference.clusters) == (5, 4)
    assert pair.win_rate.value == pytest.approx(4.5 / 5)
    turned = one.pair("b", "a")
    assert (turned.wins, turned.losses) == (0, 4)
    assert turned.difference.value == -pair.difference.value
    assert turned.difference.ci95 == (-pair.difference.ci95[1], -pair.difference.ci95[0])
    assert turned.win_rate.value == pytest.approx(0.5 / 5)

    # a's share of the others that it beats, by request: 1, ¾, ¾, 1, 0, 1
    assert one.standings["a"].win_rate.value == pytest.approx((1 + 0.75 + 0.75 + 1 + 0 + 1) / 6)
    of_adding = one.pair("a", "c", "add")
    assert (of_adding.wins, of_adding.ties, of_adding.losses) == (2, 1, 0)
    assert of_adding.difference.value == pytest.approx(1.0)
    assert one.pair("a", "c", "remove").difference.n == 2


def test_scores_within_the_margin_are_ties():
    pair = compare_editors(given(), tie=1.0).scorers["s"].pair("a", "b")
    assert (pair.wins, pair.ties, pair.losses) == (3, 2, 0)


def test_strengths_follow_from_wins_with_a_tie_more():
    found = compare_editors(given(SCORES[:, :2].repeat(2, 1)[:, [0, 2, 3]])).scorers["s"].standings
    # b and c are the same editor: as strong as one another, and ties among them change nothing
    assert found["b"].strength.value == pytest.approx(found["c"].strength.value)
    odds = np.exp(found["a"].strength.value - found["b"].strength.value)
    assert odds == pytest.approx((4.5 + 0.5) / (0.5 + 0.5), rel=1e-6)


def test_intervals_are_those_of_a_paired_bootstrap():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 300))
    sources = rng.integers(120, size=300)
    scores = EditorScores(["a", "b"], {"s": np.stack([a, b], 1)}, np.ones((300, 2), bool), sources.tolist())
    pair = compare_editors(scores).scorers["s"].pair("a", "b")
    expected = paired_bootstrap(a, b, sources)
    assert pair.difference.value == pytest.approx(expected.difference)
    assert pair.difference.ci95 == pytest.approx(expected.ci95, abs=0.02)
    assert pair.difference.p == pytest.approx(expected.p, abs=0.05)
    with_gaps = clustered_means(np.where(sources[:, None] < 60, a[:, None], NONE), sources)[0]
    kept = sources < 60
    alone = paired_bootstrap(a[kept], np.zeros(kept.sum()), sources[kept])
    assert with_gaps.value == pytest.approx(alone.difference)
    assert with_gaps.clusters == alone.clusters
    assert with_gaps.ci95 == pytest.approx(alone.ci95, abs=0.04)


def test_scorers_agree_on_the_order_as_scipy_says():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 80, 6)) + np.arange(6) / 3
    second[0, 0] = NONE
    scores = {"x": first, "y": second}
    names = list("abcdef")
    found = compare_editors(EditorScores(names, scores, np.ones((80, 6), bool), list(range(80))))
    (one,) = found.agreement
    means = (first[1:].mean(0), second[1:].mean(0))
    assert one.kendall.value == pytest.approx(kendalltau(*means).statistic)
    assert one.spearman.value == pytest.approx(spearmanr(*means).statistic)
    assert one.kendall.n == 6
    assert one.kendall.clusters == 79
    assert one.kendall.ci95[0] <= one.kendall.value <= one.kendall.ci95[1]


def test_two_editors_are_too_few_to_correlate():
    scores = {"x": SCORES[:, :2], "y": SCORES[:, :2]}
    found = compare_editors(EditorScores(["a", "b"], scores, np.ones((6, 2), bool), list("abcdef")))
    assert "too few" in found.agreement[0].kendall.reason


def test_holm_by_hand():
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06], nan_ok=True)
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_nothing_in_common_has_reasons_and_no_numbers():
    apart = np.array([[1.0, NONE], [NONE, 2.0]])
    found = compare_editors(EditorScores(["a", "b"], {"s": apart}, np.ones((2, 2), bool), ["x", "y"]))
    one = found.scorers["s"]
    assert np.isnan(one.standings["a"].mean.value)
    assert "no items" in one.pair("a", "b").difference.reason
    assert "another editor" in one.standings["b"].strength.reason
    assert found.as_dict()["scorers"]["s"]["editors"]["a"]["mean"]["value"] is None


def test_equal_editors_are_not_told_apart():
    rng = np.random.default_rng(5)
    told = 0
    for _ in range(30):
        scores = rng.normal(size=(40, 3))
        named = EditorScores(["a", "b", "c"], {"s": scores}, np.ones((40, 3), bool), list(range(40)))
        told += any(pair.clear for pair in compare_editors(named).scorers["s"].pairs)
    assert told <= 5  # 1 or 2 of 30 are expected, by Holm over three pairs


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match="expected scores and edits of 3 requests"):
        EditorScores(["a"], {"s": np.zeros((2, 1))}, np.ones((3, 1), bool), ["x", "y", "z"])
