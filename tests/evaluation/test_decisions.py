"""Decision rules, by cases that are worked out by hand."""

import itertools

import numpy as np
import pytest

from rewardedit.evaluation.decisions import (
    Margins,
    Misdecided,
    accuracy,
    adiee,
    as_ways,
    baselines,
    bpm_accuracy,
    bpm_overall,
    decide,
    decide_out_of_fold,
    fit_margins,
    four_way,
    misdecided,
    read_answer,
    strict,
    three_way,
    viescore,
)

NAN = float("nan")
A, B, TIE, BAD = "a", "b", "tie", "both bad"
UNREAD = "unreadable"


def test_the_higher_score_wins_else_it_is_a_tie():
    assert strict([2, 1, 1, NAN, 1, NAN], [1, 2, 1, -9, NAN, NAN]).tolist() == [A, B, TIE, B, A, TIE]
    with pytest.raises(ValueError, match="two times"):
        strict([1, 2], [1])


def test_margins_make_ties_and_tell_the_good_ones():
    a = [5.0, 4, 4, 9, 2]
    b = [4.0, 5.5, 4, 8.5, 2.5]
    assert three_way(a, b, 1).tolist() == [TIE, B, TIE, TIE, TIE]
    assert four_way(a, b, 0.5, 4.0).tolist() == [A, B, TIE, TIE, BAD]
    assert four_way([NAN], [NAN], 0, 4).tolist() == [BAD]
    margins = Margins(0.5, 4.0)
    assert decide(a, b, margins, 2).tolist() == [A, B, TIE, A, B]
    assert decide(a, b, margins, 3).tolist() == [A, B, TIE, TIE, TIE]
    assert decide(a, b, margins, 4).tolist() == [A, B, TIE, TIE, BAD]


def test_adiee_s_rule_rounds_halves_to_the_even_number():
    """2.5 / 5 is rounded to 0, 7.5 / 5 to 2, 2.6 / 5 to 1."""
    a = [2.5, 7.5, 2.6, 9.0, 8.9, 9.5, 1.0, 7.4]
    b = [0.0, 10.0, 2.4, 9.8, 9.9, 7.4, 7.6, 2.6]
    assert adiee(a, b).tolist() == [BAD, BAD, A, TIE, BAD, A, B, BAD]
    assert adiee(a, b, ways=3).tolist() == [TIE, TIE, A, TIE, TIE, A, B, TIE]


def test_viescore_guesses_where_an_answer_cannot_be_read():
    semantic = [9, NAN, 4, NAN]
    quality = [4, 10, NAN, NAN]
    found = viescore(semantic, quality, seed=3)
    rng = np.random.default_rng(3)
    first, second = rng.integers(0, 11, size=4), rng.integers(0, 11, size=4)
    expected = [6, (first[1] * 10) ** 0.5, (4 * second[2]) ** 0.5, (first[3] * second[3]) ** 0.5]
    assert found.tolist() == pytest.approx(expected)
    assert viescore(semantic, quality, seed=3).tolist() == found.tolist()
    guesses = viescore(np.full(4000, NAN), np.full(4000, 10.0), seed=0) ** 2 / 10
    assert sorted(set(guesses.round(9))) == list(range(11))


def test_bpm_s_overall_is_normalised_by_the_evaluated_file():
    """modify from .2 to .6; preserve from −.4 to −.2, of which 0 and −1 have no part."""
    found = bpm_overall([0.2, 0.4, 0.6, 0.6], [-0.4, -0.2, -1, 0], [1, 0, 1, 1], [1, 1, 0, 1])
    assert found.tolist() == pytest.approx(
        [0.7 * 0 + 0.6, 0.7 * 1.5 + 0.3, 0.7 * (1 - 3) + 0.3, 0.7 * (1 + 2) + 0.6]
    )
    plain = bpm_overall([0.2], [0.5], [1], [0], alpha=0.5, normalise=None)
    assert plain.tolist() == pytest.approx([0.5 * 0.7 + 0.5])
    with pytest.raises(ValueError, match="vary over the file"):
        bpm_overall([0.2, 0.2], [0.5, 0.6], [1, 1], [1, 1])


def test_bpm_s_accuracy_is_the_mean_of_rounded_pairs():
    """p and q: people prefer p thrice, the metric twice, once it ties: 2/3 → .667. p and r: people's tie is
    dropped, one of the others is the metric's tie: 1/2. q and r: two ties and one wrong.
    """
    ratings = {"p": [3, 3, 3], "q": [1, 1, 1], "r": [3, 2, 2]}
    scores = {"p": [3, 3, 1], "q": [1, 2, 1], "r": [0, 2, 1]}
    assert bpm_accuracy(scores, ratings) == pytest.approx((0.667 + 0.5 + 0) / 3, abs=1e-12)


