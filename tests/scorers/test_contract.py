"""One contract over every scorer."""

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from skimage import data

from rewardedit import EditBatch, Scores, WeightedSum, load_scorer
from rewardedit.images import fit, to_tensor
from rewardedit.models.half_weights import half_weights
from rewardedit.scorer_spec import with_options
from rewardedit.scorers import Scorer
from rewardedit.scorers.base import FunctionScorer
from rewardedit.scorers.load import BUILT_IN
from rewardedit.shapes import Shapes, ShapesBatch, corrupt_targets
from rewardedit.training.reward import with_half_weights
from tests.models import save_dino, small

ROWS = 14  # two of each kind of edit
DICE = {"detector": "change", "coherence": "rules"}
TRAINED_DICE = "dice, trained"
SPECS = [
    *BUILT_IN,
    "dice",
    "clip_d:0.7,l1:0.3",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("dice_clip_i", "dice_clip_t", "lower_of")),
    pytest.param(TRAINED_DICE, marks=pytest.mark.slow),
]
PRESERVATION = {"l1", "l2", "psnr", "ssim", "lpips", "dino_i"}  # a better edit need not keep more
BF16 = {"vifi_clip": 1.0}  # how far rounding may move a score; the others' ranges are a hundred times smaller
READS_NO_TEXT = PRESERVATION | {"clip_i"}
# What the source itself scores; the others say how much it has in common with the target.
UNTOUCHED = {
    "clip_d": 0,
    "l1": 1,
    "l2": 1,
    "psnr": 100,
    "ssim": 1,
    "lpips": 0,
    "dino_i": 1,
    "clip_d:0.7,l1:0.3": 0.3,
    "dice": 0,
    "dice_clip_i": 1,
}


def make_batch(samples: ShapesBatch, edited: torch.Tensor) -> EditBatch:
    return EditBatch(
        samples.source,
        samples.instruction,
        edited,
        samples.target,
        samples.mask,
        samples.source_caption,
        samples.target_caption,
    )


@pytest.fixture(scope="module")
def samples() -> ShapesBatch:
    return Shapes("val").batch(0, ROWS)


