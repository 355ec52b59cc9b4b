"""Direct preference optimisation: its loss by hand, what it does to both edits of a pair, and the cache."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler
from torch.autograd import gradcheck

from rewardedit.batch import EditPair, EditSample
from rewardedit.data import DataConfig
from rewardedit.diffusion.editors import load_editor
from rewardedit.trainers.dpo import pair_loss
from rewardedit.training.finetune import Finetuning
from rewardedit.training.old_policy import reference
from rewardedit.training.pair_cache import PairCache, make_pair_cache
from rewardedit.training.preferences import (
    PairBatch,
    PairErrors,
    PreferenceConfig,
    preference_loss,
    region_weights,
)
from rewardedit.training.trainable import RewardLabels, TrainConfig

DATA = DataConfig("table", "pairs", size=32)
TRAIN = {"max_steps": 1, "batch_size": 2, "lr": 1e-3, "lr_warmup_steps": 0, "log_every": 1, "lora_rank": 4}
TRAIN |= {"tracker": "none", "ema": None, "conditioning_dropout": 0.0, "attention": "sdpa"}


def errors(winner, loser):
    return PairErrors(torch.tensor(winner), torch.tensor(loser), torch.tensor(winner))


def test_the_loss_by_hand():
    now, before = errors([0.5, 0.3], [0.4, 0.2]), errors([0.6, 0.2], [0.3, 0.2])
    # The winner's error fell by 0.1 and the loser's rose by 0.1; then the winner's rose by 0.1.
    margin = now.margin(before, beta=10.0)
    torch.testing.assert_close(margin, torch.tensor([1.0, -0.5]))
    by_hand = [-math.log(1 / (1 + math.exp(-m))) for m in (1.0, -0.5)]
    assert preference_loss(margin).tolist() == pytest.approx(by_hand)
    assert float(preference_loss(torch.zeros(1))) == pytest.approx(math.log(2))
    assert gradcheck(preference_loss, torch.tensor([-3.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True))


def test_beta_is_that_of_the_prediction():
    noise, velocity = DDPMScheduler(), DDPMScheduler(prediction_type="v_prediction")
    assert PreferenceConfig().beta_of(noise) == 2000
    assert PreferenceConfig().beta_of(velocity) == 100
    assert PreferenceConfig().beta_of(FlowMatchEulerDiscreteScheduler()) == 100
    assert PreferenceConfig(beta=7.0).beta_of(noise) == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 0.0}, "beta: expected above 0 and finite; got 0"),
        ({"unmasked": 1.5}, "unmasked: expected a share from 0 to 1; got 1.5"),
        ({"weight": 0.0}, "weight, diffusion_weight: expected one above 0"),
        ({"min_gap": -1.0}, "min_gap: expected at least 0 and finite; got -1"),
    ],
)
def test_settings_without_meaning_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PreferenceConfig(**settings)


def test_a_region_weighs_its_errors_and_keeps_the_mean():
    mask = torch.zeros(2, 1, 4, 4)
    mask[0, :, :2, :2] = 1
    weight = region_weights(mask, unmasked=0.2)
    assert weight[0, 0, 0, 0] == pytest.approx(0.2 + 0.8 * 4)
    assert weight[0, 0, 3, 3] == pytest.approx(0.2)
    torch.testing.assert_close(weight.mean((1, 2, 3)), torch.ones(2))
    assert torch.equal(weight[1], torch.ones(1, 4, 4)), "without a region the whole image"
    assert torch.equal(region_weights(mask, unmasked=1.0), torch.ones(2, 1, 4, 4))


def pairs(n=4):
    """Pairs of random images; the last one's two edits are the same image."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for number in range(n):
        source, winner, loser = torch.rand(3, 3, 32, 32, generator=generator)
        edits = (winner, winner if number == n - 1 else loser)
        samples = [EditSample(str(number), source, f"edit {number}", edited=edit) for edit in edits]
        preferred = "right" if number == 1 else "left"
        left, right = samples[::-1] if number == 1 else samples
        found.append(EditPair(str(number), left, right, preferred))
    return found


@pytest.fixture(scope="module")
def cache(tiny_editor, tmp_path_factory) -> PairCache:
    folder = tmp_path_factory.mktemp("pairs") / "cache"
    return make_pair_cache(pairs(), DATA, load_editor(tiny_editor), folder, {})


def tuning_of(base, cache, folder, **settings) -> Finetuning:
    rows = len(cache.ids)
    return Finetuning(TrainConfig(**TRAIN | settings), base, cache, RewardLabels(None, [0] * rows), folder)


def test_a_cache_holds_both_edits_and_their_source(tiny_editor, cache):
    editor = load_editor(tiny_editor)
    encode = editor.family.encode_images
    second = pairs()[1]
    for name, image in (("edited", second.right), ("rejected", second.left)):
        expected = encode(editor.pipe, image.edited[None])[0]
        torch.testing.assert_close(
            torch.tensor(getattr(cache, name)[1]).float(), expected, rtol=1e-2, atol=1e-2
        )
    scaled = cache.rejected_latents(torch.tensor([0, 2]))
    torch.testing.assert_close(scaled / cache.scaling, torch.tensor(cache.rejected[[0, 2]]).float())
    assert list(cache.unreadable) == [3]
    assert "expected two different edits" in cache.unreadable[3]


def batch_of(tuning: Finetuning, cache: PairCache) -> PairBatch:
    (micro,) = tuning.micro_batches(0)
    return PairBatch.of_data(tuning, micro, cache.rejected_latents(micro.rows))


