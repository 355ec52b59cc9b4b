"""Sampling with noise: the stock pipelines' latents without it, the right spread with it, and
log-probabilities that are those of the normal distributions drawn from.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler, FlowMatchHeunDiscreteScheduler
from torch.distributions import Normal

from rewardedit.diffusion.families import Conditioning, EditFamily, family_of
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.diffusion.families.kontext import FluxKontext
from rewardedit.diffusion.rollout import RolloutConfig
from rewardedit.diffusion.stochastic import (
    NoiseConfig,
    StochasticSampler,
    Trajectory,
    stochastic_scheduler,
    transition,
)
from rewardedit.training.memory.blueprint import load_scheduler
from tests.diffusion.test_families import PROMPT, conditioning, noise_like, stock
from tests.editors import small_qwen_area, tiny_distilled_klein, tiny_klein, tiny_kontext, tiny_qwen
from tests.models import tiny_pipeline

FLOW_EDITORS = {"kontext": tiny_kontext, "klein": tiny_klein, "qwen": tiny_qwen}
DATA_STD = 0.49
ALL = (0.0, 1.0)
TEXTS = ["make it red", "remove the circle"]
FAMILY = InstructPix2Pix()


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def schedule(steps: int, first: float = 1.0) -> FlowMatchEulerDiscreteScheduler:
    """Levels from `first` to 1/steps in equal distances, then 0."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
    scheduler.set_timesteps(sigmas=np.linspace(first, 1 / steps, steps))
    return scheduler


def velocity(x: torch.Tensor, sigma: float) -> torch.Tensor:
    """E[ε − x_0 | x] for x = (1 − σ) x_0 + σ ε and x_0 of N(0, DATA_STD²)."""
    variance = (1 - sigma) ** 2 * DATA_STD**2 + sigma**2
    return x * (sigma - (1 - sigma) * DATA_STD**2) / variance


def spread(steps: int, first: float, noise: NoiseConfig) -> float:
    """Standard deviation of samples of the Gaussian, drawn by its exact velocity."""
    generator = torch.Generator().manual_seed(7)
    scheduler: Any = schedule(steps, first)
    x = torch.randn(200_000, 1, 1, 1, generator=generator)
    for i in range(steps):
        moves = transition(scheduler, noise, i, velocity(x, float(scheduler.sigmas[i])), x)
        x = moves.mean + moves.std * torch.randn(x.shape, generator=generator)
    return float(x.std())


SPREADS: list[tuple[str, float, dict[int, float]]] = [
    ("sde", 0.7, {10: 0.472, 20: 0.483, 50: 0.489}),
    ("sde", 0.0, {10: 0.425, 20: 0.457, 50: 0.477}),
    ("cps", 0.7, {10: 0.365, 20: 0.387, 50: 0.403}),
]


@pytest.mark.parametrize(
    ("first", "sampler", "level", "expected"),
    [
        *((1.0, *spreads) for spreads in SPREADS),
        (0.999, *SPREADS[0]),
        *(pytest.param(0.999, *spreads, marks=pytest.mark.slow) for spreads in SPREADS[1:]),
    ],
)
def test_samples_of_a_gaussian_have_the_known_spread(first, sampler, level, expected):
    """Figures of another implementation, for a first level of 1. Its samples and ours each have an error of
    three times .49 / √(2n), .0023 at n = 200,000 here; the figures are rounded to .0005. With σ in the place
    of σ₁ a first level of .999 gives 3.99, 1.87 and .79.
    """
    for steps, std in expected.items():
        found = spread(steps, first, NoiseConfig(sampler, level, None, ALL))
        assert found == pytest.approx(std, abs=0.005), steps


