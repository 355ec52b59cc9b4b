"""Pairs by a judge: how many are in memory at a time, and the result in words."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from rewardedit.data.editor_rows import open_editors
from rewardedit.evaluation import judged_pairs
from rewardedit.evaluation.judged_pairs import compare_judged, judge_pairs, judged_sentences
from rewardedit.scorers.vlm_pairs import PairVerdict


class Watched:
    """A judge for which the first edit is better; it notes the pairs that it is given at a time."""

    def __init__(self):
        self.given = []

    def __call__(self, pairs):
        self.given.append(list(pairs))
        return [PairVerdict("first", ("A", "B")) for _ in pairs]


@pytest.fixture
def rows(tmp_path):
    """Five sources of 20 x 30 pixels with edits by two editors, those of B twice as large."""
    rng = np.random.default_rng(0)
    for name, size in (("S", (30, 20)), ("A", (30, 20)), ("B", (60, 40))):
        (tmp_path / name).mkdir()
        for i in range(5):
            noise = Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8))
            noise.resize(size).save(tmp_path / name / f"{i}.png")
    instructions = tmp_path / "asked.csv"
    instructions.write_text("name,instruction\n" + "".join(f"{i},make it red\n" for i in range(5)))
    return open_editors([str(tmp_path / "A"), str(tmp_path / "B")], str(tmp_path / "S"), instructions)


def test_large_images_are_judged_a_few_at_a_time(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(judged_pairs, "PIXELS", 2 * 20 * 30)
    judge = Watched()
    records = judge_pairs(rows, ("A", "B"), tmp_path / "out", {}, lambda: judge)
    assert [len(pairs) for pairs in judge.given] == [2, 2, 1]
    assert [record["better"] for record in records] == ["a"] * 5
    for pair in judge.given[0]:
        for image in (pair.source, pair.first, pair.second):
            assert image.dtype == torch.uint8
            assert image.shape == (3, 20, 30)


def records_of(*better, sources=None):
    """Records of one source each with these verdicts."""
    letters = {"a": ["A", "B"], "b": ["B", "A"], "tie": ["A", "A"], None: [None, None]}
    records = []
    for number, one in enumerate(better):
        source = str(number) if sources is None else sources
        records.append({"a": "X", "b": "Y", "source": source, "better": one, "answers": letters[one]})
    return records


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        (
            records_of(*["b"] * 12, "tie", None),
            "Y is better than X: Y wins 96 % [86 to 100] of 13 pairs, a tie counting half; the orders "
            "disagree on 1 of them; 54 % of the answers prefer the edit shown first; 1 pair without a "
            "verdict.",
        ),
        (
            records_of("a", "b", "tie", "tie"),
            "no difference can be told between X and Y: X wins 50 % [0 to 100] of 4 pairs, a tie counting "
            "half; the orders disagree on 2 of them; 75 % of the answers prefer the edit shown first.",
        ),
        (
            records_of("a", "a", "b"),
            "X wins more often, but no difference can be told to Y: X wins 67 % [0 to 100] of 3 pairs, a tie "
            "counting half; the orders disagree on 0 of them; 50 % of the answers prefer the edit shown "
            "first.",
        ),
        (
            records_of("b", "b", "a", sources="one"),
            "Y wins more often, but no difference can be told to X: Y wins 67 % (no interval: all items are "
            "of one source image) of 3 pairs, a tie counting half; the orders disagree on 0 of them; 50 % of "
            "the answers prefer the edit shown first.",
        ),
        (records_of(None, None), "no verdict on X and Y (2 pairs)."),
    ],
)
def test_the_result_is_told_in_a_sentence(records, sentence):
    (said,) = judged_sentences(compare_judged(records), "a judge")
    assert said == f"Pairs by a judge: {sentence}"


def test_editors_without_a_common_request_have_no_pairs(rows, tmp_path):
    assert judge_pairs(rows, ("A", "C"), tmp_path / "out", {}, Watched) == []
    assert json.dumps(compare_judged([])) == "[]"
