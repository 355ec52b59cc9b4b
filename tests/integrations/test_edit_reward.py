"""The shared piece of all adapters: lists of images in, scores or reasons out."""

from pathlib import Path

import numpy as np
import pytest
import torch

import rewardedit.integrations
from rewardedit import EditBatch, load_scorer, scorer
from rewardedit.images import resize, to_pil
from rewardedit.integrations.edit_reward import EditReward, rewards_of

FOLDER = Path(rewardedit.integrations.__file__).parent


def images(*sizes: tuple[int, int], seed: int = 0) -> list[torch.Tensor]:
    """Random images (3, h, w) whose values are whole bytes, so that PIL holds them exactly."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(256, (3, *size), generator=generator) / 255 for size in sizes]


@scorer(range=(0, 1), required_fields=["target_caption"])
def length(batch: EditBatch) -> torch.Tensor:
    """The number of letters of the caption."""
    return torch.tensor([float(len(caption)) for caption in batch.target_caption])


def test_rows_of_mixed_sizes_come_back_in_order():
    sizes = [(8, 12), (16, 16), (10, 10), (8, 12), (16, 16)]
    source = images(*sizes)
    edited = images((8, 12), (32, 32), (10, 10), (8, 12), (16, 16), seed=1)
    scores = EditReward("l1", batch_size=2)(source, edited, ["make it warmer"] * 5)
    alone = load_scorer("l1")
    for i in range(5):
        fitted = resize(edited[i][None], sizes[i])
        expected = alone(EditBatch(source[i][None], ["x"], fitted)).score
        assert float(scores.score[i]) == pytest.approx(float(expected), abs=2e-3)


@pytest.mark.parametrize("kind", ["pil", "array", "bytes"])
def test_every_form_of_image_gives_the_same_score(kind):
    source, edited = images((8, 8), (8, 8))
    convert = {
        "pil": to_pil,
        "array": lambda image: np.asarray(to_pil(image)),
        "bytes": lambda image: (image * 255).round().byte(),
    }[kind]
    reward = EditReward("l1")
    expected = reward([source], [edited], ["x"]).score
    torch.testing.assert_close(reward([convert(source)], [convert(edited)], ["x"]).score, expected)


def test_a_bad_row_has_a_reason_and_the_others_scores():
    source = images((8, 8), (8, 8), (8, 8))
    edited = images((8, 8), (8, 8), (8, 8), seed=1)
    edited[0] = edited[0] * torch.nan
    scores = EditReward("l1")(source, edited, ["a", "b", " "])
    assert scores.valid.tolist() == [False, True, False]
    assert "expected an instruction" in str(scores.reason[2])
    assert scores.score[0].isnan()
    with pytest.raises(ValueError, match=r"2 of 3 edits have no score; edit 0: .*"):
        rewards_of(scores)


def test_an_edit_without_its_source_is_refused():
    edited = images((8, 8), (8, 8))
    for source, got in ((None, "got 0"), (edited[:1], "got 1"), ([edited[0], None], "got none for 1")):
        with pytest.raises(ValueError, match=rf"source: expected the source image of each of 2 .*{got}"):
            EditReward("l1")(source, edited, ["a", "b"])
    with pytest.raises(ValueError, match="expected an instruction for each of 2 edits; got 1"):
        EditReward("l1")(edited, edited, ["a"])
    with pytest.raises(ValueError, match="at least one edit"):
        EditReward("l1")([], [], [])


def test_a_caption_is_taken_from_its_row_or_missed():
    pair = images((8, 8), (8, 8))
    rows = [{"target_caption": "a cat", "mask": "cat.png"}, None]
    scores = EditReward(length)(pair, pair, ["a", "b"], rows)
    assert scores.score.nan_to_num(-1).tolist() == [5, -1]
    assert "needs target_caption" in str(scores.reason[1])


def test_adapters_stay_thin():
    for path in FOLDER.rglob("*.py"):
        if path.name != "edit_reward.py":
            assert sum(bool(line.strip()) for line in path.read_text().splitlines()) <= 60, path