@pytest.mark.parametrize("inside", [None, torch.arange(12).reshape(1, 1, 3, 4) % 3 == 0])
@pytest.mark.parametrize("sampler", ["sde", "ddim", "cps"])
def test_log_probabilities_are_those_of_normal_distributions(sampler, inside):
    scheduler: Any = schedule(10)
    if sampler == "ddim":
        scheduler = DDIMScheduler(clip_sample=False)
        scheduler.set_timesteps(10)
    x, pred, drawn, other = torch.randn(4, 2, 3, 3, 4, generator=torch.Generator().manual_seed(0)).unbind()
    noise = NoiseConfig(sampler, 0.7)
    moves = transition(scheduler, noise, 4, pred, x)
    latents = moves.mean + moves.std * drawn
    # CPS leaves 1/(2s²) and the constants out: a spread of √½.
    normal = Normal(moves.mean, 0.5**0.5 if sampler == "cps" else moves.std)
    each = normal.log_prob(latents) + (0.5 * math.log(math.pi) if sampler == "cps" else 0.0)
    chosen = torch.ones(1, 1, 3, 4, dtype=torch.bool) if inside is None else inside
    expected = each.masked_select(chosen).reshape(2, -1).mean(1)
    rows = None if inside is None else inside.expand(2, -1, -1, -1)
    torch.testing.assert_close(moves.log_prob(latents, rows), expected, rtol=1e-6, atol=1e-6)

    reference = transition(scheduler, noise, 4, other, x)
    divergence = torch.distributions.kl_divergence(
        Normal(moves.mean, moves.std), Normal(reference.mean, moves.std)
    )
    expected = divergence.masked_select(chosen).reshape(2, -1).mean(1)
    torch.testing.assert_close(moves.divergence(reference, rows), expected, rtol=1e-5, atol=1e-6)


def test_the_step_of_the_sde_by_hand():
    """σ = .5, σ' = .4 of ten steps: s² = .49 · .5/.5, drift s²/2σ = .49, dt = −.1."""
    moves = transition(
        schedule(10), NoiseConfig("sde", 0.7), 5, torch.full((1, 1, 1, 1), 2.0), torch.ones(1, 1, 1, 1)
    )
    assert moves.std == pytest.approx(0.7 * 0.1**0.5)
    assert float(moves.mean) == pytest.approx((1 - 0.049) + 2 * (1 + 0.49 * 0.5) * -0.1)


def test_ddim_of_most_noise_is_real_at_every_number_of_steps():
    """At 24 steps of the packaged editor's schedule 1 − ᾱ' − s² is −1e-16 by rounding."""
    own = load_scheduler("shapes/editor")
    x = torch.ones(1, 1, 1, 1)
    for steps in range(14, 29):
        scheduler = stochastic_scheduler(FAMILY, own, "ddim")
        scheduler.set_timesteps(steps)
        for i in range(steps - 1):
            moves = transition(scheduler, NoiseConfig("ddim", 1.0), i, x, x)
            assert moves.mean.dtype == torch.float32, (steps, i)
            assert moves.mean.isfinite().all(), (steps, i)


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return {}


# klein's steps are those of the others
@pytest.fixture(params=["kontext", pytest.param("klein", marks=pytest.mark.slow), "qwen"])
def flow(request, made, monkeypatch):
    small_qwen_area(monkeypatch)
    if request.param not in made:
        made[request.param] = FLOW_EDITORS[request.param]()
    return made[request.param]


def make_sampler(
    pipe: Any, noise: NoiseConfig, steps: int = 3, guidance: float | None = None
) -> StochasticSampler:
    config = RolloutConfig(steps, grad_steps=0, guidance_scale=guidance)
    return StochasticSampler(family_of(pipe), pipe.scheduler, noise, config, noise_like(pipe))


def rolled(
    pipe: Any,
    noise: NoiseConfig,
    window: range,
    steps: int = 3,
    guidance: float | None = None,
    inside: torch.Tensor | None = None,
    rows: int = 1,
) -> Trajectory:
    cond = conditioning(pipe, [PROMPT] * rows)
    sampler = make_sampler(pipe, noise, steps, guidance)
    seeds = generators(*range(rows))
    return sampler.rollout(pipe.transformer, noise_like(pipe, rows), cond, window, seeds, inside)