def test_both_edits_of_a_pair_share_noise_and_time(tiny_editor, cache, tmp_path):
    tuning = tuning_of(tiny_editor, cache, tmp_path)
    both = batch_of(tuning, cache)
    for values in (both.noise, both.times, both.cond.embeds, both.cond.source):
        winner, loser = values.chunk(2)
        assert torch.equal(winner, loser)
    winner, loser = both.x_0.chunk(2)
    assert not torch.equal(winner, loser)
    assert len(both.noise.unique(dim=0)) == 2, "each pair has its own"


def test_the_first_update_starts_at_the_base(tiny_editor, cache, tmp_path):
    """With the adapter off the editor is its base, to the bit; the margin is 0 and the loss log 2."""
    tuning = tuning_of(tiny_editor, cache, tmp_path)
    family, scheduler = tuning.editor.family, tuning.scheduler
    bare = family.denoiser(tuning.editor.pipe)
    both = batch_of(tuning, cache)
    with reference(bare):
        before = both.predict(family, bare, scheduler)
    with torch.no_grad():
        untrained = load_editor(tiny_editor, attention="sdpa").pipe.unet
        assert torch.equal(before, both.predict(family, untrained, scheduler))
        now = both.predict(family, tuning.unet, scheduler)
    margin = both.errors(family, scheduler, now).margin(both.errors(family, scheduler, before), beta=2000.0)
    assert torch.equal(margin, torch.zeros(2))
    assert preference_loss(margin).tolist() == pytest.approx([math.log(2)] * 2)
    for weight in tuning.modules.trained:
        torch.nn.init.normal_(weight.data)
    with reference(bare):
        assert torch.equal(before, both.predict(family, bare, scheduler))
    with torch.no_grad():
        assert not torch.equal(before, both.predict(family, bare, scheduler))


def test_a_step_lowers_the_winner_s_error_alone(tiny_editor, cache, tmp_path):
    """Near pure noise a bright and a dark edit look alike: the prediction must choose one."""
    tuning = tuning_of(tiny_editor, cache, tmp_path)
    family, scheduler = tuning.editor.family, DDPMScheduler(prediction_type="sample")
    both = batch_of(tuning, cache)
    edits = torch.cat(
        [torch.full_like(half, value) for half, value in zip(both.x_0.chunk(2), (3, -3), strict=True)]
    )
    both = replace(both, x_0=edits, times=torch.full_like(both.times, 999))
    expected = both.errors(family, scheduler, both.predict(family, tuning.unet, scheduler).detach())
    now = both.errors(family, scheduler, both.predict(family, tuning.unet, scheduler))
    loss = preference_loss(now.margin(expected, beta=100.0)).mean()
    gradients = torch.autograd.grad(loss, tuning.modules.trained)
    with torch.no_grad():
        for weight, gradient in zip(tuning.modules.trained, gradients, strict=True):
            weight -= 0.1 * gradient
        now = both.errors(family, scheduler, both.predict(family, tuning.unet, scheduler))
    assert (now.winner < expected.winner).all()
    assert (now.loser > expected.loser).all()
    assert (now.margin(expected, beta=100.0) > 0).all()


def test_equal_edits_have_no_gradient(tiny_editor, cache, tmp_path):
    tuning = tuning_of(tiny_editor, cache, tmp_path)
    family, scheduler = tuning.editor.family, tuning.scheduler
    (micro,) = tuning.micro_batches(0)
    both = PairBatch.of_data(tuning, micro, micro.inputs.edited)
    now = both.errors(family, scheduler, both.predict(family, tuning.unet, scheduler))
    before = PairErrors(*(value.detach() for value in vars(now).values()))
    preference_loss(now.margin(before, beta=2000.0)).mean().backward()
    for weight in tuning.modules.trained:
        torch.testing.assert_close(weight.grad, torch.zeros_like(weight), rtol=0, atol=1e-4)


def test_the_diffusion_loss_of_winners_is_unmasked(tiny_editor, cache, tmp_path):
    """It is the fine-tuning's own loss on the preferred edits, whatever the region."""
    tuning = tuning_of(tiny_editor, cache, tmp_path)
    family, scheduler = tuning.editor.family, tuning.scheduler
    (micro,) = tuning.micro_batches(0)
    region = torch.rand(2, 1, 16, 16)
    both = PairBatch.of_data(tuning, micro, cache.rejected_latents(micro.rows), region)
    with torch.no_grad():
        errors = both.errors(family, scheduler, both.predict(family, tuning.unet, scheduler))
        alone = both.winner_errors(family, tuning.unet, scheduler)
        expected = tuning.diffusion_loss(micro)
    torch.testing.assert_close(errors.unmasked.mean(), expected)
    torch.testing.assert_close(alone.mean(), expected)
    assert not torch.allclose(errors.winner, errors.unmasked)


def test_the_diffusion_loss_of_winners_is_unguided(tiny_editor, cache, tmp_path):
    tuning = tuning_of(tiny_editor, cache, tmp_path)
    family, scheduler, fixed = tuning.editor.family, tuning.scheduler, partial(reference, tuning.modules.unet)
    plain = batch_of(tuning, cache)
    cond = replace(plain.cond, null_embeds=torch.zeros_like(plain.cond.embeds[:1]))
    guided = replace(plain, cond=cond, guidance=(3.0, 1.5))
    with torch.no_grad():
        alone = plain.winner_errors(family, tuning.unet, scheduler)
        torch.testing.assert_close(guided.winner_errors(family, tuning.unet, scheduler), alone)
        for both in (plain, guided):
            preferred = pair_loss(PreferenceConfig(), tuning, both, fixed)
            added = pair_loss(PreferenceConfig(diffusion_weight=1.0), tuning, both, fixed)
            torch.testing.assert_close(added - preferred, alone.mean())
