"""Tables of DICE's evaluation, on values derived by hand."""

import numpy as np
import pytest
import torch

from rewardedit.batch import EditBatch, Scores
from rewardedit.evaluation.dice import (
    Judged,
    augmented_table,
    coherence_accuracy,
    coherence_precision,
    detect_all,
    detection_table,
    editors_table,
    false_alarms,
    judge_all,
)
from rewardedit.regions.change_detector import ChangeDetector
from rewardedit.regions.differences import WHOLE, Detection, Difference
from rewardedit.scorers.dice_rules import CoherenceRules
from rewardedit.scorers.dice_vlm import Verdict

LEFT = (0.0, 0.0, 0.4, 1.0)
RIGHT = (0.6, 0.0, 1.0, 1.0)


def test_backgrounds_are_left_out_and_unread_answers_found_nothing():
    truth = [[Difference("ADD", "a", LEFT)], [Difference("EDIT", "a", WHOLE)], [Difference("ADD", "a", LEFT)]]
    found = [
        Detection((Difference("ADD", "a", LEFT), Difference("EDIT", "a", WHOLE)), 3),
        Detection((Difference("EDIT", "a", WHOLE),), 1),
        Detection((), 0, "no difference could be read"),
    ]
    table = detection_table(found, truth, resamples=20)
    assert table["aware"]["ap"] == pytest.approx(51 / 101)  # all recalls up to a half
    assert table["aware"]["ap50"] == table["ADD"]["ap50"] == pytest.approx(51 / 101)
    assert (table["invalid"], table["dropped"]) == (pytest.approx(1 / 3), pytest.approx(0.25))
    assert "EDIT" not in table
    assert table["aware"]["n"] == 3
    wrong = [Detection((Difference("EDIT", "a", LEFT),), 1), *found[1:]]
    table = detection_table(wrong, truth, resamples=2)
    assert (table["aware"]["ap"], table["agnostic"]["ap"]) == (0.0, pytest.approx(51 / 101))


def test_false_alarms_are_counted_among_readable_answers():
    one = Detection((Difference("ADD", "a", LEFT),), 1)
    estimate = false_alarms([one, Detection(()), Detection(()), Detection((), reason="unread")])
    assert estimate.value == pytest.approx(1 / 3)


def test_judgements_are_compared_with_labels():
    verdicts = [Verdict(True, 1, ""), Verdict(False, 0, ""), Verdict(None, float("nan"), "")]
    assert coherence_accuracy(verdicts, [True, True, False]).value == pytest.approx(1 / 3)
    truth = [[Judged(LEFT, 1, True), Judged(RIGHT, 1, False)]]
    assert coherence_precision(truth, truth).value == pytest.approx(1)
    half = [[Judged(LEFT, 0.9, True), Judged(RIGHT, 0.8, True)]]
    assert coherence_precision(half, truth).value == pytest.approx(0.5)


def test_detectors_and_judges_run_over_batches():
    source = torch.full((2, 3, 64, 64), 0.5)
    edited = source.clone()
    edited[:, 0, 16:48, 16:48] = 1.0
    batch = EditBatch(source, ["add a cup", "remove the cup"], edited)
    found = detect_all(ChangeDetector(), [batch[:1], batch[1:]])
    assert [[one.command for one in detection.differences] for detection in found] == [["ADD"], ["ADD"]]
    verdicts = judge_all(CoherenceRules(), batch, [detection.differences for detection in found])
    assert [row[0].coherent for row in verdicts] == [True, False]


def test_an_augmented_metric_s_change_is_over_rows_that_both_score():
    rng = np.random.default_rng(0)
    truth = rng.random(60)
    plain = truth + rng.normal(0, 0.5, 60)
    masked = truth + rng.normal(0, 0.1, 60)
    masked[0] = np.nan
    table = augmented_table(plain, masked, truth, list(range(60)), resamples=50)
    assert table["n"] == 59
    for method in ("pearson", "spearman"):
        own = table[method]
        assert own["change"] == pytest.approx(own["masked"] - own["plain"])
        assert 0 < own["ci95"][0] < own["change"] < own["ci95"][1]


def test_editors_are_ranked_beside_their_ratings():
    def scores(value: float) -> Scores:
        part = torch.full((2,), value)
        parts = {"coherent": part, "unwanted_area": 1 - part, "unchanged": torch.tensor([0.0, 1.0])}
        return Scores.make(part, parts, [None, None])

    invalid = Scores.make(torch.tensor([0.2, 0.2]), scores(0.2).parts, [None, "unread"])
    table = editors_table(
        {"a": scores(0.5), "b": scores(0.9), "c": invalid}, {"a": [5, 7], "b": [4, 4], "c": [1, 1]}
    )
    rows = table["editors"]
    assert [rows[name]["rank"] for name in "abc"] == [2, 1, 3]
    assert [rows[name]["rank_by_rating"] for name in "abc"] == [1, 2, 3]
    assert (rows["c"]["invalid"], rows["a"]["unchanged"], rows["a"]["rating"]) == (0.5, 0.5, 6)
    assert table["spearman"] == pytest.approx(0.5)
