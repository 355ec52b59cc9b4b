"""Best-of-N on the small editor, in two denoising steps."""

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn

from rewardedit import EditSample, SamplingConfig, Scorer, best_of_n, load_editor, load_scorer
from rewardedit.batch import Scores
from rewardedit.images import to_pil
from rewardedit.selection import Selection
from rewardedit.shapes import Shapes
from tests.models import small


@pytest.fixture(scope="module")
def editor():
    editor = load_editor("shapes/editor")
    return replace(editor, settings=replace(editor.settings, num_inference_steps=2))


@pytest.fixture(scope="module")
def sample():
    samples = Shapes("val").batch(0, 1)
    return EditSample("0", samples.source[0], samples.instruction[0])


def test_the_best_is_the_one_with_the_highest_score(editor, sample):
    result = best_of_n(
        editor, load_scorer(small("clip_d:0.7,l1:0.3")), sample.source, sample.instruction, n=4
    )
    assert result.images.shape == (4, 3, 64, 64)
    assert result.seeds == [0, 1, 2, 3]
    assert set(result.scores.parts) == {"clip_d", "l1"}
    best = int(result.scores.score.argmax())
    assert torch.equal(result.best, result.images[best])
    assert result.best_seed == best


def test_the_winner_made_again_alone_is_the_same(editor, sample):
    scorer = load_scorer("l1")
    result = best_of_n(editor, scorer, sample.source, sample.instruction, n=4, seed=7)
    alone = editor(sample.source[None], [sample.instruction], [result.best_seed])
    assert (alone[0] - result.best).abs().max() < 1 / 255
    single = best_of_n(editor, scorer, sample.source, sample.instruction, n=3, seed=7, batch_size=1)
    alone = editor(sample.source[None], [sample.instruction], [single.best_seed])
    assert torch.equal(alone[0], single.best)


def test_what_depends_on_the_source_alone_is_computed_once(editor, sample, monkeypatch):
    scorer = load_scorer("clip_d", checkpoint="shapes/clip")
    counts = {"prepare": 0, "encode": 0}
    prepare = scorer.prepare
    encode = type(editor).encode
    monkeypatch.setattr(
        scorer, "prepare", lambda *a: counts.update(prepare=counts["prepare"] + 1) or prepare(*a)
    )
    monkeypatch.setattr(
        type(editor), "encode", lambda *a, **k: counts.update(encode=counts["encode"] + 1) or encode(*a, **k)
    )
    best_of_n(editor, scorer, sample.source, sample.instruction, n=4, batch_size=2)
    assert counts == {"prepare": 1, "encode": 1}