@pytest.mark.parametrize(
    ("sampler", "guidance"),
    [
        ("sde", None),
        pytest.param("sde", 3.0, marks=pytest.mark.slow),
        pytest.param("cps", None, marks=pytest.mark.slow),
    ],
)
def test_without_noise_flow_editors_follow_the_stock_pipeline(flow, sampler, guidance):
    family = family_of(flow)
    expected = family.to_latents(stock(flow, guidance), 64, 64, flow.vae_scale_factor)
    still = rolled(flow, NoiseConfig(sampler, 0.0), range(2), guidance=guidance)
    assert torch.equal(still.latents, expected)
    assert still.log_probs.shape == (1, 0)
    nowhere = torch.zeros(1, 1, *expected.shape[-2:], dtype=torch.bool)
    masked = rolled(flow, NoiseConfig(sampler, 0.9), range(2), guidance=guidance, inside=nowhere)
    assert torch.equal(masked.latents, expected)
    assert (masked.log_probs == 0).all()


@pytest.mark.slow
def test_distilled_klein_without_noise_is_the_stock_pipeline(made):
    pipe = tiny_distilled_klein()
    expected = family_of(pipe).to_latents(stock(pipe, None), 64, 64, pipe.vae_scale_factor)
    assert torch.equal(rolled(pipe, NoiseConfig("sde", 0.0), range(2)).latents, expected)


@pytest.fixture(scope="module", params=["epsilon", "v_prediction"])
def instructed(request):
    pipe = tiny_pipeline()
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler = DDIMScheduler(clip_sample=False, set_alpha_to_one=False, prediction_type=request.param)
    return pipe


@pytest.mark.parametrize("guidance", [None, 3.0])
@pytest.mark.parametrize("eta", [0.0, 0.6])
def test_ddim_follows_the_stock_pipeline_with_the_same_noise(instructed, eta, guidance):
    pipe = instructed
    image = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    texts = [FAMILY.encode_prompts(pipe, words) for words in (TEXTS, [""])]
    cond = Conditioning(texts[0], FAMILY.encode_images(pipe, image), texts[1])
    initial = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    noise = NoiseConfig("ddim", eta)
    config = RolloutConfig(4, grad_steps=0, guidance_scale=guidance, image_guidance_scale=1.5)
    sampler = StochasticSampler(FAMILY, pipe.scheduler, noise, config, initial)
    found = sampler.rollout(
        pipe.unet, initial, cond, range(3), generators(3, 4)
    )  # the last, from t = 0, has none
    scales = {"guidance_scale": guidance or 1.0, "image_guidance_scale": 1.5, "eta": eta}
    options = {"num_inference_steps": 4, "latents": initial, "generator": generators(3, 4)}
    with torch.no_grad():
        expected = pipe(TEXTS, image=image, output_type="latent", **scales, **options).images
    if not eta:
        assert torch.equal(found.latents, expected)
        return
    torch.testing.assert_close(found.latents, expected, rtol=1e-4, atol=1e-4)
    moves = sampler.replay(pipe.unet, 2, found.states[:, 2], cond)
    assert torch.equal(moves.log_prob(found.states[:, 3]), found.log_probs[:, 2])
    moves.log_prob(found.states[:, 3]).sum().backward()
    assert pipe.unet.conv_out.weight.grad is not None
    pipe.unet.zero_grad(set_to_none=True)


@pytest.mark.parametrize("sampler", ["sde", pytest.param("cps", marks=pytest.mark.slow)])
def test_a_stored_trajectory_is_replayed_with_ratio_one(flow, sampler):
    noise = NoiseConfig(sampler, 0.7)
    found = rolled(flow, noise, range(2), rows=2)
    cond = conditioning(flow, [PROMPT] * 2)
    replayed = make_sampler(flow, noise)
    assert {found.states.dtype, found.log_probs.dtype} == {torch.float32}
    assert torch.equal(found.states[:, 0], noise_like(flow, 2))
    for step in range(2):
        moves = replayed.replay(flow.transformer, step, found.states[:, step], cond)
        ratio = (moves.log_prob(found.states[:, step + 1]) - found.log_probs[:, step]).exp()
        assert (ratio == 1).all()
        assert ratio.requires_grad


