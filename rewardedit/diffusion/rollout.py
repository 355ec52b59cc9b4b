"""A differentiable rollout: denoises without gradient, then takes the last steps with it.

ReFL (ImageReward; ADIEE Sec. 3.4) takes one step with gradient, DRaFT-K (Clark et al. 2024) the last K, DRaFT
all. Without steps that carry a gradient the latents are those of the stock pipeline, to the bit. The two
parts can be called apart: the first on many rows at once, the second, which needs far more memory, on a few
of them at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rewardedit.diffusion.families import Conditioning, EditFamily
from rewardedit.diffusion.schedulers import copy_of_rows, pred_x0, require_differentiable, step_options

Scored = Literal["prev_sample", "pred_x0"]


@dataclass(frozen=True)
class RolloutConfig:
    """Settings of a rollout.

    Raises:
        ValueError: on numbers of steps that do not fit each other, or guidance that the stock pipeline would
            leave out.
    """

    num_inference_steps: int = 20  # number of the scheduler's denoising steps
    # number of steps to take; None: all. ADIEE stops one step early, ImageReward at a random late step
    stop: int | None = None
    grad_steps: int | None = 1  # number of final steps with gradient; None: all (DRaFT), 0: none
    # latents to score: the last step's result (ADIEE), or its predicted clean latents (ImageReward)
    scored: Scored = "prev_sample"
    guidance_scale: float | None = None  # text guidance scale; None: no guidance, as in both papers
    image_guidance_scale: float = 1.0  # image guidance scale, used with guidance_scale
    # recompute UNet calls with gradient in the backward pass, to save memory (under DDP: the UNet's own)
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        taken = self.num_inference_steps if self.stop is None else self.stop
        if not 1 <= taken <= self.num_inference_steps:
            raise ValueError(f"stop: expected 1 to {self.num_inference_steps} steps; got {self.stop}")
        if self.grad_steps is not None and not 0 <= self.grad_steps <= taken:
            raise ValueError(
                f"grad_steps: expected 0 to {taken}, the steps that are taken; got {self.grad_steps}"
            )
        if self.guidance_scale is not None and (self.guidance_scale <= 1 or self.image_guidance_scale < 1):
            raise ValueError(
                "expected guidance_scale above 1 and image_guidance_scale of at least 1, as stock pipelines "
                f"require; got {self.guidance_scale} and {self.image_guidance_scale}; guidance_scale=None "
                "turns guidance off"
            )


@dataclass(frozen=True)
class RolloutState:
    """A rollout of b rows before its first step with gradient."""

    latents: Float[Tensor, "b c h w"]
    scheduler: Any  # in the middle of the rollout
    taken: int  # steps taken so far
    cond: Conditioning
    config: RolloutConfig
    # generator of the noise that further steps add
    generator: torch.Generator | Sequence[torch.Generator] | None

    def take(self, rows: slice) -> "RolloutState":
        """The rollout of some of the rows alone.

        Raises:
            ValueError: if a scheduler's state, or one generator for all rows, cannot be divided.
        """
        if isinstance(self.generator, torch.Generator):
            raise ValueError("generator: expected one for each row to divide a rollout; got one for all")
        return replace(
            self,
            latents=self.latents[rows],
            scheduler=copy_of_rows(self.scheduler, rows, self.latents.shape),
            cond=self.cond.take(rows),
            generator=None if self.generator is None else self.generator[rows],
        )


def rollout(
    family: EditFamily,
    denoiser: Callable[..., Any],
    scheduler: Any,
    noise: Float[Tensor, "b c h w"],
    cond: Conditioning,
    config: RolloutConfig,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
) -> Float[Tensor, "b c h w"]:
    """Returns the latents at the end of a rollout, scaled by the VAE's factor.

    Args:
        family: the editor's.
        denoiser: bare, or wrapped for training on several processes.
        scheduler: its configuration is copied; it is not changed.
        noise: of unit variance, from which the rollout starts.
        generator: of the noise that steps add (one, or one per row); schedulers that add none do not use it.

    Raises:
        ValueError: for a scheduler whose step passes no gradient, or that has no prediction of the clean
            latents though this is to be scored; if guidance is requested and `cond.null_embeds` is missing.
    """
    state = steps_without_gradient(family, denoiser, scheduler, noise, cond, config, generator)
    return steps_with_gradient(family, denoiser, state)


def steps_without_gradient(
    family: EditFamily,
    denoiser: Callable[..., Any],
    scheduler: Any,
    noise: Float[Tensor, "b c h w"],
    cond: Conditioning,
    config: RolloutConfig,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
) -> RolloutState:
    """First part of a rollout, with the arguments and errors of `rollout`: all but the last
    `config.grad_steps` steps.
    """
    if config.grad_steps != 0:
        require_differentiable(scheduler, family.set_timesteps)
    family.require_guidance(config.guidance_scale, cond)

    # A scheduler of its own: the given one may be in the middle of a sampling.
    scheduler = type(scheduler).from_config(scheduler.config)
    family.set_timesteps(scheduler, config.num_inference_steps, noise)
    if config.stop is not None and len(scheduler.timesteps) != config.num_inference_steps:
        name = type(scheduler).__name__
        raise ValueError(
            f"{name}: calls the UNet {len(scheduler.timesteps)} times in {config.num_inference_steps} "
            "steps; leave stop out"
        )

    steps = len(scheduler.timesteps[: config.stop])
    last = 0 if config.grad_steps is None else steps - config.grad_steps
    start = RolloutState(family.initial_latents(scheduler, noise), scheduler, 0, cond, config, generator)
    with torch.no_grad():
        latents = _denoise(family, denoiser, start, last)
    torch.clear_autocast_cache()  # weights cast in steps without gradient pass none
    return replace(start, latents=latents, taken=last)


def steps_with_gradient(
    family: EditFamily, denoiser: Callable[..., Any], state: RolloutState
) -> Float[Tensor, "b c h w"]:
    """Last part of a rollout: its latents at the end, with gradient. The state itself is not changed, but for
    its generators.
    """
    copied = replace(state, scheduler=copy_of_rows(state.scheduler, slice(None), state.latents.shape))
    return _denoise(family, denoiser, copied, len(copied.scheduler.timesteps[: copied.config.stop]))


def _denoise(
    family: EditFamily, denoiser: Callable[..., Any], state: RolloutState, last: int
) -> Float[Tensor, "b c h w"]:
    """Latents after step `last`, exclusive; moves the state's scheduler on."""
    config = state.config
    scheduler = state.scheduler
    options = step_options(scheduler, state.generator)
    guidance = (config.guidance_scale, config.image_guidance_scale)
    times = scheduler.timesteps[: config.stop]
    latents = state.latents

    for i in range(state.taken, last):
        t = times[i]
        x_t = family.model_input(scheduler, latents, t)
        if config.gradient_checkpointing and torch.is_grad_enabled():
            model_pred = checkpoint(
                family.predict, denoiser, x_t, t, state.cond, *guidance, use_reentrant=False
            )
        else:
            model_pred = family.predict(denoiser, x_t, t, state.cond, *guidance)
        if i == len(times) - 1 and config.scored == "pred_x0":
            return pred_x0(scheduler, model_pred, t, latents, options)
        latents = scheduler.step(model_pred, t, latents, **options, return_dict=False)[0]

    return latents
