"""The differentiable rollout: the stock pipeline's latents, exactly K steps with gradient,
and gradients that are right.
"""

import copy
from dataclasses import replace

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    LCMScheduler,
    UniPCMultistepScheduler,
)
from peft import LoraConfig

from rewardedit import EditBatch, load_scorer, mask_guidance
from rewardedit.diffusion.families import Conditioning
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.diffusion.rollout import (
    RolloutConfig,
    rollout,
    steps_with_gradient,
    steps_without_gradient,
)
from rewardedit.diffusion.schedulers import require_differentiable
from rewardedit.images import clamp_straight_through
from tests.models import tiny_pipeline

SCHEDULERS = {
    "ddim": DDIMScheduler(clip_sample=False),
    "ddpm": DDPMScheduler(clip_sample=False),
    "lcm": LCMScheduler(original_inference_steps=1000, timestep_scaling=1e9),
    "euler": EulerDiscreteScheduler(),
    "euler_ancestral": EulerAncestralDiscreteScheduler(),
    "dpmsolver++": DPMSolverMultistepScheduler(),
    "heun": HeunDiscreteScheduler(),
    "unipc": UniPCMultistepScheduler(),
}
FAMILY = InstructPix2Pix()
TEXTS = ["make it red", "remove the circle"]


@pytest.fixture(params=SCHEDULERS)
def scheduler(request):
    return SCHEDULERS[request.param]


@pytest.fixture(scope="module")
def pipe():
    pipe = tiny_pipeline()
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def given(pipe):
    image = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    embeds = FAMILY.encode_prompts(pipe, TEXTS)
    nothing = FAMILY.encode_prompts(pipe, [""])
    return image, Conditioning(embeds, FAMILY.encode_images(pipe, image), nothing)


def noise(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(seed))


def generators() -> list[torch.Generator]:
    return [torch.Generator().manual_seed(s) for s in (3, 4)]


class Watch:
    """Counts a UNet's calls, and those that carry a gradient."""

    def __init__(self, unet):
        self.unet = unet
        self.calls = 0
        self.with_gradient = 0

    def __call__(self, *args, **options):
        out = self.unet(*args, **options)
        self.calls += 1
        self.with_gradient += out[0].requires_grad
        return out


@pytest.mark.parametrize("guidance", [None, 3.0])
def test_without_gradient_the_latents_are_the_stock_pipelines(pipe, given, scheduler, guidance):
    picture, conditions = given
    pipe.scheduler = type(scheduler).from_config(scheduler.config)
    how = RolloutConfig(
        num_inference_steps=4, grad_steps=0, guidance_scale=guidance, image_guidance_scale=1.5
    )
    ours = rollout(FAMILY, pipe.unet, scheduler, noise(), conditions, how, generators())
    options = {"guidance_scale": guidance or 1.0, "image_guidance_scale": 1.5, "output_type": "latent"}
    options |= {"num_inference_steps": 4, "latents": noise(), "generator": generators()}
    with torch.no_grad():
        stock = pipe(TEXTS, image=picture, **options).images
    assert torch.equal(ours, stock)
    assert not ours.requires_grad


def test_mask_guidance_is_the_hooks(pipe, given):
    picture, conditions = given
    pipe.scheduler = DDIMScheduler(clip_sample=False)
    mask = torch.zeros(2, 1, 16, 16)
    mask[..., 4:9, 5:] = 1
    masked = Conditioning(conditions.embeds, conditions.source, conditions.null_embeds, mask)
    config = RolloutConfig(3, grad_steps=0, guidance_scale=3.0, image_guidance_scale=1.5)
    ours = rollout(FAMILY, pipe.unet, pipe.scheduler, noise(), masked, config)
    options = {
        "guidance_scale": 3.0,
        "image_guidance_scale": 1.5,
        "num_inference_steps": 3,
        "output_type": "latent",
    }
    with mask_guidance(pipe, mask):
        assert torch.equal(ours, pipe(TEXTS, image=picture, latents=noise(), **options).images)


def test_a_mask_fits_a_unet_of_half_precision(pipe, given):
    _, conditions = given
    mask = torch.ones(2, 1, 16, 16)
    halves = (part.bfloat16() for part in (conditions.embeds, conditions.source, conditions.null_embeds))
    half = Conditioning(*halves, mask)
    unet = copy.deepcopy(pipe.unet).bfloat16()
    found = FAMILY.predict(unet, noise().bfloat16(), torch.tensor(500), half, 3.0, 1.5)
    assert found.dtype == torch.bfloat16
    assert torch.equal(
        found, FAMILY.predict(unet, noise().bfloat16(), torch.tensor(500), replace(half, mask=None), 3.0, 1.5)
    )


