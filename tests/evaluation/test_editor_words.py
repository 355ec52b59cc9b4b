"""The result of a comparison of editors in sentences."""

import numpy as np

from rewardedit.evaluation.editor_page import _headline
from rewardedit.evaluation.editor_words import sentences, table, text_table
from rewardedit.evaluation.editors import EditorScores, compare_editors

NONE = float("nan")


def compared(shift, lost=0):
    """B is better than A by `shift` on some kinds of edit, each of 20 source images."""
    rng = np.random.default_rng(0)
    kinds = [kind for kind in shift for _ in range(20)]
    a = rng.normal(size=len(kinds)) / 10
    b = a + np.array([shift[kind] for kind in kinds]) + rng.normal(size=len(kinds)) / 100
    b[:lost] = NONE
    made = np.ones((len(kinds), 2), dtype=bool)
    scores = {"s": np.stack([a, b], 1)}
    return compare_editors(EditorScores(["A", "B"], scores, made, list(range(len(kinds))), kinds))


def test_better_on_one_kind_and_worse_on_another():
    (line,) = sentences(compared({"add": 0.5, "remove": -0.1, "style": 0.0}))
    assert line.startswith("s: B is better than A by +0.1")
    assert "60 requests, 60 source images" in line
    assert "B is better than A on 'add' edits by +0.5" in line
    assert "A is better than B on 'remove' edits by +0.1" in line
    assert "No difference between B and A can be told on 'style'." in line


def test_higher_mean_and_yet_worse_is_said():
    """A is better on the ten requests that C has a score of, worse on the fifty others."""
    a = np.random.default_rng(0).normal(size=60) / 10
    b = a + np.where(np.arange(60) < 10, -0.2, 0.5)
    c = np.where(np.arange(60) < 10, a - 1, NONE)
    made = np.ones((60, 3), dtype=bool)
    found = compare_editors(EditorScores(list("ABC"), {"s": np.stack([a, b, c], 1)}, made, list(range(60))))
    (line,) = sentences(found)
    assert "A is rated highest, but where both have a score, B is better than A by +0.383 [" in line
    assert "wins 83 % of 60 requests" in line
    assert "; it is better than C by +1.000 " in line
    headline = _headline(found)
    assert headline.verdict == "A is rated highest, but worse than B where both have a score"
    assert headline.tone == ""


def test_no_difference_and_what_was_left_out():
    (line,) = sentences(compared({"": 0.0}, lost=3))
    assert "is rated highest, but no difference can be told to" in line
    assert "17 requests" in line
    assert line.endswith("Left out: B 3 without a valid score.")
    assert " edits by " not in line


def test_scorers_that_disagree_are_named():
    high = np.arange(30.0)[:, None] + np.array([[0.0, 1.0, 2.0]])
    scores = {"x": high, "y": -high, "z": high}
    found = compare_editors(EditorScores(list("ABC"), scores, np.ones((30, 3), bool), list(range(30))))
    *_, best, xy, xz, _ = sentences(found)
    assert best == "The scorers disagree on the best editor: C by x and z; A by y."
    assert "3 editors by x and y: Kendall τ −1.00 [−1.00, −1.00]" in xy
    assert "3 editors by x and z: Kendall τ 1.00 [1.00, 1.00]" in xz


def test_columns_stand_below_one_another():
    one = compared({"": 0.5}).scorers["s"]
    head, first, second = text_table(table(one), "scorer")
    assert first.startswith("B")
    assert second.startswith("A")
    assert head.index("wins, %") == first.index("100 [100, 100]") == second.index("0 [0, 0]")
    assert first.endswith("20 of 20")
