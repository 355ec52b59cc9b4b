"""A differentiable rollout: denoises without gradient, then takes the last steps with it, and returns the decoded picture.

ReFL (ImageReward; ADIEE Sec. 3.4) takes one step with gradient, DRaFT-K (Clark et al. 2024) the last K, DRaFT all. Without
steps that carry a gradient the latents are those of the stock InstructPix2Pix pipeline, to the bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rewardedit.diffusion.schedulers import pred_x0, require_differentiable, step_options

Scored = Literal["prev_sample", "pred_x0"]


@dataclass(frozen=True)
class Conditions:
    """What b edits are conditioned on, encoded once."""

    embeds: Float[Tensor, "b n d"]  # of the prompts
    source: Float[Tensor, "b c h w"]  # latents of the sources: modes, unscaled
    nothing: Float[Tensor, "1 n d"] | None = None  # of the empty prompt; needed for guidance
    mask: Float[Tensor, "b 1 h w"] | None = None  # at the latents' size: where the text guidance holds (BPM Eq. 4)


@dataclass(frozen=True)
class Rollout:
    """How a rollout goes.

    Raises:
        ValueError: on numbers of steps that do not fit each other, or guidance that the stock pipeline would leave out.
    """

    steps: int = 20  # of the scheduler
    stop: int | None = None  # after so many of them; None: after all. ADIEE stops one short, ImageReward at a random late step
    grad_steps: int | None = 1  # the last so many of those taken carry a gradient; None: all (DRaFT), 0: none
    scored: Scored = "prev_sample"  # what the last step gives (ADIEE), or its prediction of the clean latents (ImageReward)
    text_guidance: float | None = None  # None: without classifier-free guidance, as both papers
    image_guidance: float = 1.0
    checkpointing: bool = False  # UNet calls with gradient are computed again in the backward pass (under DDP: the UNet's own)

    def __post_init__(self) -> None:
        taken = self.steps if self.stop is None else self.stop
        if not 1 <= taken <= self.steps:
            raise ValueError(f"stop: expected 1 to {self.steps} steps; got {self.stop}")
        if self.grad_steps is not None and not 0 <= self.grad_steps <= taken:
            raise ValueError(f"grad_steps: expected 0 to {taken}, the steps that are taken; got {self.grad_steps}")
        if self.text_guidance is not None and (self.text_guidance <= 1 or self.image_guidance < 1):
            raise ValueError(
                "expected text_guidance above 1 and image_guidance of at least 1, as stock pipelines want them; "
                f"got {self.text_guidance} and {self.image_guidance}; text_guidance=None is without guidance"
            )


def rollout(
    unet: Callable[..., Any],
    scheduler: Any,
    noise: Float[Tensor, "b c h w"],
    given: Conditions,
    how: Rollout,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
) -> Float[Tensor, "b c h w"]:
    """The latents that a rollout ends with, scaled by the VAE's factor.

    Args:
        scheduler: its configuration is taken; itself it stays as it is.
        noise: of unit variance, at which the rollout starts.
        generator: of the noise that steps add (one, or one a row); schedulers that add none do not ask for it.

    Raises:
        ValueError: for a scheduler whose step passes no gradient on, or that has no prediction of the clean latents where
            it is to be scored; where guidance is asked for and `given.nothing` is missing.
    """
    if how.grad_steps != 0:
        require_differentiable(scheduler)
    if how.text_guidance is None and given.mask is not None:
        raise ValueError("a mask restricts the text guidance, and there is none: give text_guidance, or leave the mask out")
    if how.text_guidance is not None and given.nothing is None:
        raise ValueError("guidance needs the empty prompt's embedding: Conditions(nothing=…)")
    scheduler = type(scheduler).from_config(scheduler.config)
    scheduler.set_timesteps(how.steps, device=noise.device)
    if how.stop is not None and len(scheduler.timesteps) != how.steps:
        name = type(scheduler).__name__
        raise ValueError(f"{name}: calls the UNet {len(scheduler.timesteps)} times in {how.steps} steps; leave stop out")
    times = scheduler.timesteps[: how.stop]
    first = 0 if how.grad_steps is None else len(times) - how.grad_steps
    options = step_options(scheduler, generator)
    latents, inputs = noise * scheduler.init_noise_sigma, _inputs(given, how)
    for i, t in enumerate(times):
        if i == first:
            torch.clear_autocast_cache()  # what steps without gradient have cast has none to pass on
        with torch.set_grad_enabled(torch.is_grad_enabled() and i >= first):
            predicted = _predict(unet, scheduler, latents, t, inputs, how, given.mask)
            if i == len(times) - 1 and how.scored == "pred_x0":
                return pred_x0(scheduler, predicted, t, latents, options)
            latents = scheduler.step(predicted, t, latents, **options, return_dict=False)[0]
    return latents


def _inputs(given: Conditions, how: Rollout) -> tuple[Tensor, Tensor]:
    """Embeddings and source latents as the UNet gets them: with guidance in three parts, text, image and neither."""
    if how.text_guidance is None or given.nothing is None:
        return given.embeds, given.source
    nothing = given.nothing.expand(len(given.embeds), -1, -1)
    return torch.cat([given.embeds, nothing, nothing]), torch.cat([given.source, given.source, torch.zeros_like(given.source)])


def _predict(
    unet: Callable[..., Any],
    scheduler: Any,
    latents: Tensor,
    t: Tensor,
    inputs: tuple[Tensor, Tensor],
    how: Rollout,
    mask: Tensor | None,
) -> Tensor:
    embeds, source = inputs
    scaled = scheduler.scale_model_input(latents if how.text_guidance is None else torch.cat([latents] * 3), t)
    sample = torch.cat([scaled, source], dim=1)
    if how.checkpointing and torch.is_grad_enabled():
        out: Tensor = checkpoint(lambda x: unet(x, t, embeds, return_dict=False)[0], sample, use_reentrant=False)
    else:
        out = unet(sample, t, embeds, return_dict=False)[0]
    if how.text_guidance is None:
        return out
    text, image, nothing = out.chunk(3)
    if mask is not None:
        text = torch.lerp(image, text, mask)
    return nothing + how.text_guidance * (text - image) + how.image_guidance * (image - nothing)


def decode(vae: Any, latents: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 3 h2 w2"]:
    """Pictures of latents that are scaled by the VAE's factor, RGB in [0, 1], with a gradient also where they saturate.

    `vae.enable_gradient_checkpointing()` saves memory: the gradient then needs the activations of one block at a time.
    """
    decoded = vae.decode(latents / vae.config.scaling_factor, return_dict=False)[0]
    return clamp_straight_through(decoded.float() / 2 + 0.5)


def clamp_straight_through(image: Tensor) -> Tensor:
    """clamp(0, 1) forward; the identity backward."""
    return image.detach().clamp(0, 1) + (image - image.detach())