@pytest.mark.parametrize(
    ("grad_steps", "stop", "expected"), [(1, None, 1), (2, 3, 2), (None, None, 5), (0, None, 0)]
)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_exactly_k_calls_carry_a_gradient_which_reaches_the_unet_alone(
    pipe, given, grad_steps, stop, expected, checkpointing
):
    unet = pipe.unet.requires_grad_(True)
    pipe.vae.requires_grad_(False)
    watch = Watch(unet)
    how = RolloutConfig(5, stop, grad_steps, gradient_checkpointing=checkpointing)
    latents = rollout(FAMILY, watch, DDIMScheduler(clip_sample=False), noise(), given[1], how)
    assert watch.calls == (stop or 5)
    assert watch.with_gradient == expected
    assert latents.requires_grad == (expected > 0)
    if expected:
        FAMILY.decode(pipe.vae, latents).mean().backward()
        assert all(p.grad is not None for p in unet.parameters())
        assert all(p.grad is None for p in pipe.vae.parameters())
        unet.zero_grad(set_to_none=True)


def test_every_scheduler_that_is_named_passes_a_gradient_on(pipe, given, scheduler):
    pipe.unet.requires_grad_(True)
    latents = rollout(
        FAMILY, pipe.unet, scheduler, noise(), given[1], RolloutConfig(4, grad_steps=1), generators()
    )
    gradient = torch.autograd.grad(latents.square().mean(), pipe.unet.conv_out.weight)[0]
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize("guidance", [None, 2.0])
def test_rows_that_start_together_go_on_as_they_would_alone(pipe, given, scheduler, guidance):
    """Multistep schedulers keep earlier predictions, and some draw noise."""
    unet = pipe.unet.requires_grad_(True)
    mask = torch.ones(2, 1, 16, 16) if guidance else None
    cond = Conditioning(given[1].embeds, given[1].source, given[1].null_embeds, mask)
    how = RolloutConfig(5, grad_steps=2, guidance_scale=guidance)
    watch = Watch(unet)
    start = steps_without_gradient(FAMILY, watch, scheduler, noise(), cond, how, generators())
    together = watch.calls
    assert watch.with_gradient == 0
    assert not start.latents.requires_grad

    for row in range(2):
        rows = slice(row, row + 1)
        watch = Watch(unet)
        latents = steps_with_gradient(FAMILY, watch, start.take(rows))
        assert watch.calls == watch.with_gradient == 2
        again = Watch(unet)
        alone = rollout(FAMILY, again, scheduler, noise()[rows], cond.take(rows), how, generators()[rows])
        assert again.calls == together + 2
        torch.testing.assert_close(latents, alone, rtol=1e-4, atol=1e-4)
        gradients = [
            torch.autograd.grad(found.square().mean(), unet.conv_out.weight)[0] for found in (latents, alone)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_steps_with_gradient_can_be_taken_twice_from_one_state(pipe, given):
    how = RolloutConfig(4, grad_steps=2)
    start = steps_without_gradient(FAMILY, pipe.unet, DPMSolverMultistepScheduler(), noise(), given[1], how)
    once, twice = (steps_with_gradient(FAMILY, pipe.unet, start) for _ in range(2))
    assert torch.equal(once, twice)


class Keeper(DDIMScheduler):
    def step(self, *args, **options):
        self.tree = object()
        return super().step(*args, **options)


def test_a_state_that_cannot_be_divided_is_refused(pipe, given):
    how = RolloutConfig(3)
    start = steps_without_gradient(FAMILY, pipe.unet, Keeper(), noise(), given[1], how)
    with pytest.raises(ValueError, match=r"Keeper: keeps tree \(object\) between steps, .* use DDIM, DDPM"):
        start.take(slice(0, 1))
    assert steps_with_gradient(FAMILY, pipe.unet, start).shape == noise().shape, "as a whole it goes on"
    own = torch.Generator().manual_seed(0)
    start = steps_without_gradient(FAMILY, pipe.unet, pipe.scheduler, noise(), given[1], how, own)
    with pytest.raises(ValueError, match="generator: expected one for each row"):
        start.take(slice(0, 1))


@pytest.mark.parametrize(("grad_steps", "steps"), [(None, 3), (2, 4)])
def test_gradients_are_those_of_finite_differences(given, grad_steps, steps):
    pipe = tiny_pipeline().to(dtype=torch.float64)
    scheduler = DDIMScheduler(clip_sample=False)
    conditions = given[1]
    exact = Conditioning(conditions.embeds.double(), conditions.source.double())
    how = RolloutConfig(steps, grad_steps=grad_steps)
    start = noise().double()
    if grad_steps is not None:  # the steps before do not depend on the weights: they end at a fixed latent

        class Prefix:
            def __init__(self, unet, frozen):
                self.unet = unet
                self.frozen = frozen
                self.calls = 0

            def __call__(self, *args, **options):
                self.calls += 1
                return (self.frozen if self.calls <= steps - grad_steps else self.unet)(*args, **options)

        frozen = tiny_pipeline().to(dtype=torch.float64).unet

    def value() -> torch.Tensor:
        unet = pipe.unet if grad_steps is None else Prefix(pipe.unet, frozen)
        images = pipe.vae.decode(rollout(FAMILY, unet, scheduler, start, exact, how), return_dict=False)[0]
        return images.square().mean()

    weight = pipe.unet.mid_block.resnets[0].conv1.weight
    (gradient,) = torch.autograd.grad(value(), weight)
    for index in ((0, 0, 1, 1), (3, 5, 0, 2)):
        with torch.no_grad():
            weight[index] += 1e-5
            above = value()
            weight[index] -= 2e-5
            below = value()
            weight[index] += 1e-5
        assert float(above - below) / 2e-5 == pytest.approx(float(gradient[index]), rel=1e-4, abs=1e-10)


def test_saturated_pixels_keep_the_unclamped_gradient():
    image = torch.tensor([-0.5, 0.25, 1.75], requires_grad=True)
    clamped = clamp_straight_through(image)
    assert torch.equal(clamped, image.detach().clamp(0, 1))
    (clamped * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert image.grad is not None
    assert image.grad.tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", ["ddim", "ddpm", "euler", "euler_ancestral", "dpmsolver++"])
def test_the_predicted_clean_latents_are_scored_at_a_late_step(pipe, given, name):
    scheduler = SCHEDULERS[name]
    how = RolloutConfig(10, stop=8, grad_steps=1, scored="pred_x0")
    latents = rollout(FAMILY, pipe.unet.requires_grad_(True), scheduler, noise(), given[1], how, generators())
    assert latents.requires_grad
    noisy = rollout(
        FAMILY, pipe.unet, scheduler, noise(), given[1], RolloutConfig(10, stop=7, grad_steps=0), generators()
    )
    if name == "ddim":  # x0 = (x_t − √(1 − ᾱ) ε) / √ᾱ
        own = DDIMScheduler.from_config(scheduler.config)
        own.set_timesteps(10)
        t = own.timesteps[7]
        alpha = own.alphas_cumprod[t]
        with torch.no_grad():
            predicted = pipe.unet(torch.cat([noisy, given[1].source], 1), t, given[1].embeds).sample
        torch.testing.assert_close(
            latents.detach(), (noisy - (1 - alpha).sqrt() * predicted) / alpha.sqrt(), rtol=1e-4, atol=1e-4
        )


def test_with_an_adapter_the_gradient_reaches_it_alone_and_no_scorer(pipe, given):
    unet = copy.deepcopy(pipe.unet).requires_grad_(False)
    unet.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    pipe.vae.requires_grad_(False)
    scorer = load_scorer("vifi_clip", checkpoint="shapes/vifi-clip")
    # steps without gradient come first, and their casts of weights are kept
    with torch.autocast("cpu", torch.bfloat16):
        latents = rollout(FAMILY, unet, DDIMScheduler(clip_sample=False), noise(), given[1], RolloutConfig(3))
        scorer(EditBatch(given[0], TEXTS, FAMILY.decode(pipe.vae, latents))).mean().backward()
    assert all((p.grad is not None) == ("lora" in name) for name, p in unet.named_parameters())
    assert all(p.grad is None for module in (pipe.vae, scorer) for p in module.parameters())


class Detached(DDIMScheduler):
    def step(self, model_output, *args, **options):
        return super().step(model_output.detach(), *args, **options)


def test_what_cannot_be_rolled_out_is_refused_by_name(pipe, given):
    with pytest.raises(ValueError, match="Detached: its step has no gradient"):
        rollout(FAMILY, pipe.unet, Detached(), noise(), given[1], RolloutConfig(4))
    with pytest.raises(ValueError, match="UniPCMultistepScheduler returns no prediction"):
        rollout(
            FAMILY,
            pipe.unet,
            UniPCMultistepScheduler(),
            noise(),
            given[1],
            RolloutConfig(4, scored="pred_x0"),
        )
    with pytest.raises(ValueError, match="guidance needs the empty prompt"):
        rollout(
            FAMILY,
            pipe.unet,
            pipe.scheduler,
            noise(),
            Conditioning(given[1].embeds, given[1].source),
            RolloutConfig(4, guidance_scale=2.0),
        )
    with pytest.raises(ValueError, match="HeunDiscreteScheduler: calls the UNet 7 times in 4 steps"):
        rollout(FAMILY, pipe.unet, HeunDiscreteScheduler(), noise(), given[1], RolloutConfig(4, stop=3))
    masked = Conditioning(given[1].embeds, given[1].source, mask=torch.ones(2, 1, 16, 16))
    with pytest.raises(ValueError, match="leave the mask out"):
        rollout(FAMILY, pipe.unet, pipe.scheduler, noise(), masked, RolloutConfig(4))
    require_differentiable(DDIMScheduler())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": 21}, "stop: expected 1 to 20"),
        ({"stop": 3, "grad_steps": 4}, "grad_steps: expected 0 to 3"),
        ({"guidance_scale": 1.0}, "expected guidance_scale above 1"),
    ],
)
def test_numbers_that_do_not_fit_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        RolloutConfig(**options)
