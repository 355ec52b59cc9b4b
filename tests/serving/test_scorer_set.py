import pytest
import torch
from torch import Tensor

from rewardedit import EditBatch
from rewardedit.batch import PixelSample
from rewardedit.scorers import load_scorer
from rewardedit.serving.scorer_set import LoadedScorers
from tests.serving.helpers import STRICT


def samples(*instructions: str, side: int = 4) -> list[PixelSample]:
    pixels = torch.zeros(3, side, side, dtype=torch.uint8)
    return [PixelSample("0", pixels, text, pixels) for text in instructions]


@pytest.mark.parametrize(
    ("word", "other", "reason"),
    [
        ("refuse", STRICT, "this instruction is refused"),
        ("one", {"l1": {"region": "outside"}}, "needs mask"),
    ],
)
def test_a_scorer_that_refuses_is_the_only_one_again(word, other, reason):
    sizes = []

    def counting(batch: EditBatch) -> Tensor:
        sizes.append(len(batch))
        return batch.edited.mean((1, 2, 3))

    scorers = {"counting": load_scorer(counting), "other": load_scorer(other)}
    rows = LoadedScorers(scorers, [], 4).score(samples("one", word, "two"), ["counting", "other"])
    assert sizes == [3]
    assert [row["counting"].score for row in rows] == [0, 0, 0]
    assert reason in (rows[1]["other"].reason or "")
    assert (rows[2]["other"].score is None) == (word == "one")


def test_a_scorer_that_fails_spoils_no_other():
    scorers = {"l1": load_scorer("l1"), "strict": load_scorer(STRICT)}
    rows = LoadedScorers(scorers, [], 4).score(samples("one", "fail"), ["l1", "strict"])
    assert [row["l1"].score for row in rows] == [1, 1]
    assert rows[0]["strict"].score == 0
    assert rows[1]["strict"].reason == "KeyError: 'no such word'"


def test_a_field_that_all_lack_is_asked_for_once():
    called = []

    class Masked(type(load_scorer("l1"))):
        def forward(self, *arguments):
            called.append(1)
            return super().forward(*arguments)

    rows = LoadedScorers({"l1": Masked(region="outside")}, [], 4).score(samples("1", "2"), ["l1"])
    assert all("needs mask" in (row["l1"].reason or "") for row in rows)
    assert called == [1]


def test_large_images_leave_batches_of_small_ones(monkeypatch):
    monkeypatch.setattr("rewardedit.serving.scorer_set.MOST_SHAPES", 2)
    sizes = []

    def narrow(batch: EditBatch) -> Tensor:
        sizes.append(len(batch))
        if len(batch) * batch.edited.shape[-1] > 16:
            raise torch.OutOfMemoryError("out of memory")
        return batch.edited.mean((1, 2, 3))

    loaded = LoadedScorers({"narrow": load_scorer(narrow)}, [], 4)
    for side in (16, 4, 16):
        loaded.score(samples("1", "2", "3", "4", side=side), ["narrow"])
    assert sizes == [4, 2, 1, 1, 1, 1, 4, 1, 1, 1, 1]
    for side in range(2, 12):
        loaded.score(samples("1", side=side), ["narrow"])
    assert len(loaded.fitting) <= 2