@pytest.fixture(scope="module", params=SPECS)
def spec(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def scorer(spec, random_lpips, tiny_dino) -> Scorer:
    if spec == TRAINED_DICE:
        return load_scorer({"dice": {"checkpoint": "shapes/dice"}})
    options = {
        "lpips": {"weights": random_lpips},
        "dino_i": {"checkpoint": tiny_dino},
        "bpm": {"missing_object": "failed"},  # an edit that is not there is worse than one that is
        "dice": DICE,
        "dice_clip_i": {"checkpoint": "shapes/clip", "dice": DICE},
        "dice_clip_t": {"checkpoint": "shapes/clip", "dice": DICE},
        "lower_of": {"scorers": ["adiee", {"bpm": {"missing_object": "failed"}}]},
    }
    return load_scorer(small(with_options(spec, options)))


@pytest.fixture(scope="module")
def good(scorer, samples) -> Scores:
    """Scores of the targets."""
    return scorer(make_batch(samples, samples.target))


def test_scores_are_one_a_row_finite_where_valid_and_within_range(scorer, samples):
    scores = scorer(make_batch(samples, corrupt_targets(samples, {"over_done": 0.5, "half_done": 0.5}, 0)[1]))
    assert scores.score.shape == scores.valid.shape == (ROWS,)
    assert len(scores.reason) == ROWS
    assert torch.equal(scores.score.isfinite(), scores.valid)
    assert [r is None for r in scores.reason] == scores.valid.tolist()
    low, high = scorer.range
    assert ((scores.score[scores.valid] >= low) & (scores.score[scores.valid] <= high)).all()


def test_scores_of_photographs_are_within_range(scorer):
    """Unusual edits: two-level noise, inversion, another image, noise, a tiny change."""
    photos = [data.astronaut(), data.coffee(), data.chelsea(), data.rocket(), data.immunohistochemistry()]
    source = torch.cat([fit(to_tensor(image, 3)[None], 64) for image in photos])
    noise = torch.rand(source.shape, generator=torch.Generator().manual_seed(0))
    changes = [noise.round(), 1 - source, source.roll(1, 0), noise, source * 0.999]
    edited = torch.stack([change[i] for i, change in enumerate(changes)])
    texts = ["make the cup white", "remove the cat", "add a hat", "", "make it night"]
    mask = (noise[:, :1] > 0.5).float()
    scores = scorer(EditBatch(source, texts, edited, source.flip(3), mask, texts, texts[::-1]))
    low, high = scorer.range
    assert torch.equal(scores.score.isfinite(), scores.valid)
    assert ((scores.score[scores.valid] >= low) & (scores.score[scores.valid] <= high)).all()


def test_a_batch_equals_one_by_one(scorer, samples):
    batch = make_batch(samples, samples.target)
    alone = torch.cat([scorer(batch[i : i + 1]).score for i in range(6)])
    torch.testing.assert_close(alone, scorer(batch[:6]).score, rtol=1e-4, atol=1e-5)


def test_prepare_gives_the_same_and_is_repeated_for_candidates(scorer, samples):
    batch = make_batch(samples, samples.target)[:4]
    prepared = scorer.prepare(batch.source, batch.instruction)
    torch.testing.assert_close(scorer(batch, prepared).score, scorer(batch).score, rtol=0, atol=0)
    twice = [0, 0, 1, 1]
    pair = EditBatch(
        batch.source[twice],
        [batch.instruction[i] for i in twice],
        batch.edited[[0, 1, 2, 3]],
        samples.target[twice],
        source_caption=[samples.source_caption[i] for i in twice],
        target_caption=[samples.target_caption[i] for i in twice],
    )
    once = scorer.prepare(batch.source[:2], batch.instruction[:2]).take([0, 0, 1, 1])
    alone = scorer(pair).score
    torch.testing.assert_close(scorer(pair, once).score, alone, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_the_gradient_reaches_every_edit_and_no_weight(scorer, samples):
    if not scorer.differentiable:
        pytest.skip("has no gradient")
    samples = samples[:7]
    edited = samples.source.lerp(samples.target, 0.7).requires_grad_(True)
    scorer(make_batch(samples, edited)).mean().backward()
    assert edited.grad is not None
    assert (edited.grad.flatten(1).abs().sum(1) > 0).all()
    assert edited.grad.isfinite().all()
    assert all(p.grad is None for p in scorer.parameters())


def test_three_small_steps_uphill_raise_the_score(scorer, samples):
    if not scorer.differentiable:
        pytest.skip("has no gradient")
    samples = samples[:7]  # one of each kind of edit
    edited = samples.source.lerp(samples.target, 0.7)
    scores = []
    for _ in range(3):
        edited = edited.detach().requires_grad_(True)
        found = scorer(make_batch(samples, edited))
        scores.append(found.score.detach())
        (gradient,) = torch.autograd.grad(found.mean(), edited)
        length = gradient.flatten(1).norm(dim=1).clamp_min(1e-9)[:, None, None, None]
        edited = edited + 0.02 * gradient / length
    scores.append(scorer(make_batch(samples, edited.detach())).score)
    assert (scores[1] > scores[0]).float().mean() > 0.9
    assert (scores[3] > scores[0]).float().mean() > 0.9


def test_a_better_edit_beats_a_worse_one(spec, scorer, samples, good):
    if spec in PRESERVATION | {"dice_clip_i"}:
        pytest.skip("measures what is kept")
    if spec == "dice":
        pytest.skip("without a model it reads commands, and no colours")
    for quality in ("untouched", "wrong_object", "wrong_colour"):
        bad = scorer(make_batch(samples, corrupt_targets(samples, {quality: 1.0}, 0)[1])).score
        if spec == TRAINED_DICE:  # most rows score 0 or 1: many are equal, and few the other way round
            assert (good.score > bad).sum() > (good.score < bad).sum(), quality
        else:
            assert (good.score > bad).float().mean() > 0.8, quality


def test_bf16_is_near_fp32(spec, scorer, samples, good):
    with torch.autocast("cpu", torch.bfloat16):
        rough = scorer(make_batch(samples, samples.target)).score
    assert (rough - good.score).abs().nanmedian() < BF16.get(spec, 0.05)


def test_allowed_weights_in_bf16_change_nothing_under_autocast(scorer, samples):
    allowed = with_half_weights(scorer)
    if not allowed:
        return
    batch = make_batch(samples, samples.source.lerp(samples.target, 0.7))[:2]
    results = []
    for modules in ([], allowed):
        edited = batch.edited.clone().requires_grad_(scorer.differentiable)
        with half_weights(modules) as held, torch.autocast("cpu", torch.bfloat16):
            score = scorer(batch.with_edited(edited)).score
            if scorer.differentiable:
                score.float().sum().backward()
        results.append((score.detach(), edited.grad, held))
    (score, gradient, _), (other_score, other_gradient, held) = results
    torch.testing.assert_close(score, other_score, rtol=0, atol=0, equal_nan=True)
    assert gradient is other_gradient is None or torch.equal(gradient, other_gradient)
    assert not held.originals, "they are put back"
    torch.testing.assert_close(scorer(batch).score, score.float(), rtol=0, atol=1.0)


def test_inference_mode_changes_no_score_and_no_later_gradient(scorer, samples):
    batch = make_batch(samples, samples.source.lerp(samples.target, 0.7))[:1]
    expected = scorer(batch).score
    with torch.inference_mode():
        prepared = scorer.prepare(batch.source, batch.instruction)
        copied = dataclasses.replace(batch, source=batch.source.clone())
        torch.testing.assert_close(scorer(batch, prepared).score, expected, rtol=0, atol=1e-6)
    if not scorer.differentiable:
        return
    gradients = []
    for of_source, of_batch in ((None, batch), (prepared, batch), (prepared, copied)):
        edited = batch.edited.clone().requires_grad_(True)
        scorer(dataclasses.replace(of_batch, edited=edited), of_source).mean().backward()
        gradients.append(edited.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


def test_two_threads_score_as_one_does(scorer, samples):
    batch = make_batch(samples, samples.target)
    parts = [batch[0:2], batch[2:3]] * 2
    expected = [scorer(part).score for part in parts[:2]] * 2
    with ThreadPoolExecutor(2) as pool:
        scores = [scores.score for scores in pool.map(scorer, parts)]
    for found, alone in zip(scores, expected, strict=True):
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(scorer(parts[0]).score, expected[0], rtol=0, atol=1e-6)  # nothing is left


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_images_may_be_of_any_precision(dtype, spec, scorer, samples, good):
    batch = make_batch(samples, samples.target)[:3]
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    images = {name: v.to(dtype) for name, v in fields.items() if isinstance(v, torch.Tensor)}
    found = scorer(dataclasses.replace(batch, **images)).score.float()
    assert (found - good.score[:3]).abs().nanmedian() < BF16.get(spec, 0.05)


def test_the_untouched_source_scores_as_documented(spec, scorer, samples, good):
    scores = scorer(make_batch(samples, samples.source)).score
    if spec in UNTOUCHED:
        assert scores.tolist() == pytest.approx([UNTOUCHED[spec]] * ROWS, abs=1e-6)
    else:
        assert scores.mean() < good.mean()


def test_the_gradient_is_finite_where_the_source_is_untouched(scorer, samples):
    if not scorer.differentiable:
        pytest.skip("has no gradient")
    samples = samples[:7]
    edited = samples.source.clone().requires_grad_(True)
    scorer(make_batch(samples, edited)).mean().backward()
    assert edited.grad is not None
    assert edited.grad.isfinite().all()


def test_a_black_picture_is_scored_and_is_no_good(scorer, samples, good):
    black = scorer(make_batch(samples, torch.zeros_like(samples.source)))
    assert black.score[black.valid].isfinite().all()
    assert black.mean() < good.mean()


def test_shuffled_texts_and_swapped_pictures_score_lower(spec, scorer, samples, good):
    moved = [*range(1, ROWS), 0]
    shuffled = EditBatch(
        samples.source,
        [samples.instruction[i] for i in moved],
        samples.target,
        samples.target,
        source_caption=[samples.source_caption[i] for i in moved],
        target_caption=[samples.target_caption[i] for i in moved],
    )
    swapped = EditBatch(
        samples.target,
        samples.instruction,
        samples.source,
        samples.target,
        source_caption=samples.source_caption,
        target_caption=samples.target_caption,
    )
    if spec in READS_NO_TEXT:
        assert torch.equal(scorer(shuffled).score, good.score)
    else:
        assert scorer(shuffled).mean() < good.mean()
    if spec in PRESERVATION:
        torch.testing.assert_close(scorer(swapped).score, good.score)
    else:
        assert scorer(swapped).mean() < good.mean()


def test_the_class_says_where_the_score_comes_from(scorer):
    if not isinstance(scorer, WeightedSum):
        assert scorer.paper


def test_missing_fields_and_missing_gradients_are_refused_before_any_compute(samples):
    class Needy(Scorer):
        required_fields = frozenset({"mask"})

        def prepare(self, source, instruction):
            raise AssertionError("must not be reached")

    batch = EditBatch(samples.source, samples.instruction, samples.target)
    with pytest.raises(ValueError, match="Needy needs mask; set that field of the EditBatch"):
        Needy()(batch)
    flat = load_scorer(lambda batch: batch.edited.mean((1, 2, 3)))
    with pytest.raises(ValueError, match="has no gradient with respect to the edited image"):
        flat(EditBatch(samples.source, samples.instruction, samples.target.clone().requires_grad_(True)))


def test_no_gradient_reaches_an_invalid_row_and_others_keep_theirs(samples):
    def overflows(batch: EditBatch) -> torch.Tensor:
        """Row 1's is inf − inf, and its gradient 0 · inf."""
        big = torch.ones(len(batch))
        big[1] = torch.inf
        return (batch.edited * big[:, None, None, None]).mean((1, 2, 3)) - (big - 1)

    scorer = FunctionScorer(overflows, differentiable=True)
    brightness = torch.ones((), requires_grad=True)
    edited = samples.target * brightness
    edited.retain_grad()
    scores = scorer(EditBatch(samples.source, samples.instruction, edited))
    assert scores.valid.tolist() == [i != 1 for i in range(len(samples))]
    scores.mean().backward()
    assert edited.grad is not None
    assert (edited.grad[1] == 0).all()
    others = [i for i in range(len(samples)) if i != 1]
    assert (edited.grad[others] > 0).all()
    wanted = samples.target[others].mean((1, 2, 3)).mean()
    torch.testing.assert_close(brightness.grad, wanted)


def test_a_function_is_a_scorer_and_its_nan_is_invalid(samples):
    def mean(batch: EditBatch) -> torch.Tensor:
        out = batch.edited.mean((1, 2, 3))
        return torch.where(torch.arange(len(out)) == 1, torch.nan, out)

    scores = load_scorer(mean)(EditBatch(samples.source, samples.instruction, samples.target))
    assert scores.valid.tolist() == [True, False] + [True] * (ROWS - 2)
    with pytest.raises(ValueError, match=rf"expected one score a row, \({ROWS},\)"):
        load_scorer(lambda batch: batch.edited)(
            EditBatch(samples.source, samples.instruction, samples.target)
        )


def test_a_weighted_sum_adds_up_and_is_invalid_where_a_part_is(samples):
    same = [samples.source_caption[0], *samples.target_caption[1:]]
    batch = EditBatch(
        samples.source,
        samples.instruction,
        samples.target,
        source_caption=samples.source_caption,
        target_caption=same,
    )
    scores = load_scorer(small("clip_d:0.7,l1:0.3"))(batch)
    assert scores.valid.tolist() == [False] + [True] * (ROWS - 1)
    assert scores.reason[0] == "clip_d: source and target texts are the same: no direction"
    parts = scores.parts
    torch.testing.assert_close(scores.score[1:], 0.7 * parts["clip_d"][1:] + 0.3 * parts["l1"][1:])
    assert load_scorer(small("clip_d:0.7,l1:0.3")).range == pytest.approx((-0.7, 1.0))


def test_the_random_dino_is_the_same_whatever_was_drawn_before(tmp_path):
    weights = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        save_dino(str(tmp_path))
        assert torch.equal(torch.get_rng_state(), state)
        weights.append(load_scorer("dino_i", checkpoint=str(tmp_path)).state_dict())
    torch.testing.assert_close(*weights, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_dino_s_claims_hold_for_other_weights_too(seed, samples, tmp_path):
    """Other releases of torch and transformers draw other weights from the same seed."""
    save_dino(str(tmp_path), seed)
    scorer = load_scorer("dino_i", checkpoint=str(tmp_path))
    good = scorer(make_batch(samples, samples.target))
    test_three_small_steps_uphill_raise_the_score(scorer, samples)
    test_a_black_picture_is_scored_and_is_no_good(scorer, samples, good)
    test_the_untouched_source_scores_as_documented("dino_i", scorer, samples, good)
    test_bf16_is_near_fp32("dino_i", scorer, samples, good)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("clipd", "file.py:function or package.module:Class; did you mean clip_d?"),
        ("clip-t", "; did you mean clip_t?"),
        ("clip_x", "no scorer named 'clip_x'; expected one of clip_d, clip_t, clip_i, l1, l2, psnr"),
        ("clip_d:0.7,l1", "expected a sum such as clip_d:0.7,l1:0.3"),
        ("clip_d:0.7,clip_d:0.3", "each scorer once"),
        ("l1:0", "expected a finite weight other than 0"),
        ("os:path", "expected a subclass of rewardedit.Scorer"),
        ("nowhere.to.be:Found", "cannot be imported"),
        ("rewardedit.shapes:ShapesOracle", "the exact rating knows the truth"),
        ("shapes_oracle", "the exact rating knows the truth"),
    ],
)
def test_bad_names_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        load_scorer(spec)


@pytest.mark.parametrize("place", ["oracle/mine.py", "my_Oracle.py", "delphi_oracles/by/hand.py"])
def test_a_scorer_of_one_s_own_may_lie_anywhere(place, tmp_path):
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("def bright(batch):\n    return batch.edited.mean((1, 2, 3))\n")
    samples = Shapes("val").batch(0, 2)
    batch = EditBatch(samples.source, samples.instruction, samples.target)
    scores = load_scorer(f"{file}:bright")(batch).score
    torch.testing.assert_close(scores, samples.target.mean((1, 2, 3)))


def test_each_scorer_of_a_sum_has_options_of_its_own():
    samples = Shapes("val").batch(0, 3)
    batch = EditBatch(samples.source, samples.instruction, samples.target, target=samples.target.flip(0))
    loaded = load_scorer({"l1": {"weight": 0.25, "against": "target"}, "ssim": {"weight": 2}})
    parts = {"l1": load_scorer("l1", against="target")(batch).score, "ssim": load_scorer("ssim")(batch).score}
    torch.testing.assert_close(loaded(batch).parts, parts)
    torch.testing.assert_close(loaded(batch).score, 0.25 * parts["l1"] + 2 * parts["ssim"])


def test_a_class_of_ones_own_stands_in_a_sum(samples):
    batch = EditBatch(samples.source, samples.instruction, samples.target)
    own = load_scorer("rewardedit.scorers.preservation:L1:0.5,l2:2")
    scores = own(batch)
    assert set(scores.parts) == {"rewardedit.scorers.preservation:L1", "l2"}
    expected = 0.5 * load_scorer("l1")(batch).score + 2 * load_scorer("l2")(batch).score
    torch.testing.assert_close(scores.score, expected)


def test_options_go_where_they_are_taken():
    with pytest.raises(ValueError, match="scorer l1: expected options among against, region; got checkpoint"):
        load_scorer("l1", checkpoint="x")
    with pytest.raises(ValueError, match="checkpoint: say which of its scorers takes it"):
        load_scorer("clip_d:0.7,l1:0.3", checkpoint="shapes/clip")
    with pytest.raises(ValueError, match="no CLIP model can be loaded"):
        load_scorer({"clip_d": {"weight": 0.7, "checkpoint": "/nowhere"}, "l1": {"weight": 0.3}})
    with pytest.raises(ValueError, match="scorer l1: expected options among against, region; got checkpoint"):
        load_scorer({"l1": {"checkpoint": "x"}})
    assert not isinstance(load_scorer({"l1": {}}), WeightedSum)
    assert math.isinf(load_scorer(lambda batch: batch.edited.mean((1, 2, 3))).range[0])
