"""Reward guidance: nothing at scale 0, uphill above it, and a scheduler that is left as it was."""

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EDMEulerScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    LCMScheduler,
)

from rewardedit import EditBatch, load_editor, load_scorer, reward_guidance
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.diffusion.guidance import mask_guidance
from rewardedit.diffusion.reward_guidance import ascent_direction
from rewardedit.diffusion.schedulers import pred_x0, pred_x0_coefficients
from rewardedit.shapes import Shapes
from tests.models import small, tiny_pipeline

SCHEDULERS = {
    "ddim": DDIMScheduler(clip_sample=False),
    "ddpm": DDPMScheduler(clip_sample=False),
    "lcm": LCMScheduler(original_inference_steps=1000, timestep_scaling=1e9),
    "v_prediction": DDIMScheduler(clip_sample=False, prediction_type="v_prediction"),
    "euler": EulerDiscreteScheduler(),
    "euler_ancestral": EulerAncestralDiscreteScheduler(),
}


@pytest.fixture
def pipe():
    pipe = tiny_pipeline()
    pipe.set_progress_bar_config(disable=True)
    return pipe


SOURCE = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TEXTS = ["make it red", "make it blue"]


def edit(pipe, **options) -> torch.Tensor:
    seeds = [torch.Generator().manual_seed(s) for s in (0, 1)]
    ask = {"image": SOURCE, "num_inference_steps": 4, "generator": seeds, "output_type": "pt"}
    ask |= {"guidance_scale": 2.0, "image_guidance_scale": 1.0}
    return pipe(TEXTS, **{**ask, **options}).images


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_score_rises_and_scale_zero_is_the_stock_pipeline(pipe, name):
    pipe.scheduler = SCHEDULERS[name]
    scorer = load_scorer("l1")
    plain = edit(pipe)
    with reward_guidance(pipe, scorer, SOURCE, TEXTS, scale=0.0):
        assert torch.equal(edit(pipe), plain)
    with reward_guidance(pipe, scorer, SOURCE, TEXTS, scale=0.2):
        guided = edit(pipe)
    score = [scorer(EditBatch(SOURCE, TEXTS, edited)).score for edited in (plain, guided)]
    assert (score[1] > score[0]).all()
    assert torch.equal(edit(pipe), plain)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_clean_latents_are_the_schedulers_own(name):
    scheduler = type(SCHEDULERS[name]).from_config(SCHEDULERS[name].config)
    scheduler.set_timesteps(5)
    sample = torch.randn(1, 4, 8, 8)
    predicted = torch.randn(1, 4, 8, 8)
    timestep = scheduler.timesteps[0]
    a, b = pred_x0_coefficients(scheduler, timestep, 0)
    scheduler.scale_model_input(sample, timestep)
    wanted = pred_x0(scheduler, predicted, timestep, sample, {})
    torch.testing.assert_close(a * sample + b * predicted, wanted, rtol=1e-4, atol=1e-3)


def test_it_holds_for_the_steps_asked_for_and_leaves_nothing_behind(pipe):
    calls = []

    def count(batch: EditBatch) -> torch.Tensor:
        calls.append(len(batch))
        return batch.edited.mean((1, 2, 3))

    scorer = load_scorer(count, differentiable=True)
    for between in ((0.5, 1.0), (0.0, 0.5)):
        calls.clear()
        with reward_guidance(pipe, scorer, SOURCE, TEXTS, between=between):
            edit(pipe)
        assert calls == [2, 2]  # two of four steps
    with (
        pytest.raises(ValueError, match="2 sources for 4 images"),
        reward_guidance(pipe, scorer, SOURCE, TEXTS),
    ):
        edit(pipe, num_images_per_prompt=2, generator=torch.Generator().manual_seed(0))
    assert "step" not in vars(pipe.scheduler)


@pytest.mark.parametrize("mask_first", [True, False])
def test_a_mask_and_a_reward_guide_one_call(pipe, mask_first):
    """At no mask and at no scale it is the other alone, to the bit; neither is left behind."""
    corner = torch.zeros(1, 1, 32, 32)
    corner[..., :16, :16] = 1

    def both(mask: torch.Tensor, scale: float) -> torch.Tensor:
        blocks = [
            lambda: mask_guidance(pipe, mask),
            lambda: reward_guidance(pipe, load_scorer("l1"), SOURCE, TEXTS, scale=scale),
        ]
        first, second = blocks if mask_first else blocks[::-1]
        with first(), second():
            return edit(pipe)

    stock = edit(pipe)
    with mask_guidance(pipe, corner):
        masked = edit(pipe)
    with reward_guidance(pipe, load_scorer("l1"), SOURCE, TEXTS, scale=0.2):
        rewarded = edit(pipe)
    assert torch.equal(both(torch.ones_like(corner), 0.0), stock)
    assert torch.equal(both(corner, 0.0), masked)
    assert torch.equal(both(torch.ones_like(corner), 0.2), rewarded)
    together = both(corner, 0.2)
    score = load_scorer("l1")
    assert (
        score(EditBatch(SOURCE, TEXTS, together)).score > score(EditBatch(SOURCE, TEXTS, masked)).score
    ).all()
    assert torch.equal(edit(pipe), stock)