def test_steps_outside_the_window_are_the_schedulers(made):
    pipe = made.setdefault("kontext", tiny_kontext())
    family = family_of(pipe)
    cond = conditioning(pipe)
    late = rolled(pipe, NoiseConfig("sde", 0.7), range(2, 3), steps=4)
    scheduler = make_sampler(pipe, NoiseConfig("sde", 0.7), 4).scheduler

    def follow(latents: torch.Tensor, steps: range) -> torch.Tensor:
        for i in steps:
            with torch.no_grad():
                pred = family.predict(pipe.transformer, latents, scheduler.timesteps[i], cond)
            latents = latents + (scheduler.sigmas[i + 1] - scheduler.sigmas[i]) * pred
        return latents

    assert torch.equal(late.states[:, 0], follow(noise_like(pipe), range(2)))
    assert torch.equal(late.latents, follow(late.states[:, 1], range(3, 4)))
    assert not torch.equal(late.latents, follow(noise_like(pipe), range(4)))


def test_noise_stays_inside_its_mask(made):
    pipe = made.setdefault("kontext", tiny_kontext())
    cond = conditioning(pipe)
    inside = torch.zeros(1, 1, *noise_like(pipe).shape[-2:], dtype=torch.bool)
    inside[..., :5, 3:] = True
    noise = NoiseConfig("sde", 0.7)
    masked = rolled(pipe, noise, range(2), inside=inside)
    whole = rolled(pipe, noise, range(2))

    # Before the first step with noise both are the same.
    first, everywhere = masked.states[:, 1], whole.states[:, 1]
    inner = inside.expand_as(first)
    assert torch.equal(first[inner], everywhere[inner])
    sampler = make_sampler(pipe, noise)
    sigmas = sampler.scheduler.sigmas
    ode = noise_like(pipe) + (sigmas[1] - sigmas[0]) * _velocity(pipe, cond)
    assert torch.equal(first[~inner], ode[~inner])

    moves = sampler.replay(pipe.transformer, 0, masked.states[:, 0], cond)
    assert torch.equal(moves.log_prob(first, inside), masked.log_probs[:, 0])
    changed = torch.where(inside, first, first + 1)
    assert torch.equal(moves.log_prob(changed, inside), masked.log_probs[:, 0]), "the outside has no credit"


def _velocity(pipe: Any, cond: Conditioning) -> torch.Tensor:
    with torch.no_grad():
        return family_of(pipe).predict(pipe.transformer, noise_like(pipe), torch.tensor(1000.0), cond)


def test_windows_lie_within_their_part_of_the_schedule():
    noise = NoiseConfig("sde", 0.7, 2, (0.0, 0.5))
    drawn = {noise.window(10, torch.Generator().manual_seed(seed)) for seed in range(40)}
    assert drawn == {range(start, start + 2) for start in range(4)}
    assert NoiseConfig("sde", 0.7, None).window(10, torch.Generator()) == range(5)
    assert NoiseConfig("sde", 0.7, None, ALL).window(10, torch.Generator()) == range(9)
    with pytest.raises(ValueError, match="noise_steps: expected 1 to 2, the number of 4 steps within"):
        NoiseConfig("sde", 0.7, 3).window(4, torch.Generator())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("cps", 1.1), "noise_level: expected 0 to 1 for cps; got 1.1"),
        (("sde", -0.1), "noise_level: expected at least 0 for sde"),
        (("sde", 0.7, 0), "noise_steps: expected at least 1"),
        (("sde", 0.7, 1, (0.5, 0.5)), "two rising shares"),
    ],
)
def test_impossible_noise_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        NoiseConfig(*options)


@pytest.mark.parametrize(
    ("family", "scheduler", "sampler", "message"),
    [
        (FAMILY, DDIMScheduler(), "sde", "expected ddim for InstructPix2Pix"),
        (FluxKontext(), FlowMatchEulerDiscreteScheduler(), "ddim", "expected sde or cps for FluxKontext"),
        (FluxKontext(), FlowMatchHeunDiscreteScheduler(), "sde", "got FlowMatchHeunDiscreteScheduler"),
        (FluxKontext(), FlowMatchEulerDiscreteScheduler(stochastic_sampling=True), "cps", "published"),
    ],
)
def test_samplers_of_other_predictions_are_refused(family, scheduler, sampler, message):
    assert isinstance(family, EditFamily)
    with pytest.raises(ValueError, match=message):
        stochastic_scheduler(family, scheduler, sampler)