def test_fitted_margins_are_the_best_of_all():
    rng = np.random.default_rng(0)
    a = rng.normal(5, 2, 60).round(1)
    b = rng.normal(5, 2, 60).round(1)
    a[7] = NAN
    a[8] = b[8] = NAN
    votes = rng.choice([A, B, TIE, BAD], 60)
    for ways in (3, 4):
        fitted = fit_margins(a, b, votes, ways)
        best = accuracy(decide(a, b, fitted, ways), votes, ways).value
        grid = itertools.product(np.arange(0, 8, 0.1), np.arange(0, 10, 0.5) if ways == 4 else [0.0])
        tried = [accuracy_of(decide(a, b, Margins(*pair), ways), as_ways(votes, ways)) for pair in grid]
        assert best >= max(tried) - 1e-12
    assert fit_margins(a, b, votes, 2) == Margins()
    few = fit_margins(a, b, votes, 4, candidates=5)
    assert accuracy_of(decide(a, b, few, 4), votes) <= best


def accuracy_of(decisions: np.ndarray, votes: np.ndarray) -> float:
    return float((decisions == votes).mean())


def test_margins_that_are_worked_out_by_hand():
    """Differences 1, −1 and 3 with votes tie, both bad and a: a tie up to 2, good from 4 on."""
    fitted = fit_margins([6, 1, 8], [5, 2, 5], [TIE, BAD, A], 4)
    assert fitted == Margins(tie=2.0, good=3.0)  # half-way between 1 and 5
    assert fit_margins([6, 1, 8], [5, 2, 5], [TIE, BAD, A], 3) == Margins(tie=2.0)


def test_held_out_pairs_are_decided_by_the_other_folds_margins():
    """Noise: margins fitted on the pairs themselves beat those of the other folds."""
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 80))
    votes = rng.choice([A, B, TIE, BAD], 80)
    source = np.repeat(np.arange(20), 4)
    decisions, margins = decide_out_of_fold(a, b, votes, source, 4, folds=4, seed=5)
    assert len(margins) == 4
    fold = (np.random.default_rng(5).permutation(20) % 4)[source]
    for number, own in enumerate(margins):
        kept = fold == number
        assert own == fit_margins(a[~kept], b[~kept], votes[~kept], 4)
        assert decisions[kept].tolist() == decide(a[kept], b[kept], own, 4).tolist()
    fitted = accuracy_of(decide(a, b, fit_margins(a, b, votes, 4), 4), votes)
    assert accuracy_of(decisions, votes) < fitted
    with pytest.raises(ValueError, match="expected 2 to 2, the number of source images; got 3"):
        decide_out_of_fold(a[:8], b[:8], votes[:8], source[:8], 4, folds=3)


def test_an_answer_that_is_none_of_the_four_cannot_be_read():
    assert [read_answer(text) for text in ("[[A>B]]", " [[A=B]]\n", "null", None)] == [
        A,
        "equal",
        UNREAD,
        UNREAD,
    ]
    assert read_answer("[[A>B]] or [[B>A]]") == UNREAD


def test_accuracy_leaves_out_what_people_do_not_answer():
    decisions = [A, B, "equal", "equal", "unreadable", TIE]
    votes = [A, A, TIE, BAD, BAD, BAD]
    assert accuracy(decisions, votes, 4).value == pytest.approx(3 / 6)
    assert accuracy(decisions, votes, 3).value == pytest.approx(4 / 6)
    two = accuracy(decisions, votes, 2)
    assert (two.value, two.n) == (0.5, 2)
    nothing = accuracy([A], [TIE], 2)
    assert np.isnan(nothing.value)
    assert nothing.reason == "undefined: there are no items"


def test_baselines_are_what_such_rules_get_on_average():
    votes = np.array([A] * 5 + [B] * 2 + [TIE] + [BAD] * 2)
    four = baselines(votes, 4)
    assert four == pytest.approx(
        {
            "always tie": 0.1,
            "always both bad": 0.2,
            "always equal": 0.3,
            "random answer": 0.25,
            "random score": 0.35,
        }
    )
    three = baselines(votes, 3)
    assert three == pytest.approx({"always tie": 0.3, "random answer": 1 / 3, "random score": 0.35})
    rng = np.random.default_rng(1)
    for ways, answers in ((3, [A, B, TIE]), (4, [A, B, TIE, BAD])):
        wanted = as_ways(votes, ways)
        drawn = [accuracy_of(rng.choice(answers, 10), wanted) for _ in range(1500)]
        assert np.mean(drawn) == pytest.approx(baselines(votes, ways)["random answer"], abs=0.02)
        scored = [accuracy_of(strict(*rng.random((2, 10))), wanted) for _ in range(1500)]
        assert np.mean(scored) == pytest.approx(baselines(votes, ways)["random score"], abs=0.02)
    assert baselines(votes, 2) == {"always tie": 0.0, "random answer": 0.5, "random score": 0.5}


def test_stored_decisions_that_the_stored_scores_do_not_give_are_reported():
    a = [9.5, 1.0, 6.0]
    b = [9.2, 8.0, 6.1]
    assert misdecided(["x", "y", "z"], [TIE, B, BAD], a, b, adiee) == []
    found = misdecided(["x", "y", "z"], [TIE, A, TIE], a, b, adiee)
    assert found == [Misdecided("y", A, B), Misdecided("z", TIE, BAD)]
    with pytest.raises(ValueError, match="got 2, 3, 3"):
        misdecided(["x", "y"], [TIE, A, TIE], a, b, adiee)