class Limit:
    """Lets a part of a model run out of memory above a number of rows; keeps the sizes that were tried."""

    def __init__(self, part: nn.Module, rows: int, copies: int = 1) -> None:
        self.rows = rows
        self.copies = copies  # rows of the part for each candidate
        self.sizes: list[int] = []
        self.handle = part.register_forward_pre_hook(self.run_out, with_kwargs=True)

    def run_out(self, part, args, kwargs):
        given = next(value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        self.sizes.append(len(given) // self.copies)
        if self.sizes[-1] > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB")


@pytest.fixture
def clip_d():
    return load_scorer("clip_d", checkpoint="shapes/clip")


@pytest.fixture
def limited():
    """Limits parts of models for the length of a test."""
    limits = []

    def limit(*given) -> Limit:
        limits.append(Limit(*given))
        return limits[-1]

    yield limit
    for one in limits:
        one.handle.remove()


def test_an_editor_that_runs_out_of_memory_halves_its_batch(editor, sample, clip_d, limited):
    asked = (editor, clip_d, sample.source, sample.instruction, 6)
    unbroken = best_of_n(*asked, batch_size=3)
    unet = limited(editor.pipe.unet, 4, 3)  # three rows for each candidate: text, image and neither
    decoder = limited(editor.pipe.vae.decoder, 6)
    found = best_of_n(*asked)
    assert unet.sizes == [6, 3, 3, 3, 3]  # two steps a batch
    assert decoder.sizes == [3, 3]
    assert torch.equal(found.images, unbroken.images)
    assert torch.equal(found.scores.score, unbroken.scores.score)


def test_candidates_that_are_made_stay_where_memory_runs_out_later(editor, sample, clip_d, limited):
    asked = (editor, clip_d, sample.source, sample.instruction, 5)
    unbroken = best_of_n(*asked, batch_size=2)
    unet = limited(editor.pipe.unet, 2, 3)
    decoder = limited(editor.pipe.vae.decoder, 2)
    seen = limited(clip_d.model.vision_model, 2)

    def less(*_) -> None:
        unet.rows = 1

    handle = clip_d.register_forward_hook(less)  # once the first batch is scored
    found = best_of_n(*asked, batch_size=2)
    handle.remove()
    assert unet.sizes == [2, 2, 2, *[1] * 6]
    assert decoder.sizes == [2, 1, 1, 1]
    assert seen.sizes == [1, 2, 1, 1, 1]  # the source first
    assert found.seeds == unbroken.seeds
    torch.testing.assert_close(found.images, unbroken.images, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.scores.score, unbroken.scores.score, rtol=0, atol=1e-3)
    assert found.best_seed == unbroken.best_seed


def test_a_scorer_that_runs_out_of_memory_halves_its_own_batch_alone(editor, sample, clip_d, limited):
    asked = (editor, clip_d, sample.source, sample.instruction, 6)
    unbroken = best_of_n(*asked, batch_size=3)
    unet = limited(editor.pipe.unet, 6, 3)
    seen = limited(clip_d.model.vision_model, 2)
    found = best_of_n(*asked, batch_size=3)
    assert unet.sizes == [3, 3, 3, 3]
    assert seen.sizes == [1, 3, 1, 1, 1, 1, 1, 1]  # the source first
    assert torch.equal(found.images, unbroken.images)
    torch.testing.assert_close(found.scores.score, unbroken.scores.score, rtol=0, atol=1e-5)


def test_garbage_is_collected_after_memory_ran_out_alone(editor, sample, clip_d, limited, monkeypatch):
    found = []
    collect = gc.collect
    monkeypatch.setattr(gc, "collect", lambda *given: found.append(1) or collect(*given))
    asked = (editor, clip_d, sample.source, sample.instruction, 2)
    best_of_n(*asked)
    assert not found
    limited(editor.pipe.unet, 1, 3)
    best_of_n(*asked)
    assert len(found) == 1


class Picky(Scorer):
    """Cannot score what is brighter than a bound."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def score(self, batch, prepared):
        bright = batch.edited.mean((1, 2, 3))
        return Scores.make(bright, reason=["too bright" if b > self.bound else None for b in bright.tolist()])


def test_invalid_candidates_rank_last_and_all_invalid_raises(editor, sample):
    bright = best_of_n(editor, Picky(2.0), sample.source, sample.instruction, n=4)
    order = bright.scores.score.argsort(descending=True).tolist()
    assert bright.ranking == order
    bound = float(bright.scores.score[order[1:3]].mean())
    picky = best_of_n(editor, Picky(bound), sample.source, sample.instruction, n=4)
    assert picky.ranking[:2] == order[2:]
    assert picky.ranking[0] == order[2]
    with pytest.raises(ValueError, match="none of 2 candidates could be scored: too bright"):
        best_of_n(editor, Picky(-1.0), sample.source, sample.instruction, n=2)


def test_what_could_not_be_scored_is_last_below_negative_scores():
    scores = Scores.make(torch.tensor([-3.0, 5.0, -torch.inf, -2.0]), reason=[None, "too bright", None, None])
    found = Selection(torch.arange(4.0)[:, None, None, None].expand(4, 3, 2, 2), scores, [7, 8, 9, 10])
    assert found.ranking == [3, 0, 1, 2]
    assert found.best_seed == 10
    assert (found.best == 3).all()


def test_candidates_are_those_of_the_seeds_that_were_asked_for(editor, sample):
    found = best_of_n(editor, load_scorer("l1"), sample.source, sample.instruction, n=2, seed=7)
    assert found.seeds == [7, 8]
    wanted = editor(sample.source[None].expand(2, -1, -1, -1), [sample.instruction] * 2, [7, 8])
    torch.testing.assert_close(found.images, wanted, rtol=0, atol=1 / 255)
    assert (found.images[0] - found.images[1]).abs().max() > 1 / 255


def test_images_of_the_best_alone_stay_in_memory(editor, sample):
    """Images of thousands of candidates would fill the memory."""
    settings = SamplingConfig(2, 1.75, 1.0)
    asked = (editor, load_scorer("l1"), sample.source, sample.instruction)
    every = best_of_n(*asked, n=5, settings=settings, batch_size=2)
    found = best_of_n(*asked, n=5, settings=settings, batch_size=2, keep=2)
    assert every.kept == [0, 1, 2, 3, 4]
    assert found.kept == sorted(found.ranking[:2])
    assert torch.equal(found.scores.score, every.scores.score)
    assert torch.equal(found.images, every.images[found.kept])
    assert torch.equal(found.best, every.best)
    assert found.images.untyped_storage().nbytes() == found.images.nbytes


def test_bad_input(editor, sample):
    with pytest.raises(ValueError, match="at least 1"):
        best_of_n(editor, load_scorer("l1"), sample.source, sample.instruction, n=0)
    with pytest.raises(ValueError, match="batch_size: expected at least 1; got 0"):
        best_of_n(editor, load_scorer("l1"), sample.source, sample.instruction, n=2, batch_size=0)
    with pytest.raises(ValueError, match="needs target; give them as fields"):
        best_of_n(
            editor, load_scorer("clip_i", checkpoint="shapes/clip"), sample.source, sample.instruction, n=2
        )


def test_a_target_may_be_a_picture(editor, sample):
    found = [
        best_of_n(
            editor,
            load_scorer("clip_i", checkpoint="shapes/clip"),
            sample.source,
            sample.instruction,
            n=2,
            fields={"target": target},
        )
        for target in (sample.source, to_pil(sample.source))
    ]
    torch.testing.assert_close(found[1].scores.score, found[0].scores.score, rtol=0, atol=1e-3)