def test_a_block_within_a_block_leaves_the_outer_one_as_it_was(pipe):
    with reward_guidance(pipe, load_scorer("l1"), SOURCE, TEXTS, scale=0.2):
        guided = edit(pipe)
        with reward_guidance(pipe, load_scorer("ssim"), SOURCE, TEXTS, scale=0.1):
            assert not torch.equal(edit(pipe), guided)
        assert torch.equal(edit(pipe), guided)
    assert "step" not in vars(pipe.scheduler)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"scale": -1.0}, "scale: expected at least 0"), ({"between": (0.5, 0.2)}, "two rising shares")],
)
def test_bad_settings_are_refused(pipe, options, message):
    with (
        pytest.raises(ValueError, match=message),
        reward_guidance(pipe, load_scorer("l1"), SOURCE, TEXTS, **options),
    ):
        pass


def test_scorers_without_gradient_and_other_schedulers_are_refused_before_any_call(pipe):
    flat = load_scorer(lambda batch: batch.edited.mean((1, 2, 3)))
    with pytest.raises(ValueError, match="has no gradient"), reward_guidance(pipe, flat, SOURCE, TEXTS):
        pass
    for other in (DPMSolverMultistepScheduler, EDMEulerScheduler):
        pipe.scheduler = other()
        with (
            pytest.raises(ValueError, match=other.__name__),
            reward_guidance(pipe, load_scorer("l1"), SOURCE, TEXTS),
        ):
            pass


@pytest.mark.world
def test_the_small_editor_is_guided_by_clip():
    samples = Shapes("val").batch(0, 14)
    editor = load_editor("shapes/editor")
    scorer = load_scorer("clip_d", checkpoint="shapes/clip")
    plain = editor(samples.source, samples.instruction, range(14))
    with reward_guidance(editor.pipe, scorer, samples.source, samples.instruction, scale=0.1):
        guided = editor(samples.source, samples.instruction, range(14))
    before, after = (
        scorer(EditBatch(samples.source, samples.instruction, edited)).mean() for edited in (plain, guided)
    )
    assert after > before


def decoder_and_latents():
    """A random autoencoder, and the latents of an image."""
    vae = tiny_pipeline().vae
    image = Shapes("val").batch(0, 1).target[..., ::2, ::2]
    with torch.no_grad():
        return vae, vae.encode(image * 2 - 1).latent_dist.mode() * vae.config.scaling_factor


def score_of(name: str):
    samples = Shapes("val").batch(0, 1)
    scorer = load_scorer(small(name))
    source = samples.source[..., ::2, ::2]
    return lambda edited: scorer(EditBatch(source, samples.instruction, edited)).mean()


# At 32 pixels a side l1 times 0.004 has the gradient that l1 has at 512; clip_d's is as small for a distant
# reason.
@pytest.mark.parametrize("name", ["l1:0.004", "clip_d:0.0001"])
def test_a_gradient_too_small_for_fp16_keeps_its_direction(name):
    vae, clean = decoder_and_latents()
    score = score_of(name)
    latents = clean.clone().requires_grad_(True)
    (wanted,) = torch.autograd.grad(score(InstructPix2Pix().decode(vae, latents)), latents)
    found = ascent_direction(InstructPix2Pix(), vae.half(), score, clean)
    assert torch.cosine_similarity(found.flatten(), wanted.flatten(), dim=0) > 0.99
    assert found.square().mean().sqrt() == pytest.approx(1, abs=1e-4)
    assert torch.equal(
        ascent_direction(InstructPix2Pix(), vae.half(), lambda edited: 0 * edited.sum(), clean),
        torch.zeros_like(clean),
    )


def test_a_decoder_that_overflows_in_fp16_runs_in_fp32_and_stays_fp16():
    vae, clean = decoder_and_latents()
    score = score_of("l1")
    with torch.no_grad():
        vae.decoder.conv_in.weight.mul_(5e4 / vae.decoder.conv_in.weight.abs().max())
    wanted = ascent_direction(InstructPix2Pix(), vae, score, clean)
    with torch.no_grad():
        assert not InstructPix2Pix().decode(vae.half(), clean.half()).isfinite().all()
    found = ascent_direction(InstructPix2Pix(), vae, score, clean)
    assert torch.cosine_similarity(found.flatten(), wanted.flatten(), dim=0) > 0.99
    assert vae.dtype == torch.float16


def test_in_fp16_the_size_of_a_score_does_not_matter(pipe):
    pipe = pipe.to(torch.float16)
    with reward_guidance(pipe, load_scorer("l1"), SOURCE, TEXTS, scale=0.2):
        wanted = edit(pipe)
    with reward_guidance(pipe, load_scorer("l1:0.0001"), SOURCE, TEXTS, scale=0.2):
        torch.testing.assert_close(edit(pipe), wanted, rtol=0, atol=0.02)
