"""Ranks with ties counted against us, the swap and identity tests, and the tables by kind."""

import pytest
import torch

from rewardedit import EditBatch
from rewardedit.evaluation.retrieval import Retrieval, retrieve
from rewardedit.scorers.vifi_clip import ViFiClip
from rewardedit.shapes import Shapes


def test_ties_count_against_us():
    scores = torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0], [5.0, 4.0, 3.0]])
    found = Retrieval(scores, swapped=torch.tensor([3.0, 0.0, 0.0]), identity=torch.tensor([0.0, 2.0, 3.0]))
    assert found.ranks.tolist() == [1, 2, 3]
    assert found.swap_won.tolist() == [False, True, True]
    summary = found.summary(["add", "add", None])
    assert summary["mean_rank"] == summary["median_rank"] == 2
    assert summary["recall@1"] == pytest.approx(1 / 3)
    assert summary["recall@5"] == 1
    assert (summary["swap"], summary["identity"]) == pytest.approx((2 / 3, 1 / 3))
    assert list(summary["kinds"]) == ["add"]
    add = summary["kinds"]["add"]
    assert (add["n"], add["mean_rank"], add["recall@1"]) == (2, 1.5, 0.5)


def test_a_score_that_is_none_is_the_worst():
    scores = torch.tensor([[3.0, 1.0], [torch.nan, torch.nan]])
    assert Retrieval(scores, swapped=torch.zeros(2), identity=torch.zeros(2)).ranks.tolist() == [1, 2]


def test_the_median_rank_is_no_mean():
    scores = torch.eye(12)
    scores[-1, :-1] = 2.0  # the last is found behind all others
    found = Retrieval(scores, swapped=torch.zeros(12), identity=torch.zeros(12)).summary([None] * 12)
    assert found["median_rank"] == 1
    assert found["mean_rank"] == pytest.approx((11 + 12) / 12)
    assert (found["recall@5"], found["recall@10"], found["recall@50"]) == pytest.approx((11 / 12, 11 / 12, 1))


def test_scores_are_the_scorers_own():
    samples = Shapes("val").batch(0, 12)
    batch = EditBatch(samples.source, samples.instruction, samples.target)
    scorer = ViFiClip.from_pretrained("shapes/clip").eval()
    found = retrieve(scorer, [batch[:5], batch[5:]])
    with torch.no_grad():
        torch.testing.assert_close(found.own, scorer(batch).score, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.swapped, found.own, rtol=1e-4, atol=1e-3)
    with pytest.raises(ValueError, match="expected each instruction once"):
        retrieve(scorer, [batch, batch])
