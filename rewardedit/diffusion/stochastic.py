"""Sampling with noise in some steps, and the log-probabilities of these steps, for policy gradients.

A step with noise draws the next latents from a normal distribution around a mean that the editor predicts.
Three samplers: the SDE of Flow-GRPO (Liu et al. 2025, arXiv 2505.05470) and coefficient-preserving sampling
(CPS; Wang and Yu 2025, arXiv 2509.05952, as in Flow-GRPO's code) for flow matching, and DDIM with η (Song et
al. 2021, Eq. 12 and 16) for InstructPix2Pix. Steps outside a window, locations outside a mask, and every step
where the noise level is 0 are those of the stock scheduler (the ODE), to the bit. Latents, means and
log-probabilities are in float32.

Deviation from Flow-GRPO's code: the SDE's spread has σ₁, the schedule's second level, in the place of σ
wherever σ > σ₁, not only at σ = 1. At a first σ of .999 samples of a Gaussian would else be 8 times too wide.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from diffusers import DDIMScheduler
from jaxtyping import Bool, Float
from torch import Tensor

from rewardedit.diffusion.families import Conditioning, EditFamily
from rewardedit.diffusion.families.flow import FlowEditor
from rewardedit.diffusion.rollout import RolloutConfig
from rewardedit.diffusion.schedulers import (
    FLOW,
    ddim_alphas,
    pred_x0_coefficients,
    require_between,
    step_options,
)

Sampler = Literal["sde", "cps", "ddim"]
MOST_NOISE = {"sde": math.inf, "cps": 1.0, "ddim": 1.0}
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class NoiseConfig:
    """Noise of a sampling.

    Raises:
        ValueError: for a noise level outside the sampler's range, or a part of the schedule that is none.
    """

    # sde or cps for editors by flow matching (Kontext, klein, Qwen-Image-Edit), ddim for InstructPix2Pix
    sampler: Sampler = "sde"
    # amount of noise: a of Flow-GRPO (CPS: at most 1), or η of DDIM (0 to 1); 0: none
    noise_level: float = 0.7
    # number of consecutive steps with noise, drawn within noise_between; None: all of these steps
    noise_steps: int | None = 2
    # part of the schedule that may have noise, as shares of its steps, from the first
    noise_between: tuple[float, float] = (0.0, 0.5)

    def __post_init__(self) -> None:
        most = MOST_NOISE[self.sampler]
        if not 0 <= self.noise_level <= most or math.isinf(self.noise_level):
            bound = "at least 0" if math.isinf(most) else f"0 to {most:g}"
            raise ValueError(f"noise_level: expected {bound} for {self.sampler}; got {self.noise_level:g}")
        if self.noise_steps is not None and self.noise_steps < 1:
            raise ValueError(f"noise_steps: expected at least 1; got {self.noise_steps}")
        require_between(self.noise_between)

    def window(self, num_inference_steps: int, generator: torch.Generator) -> range:
        """Draws the steps with noise of one rollout. The last step never has any: it would stay in the image.

        Raises:
            ValueError: if fewer steps than `noise_steps`, or none, lie within `noise_between`.
        """
        first, end = (math.ceil(share * num_inference_steps) for share in self.noise_between)
        most = min(end, num_inference_steps - 1) - first
        steps = most if self.noise_steps is None else self.noise_steps
        if not 1 <= steps <= most:
            raise ValueError(
                f"noise_steps: expected 1 to {max(most, 0)}, the number of {num_inference_steps} steps "
                f"within noise_between without the last; got {steps}; widen noise_between, or take more steps"
            )
        start = first + int(torch.randint(most - steps + 1, (), generator=generator))
        return range(start, start + steps)


@dataclass(frozen=True)
class Transition:
    """Normal distribution of the latents after a step, of the same spread everywhere."""

    mean: Float[Tensor, "b c h w"]
    std: float
    unit: bool = False  # the log-probability is −(x − mean)², as Flow-GRPO has it for CPS

    def log_prob(
        self, latents: Float[Tensor, "b c h w"], inside: Bool[Tensor, "b 1 h w"] | None = None
    ) -> Float[Tensor, " b"]:
        """Log-density of latents, mean over all locations and channels, or over those inside a mask."""
        squares = (latents - self.mean).square()
        if self.unit:
            return mean_inside(-squares, inside)
        return mean_inside(-squares / (2 * self.std**2) - math.log(self.std) - HALF_LOG_2PI, inside)

    def divergence(
        self, reference: "Transition", inside: Bool[Tensor, "b 1 h w"] | None = None
    ) -> Float[Tensor, " b"]:
        """KL divergence from a distribution of the same spread, (m − m_ref)² / (2 · std²), mean over all
        locations and channels, or over those inside a mask.

        For the SDE std² is s² · |dt|. Flow-GRPO's code divides by s² alone, which gives |dt| times the
        divergence.
        """
        return mean_inside((self.mean - reference.mean).square() / (2 * self.std**2), inside)


@dataclass(frozen=True)
class Trajectory:
    """A rollout of b rows with noise in k consecutive steps."""

    latents: Float[Tensor, "b c h w"]  # at the end
    states: Float[Tensor, "b k1 c h w"]  # before each step with noise, and after the last of them
    log_probs: Float[Tensor, "b k"]  # log-probabilities of the noisy steps, under the policy that took them


def mean_inside(
    values: Float[Tensor, "b c h w"], inside: Bool[Tensor, "b 1 h w"] | None
) -> Float[Tensor, " b"]:
    """Mean of each row over all locations and channels, or over those inside a mask; 0 if it is empty."""
    if inside is None:
        return values.flatten(1).mean(1)
    number = inside.flatten(1).sum(1) * values.shape[1]
    return (values * inside).flatten(1).sum(1) / number.clamp_min(1)


def stochastic_scheduler(family: EditFamily, scheduler: Any, sampler: Sampler) -> Any:
    """Scheduler of a sampling with noise, on the editor's own noise schedule.

    Raises:
        ValueError: for a sampler that is not made for the family's predictions, or a scheduler of flow
            matching whose own steps are not the ODE's.
    """
    config = scheduler.config
    if not isinstance(family, FlowEditor):
        if sampler != "ddim":
            raise ValueError(
                f"sampler: expected ddim for {type(family).__name__}, which predicts noise; got {sampler}; "
                "set sampler: ddim"
            )
        # Latents have no bounds for clipping; DDIM's steps are evenly spaced from either end.
        spacing = "trailing" if config.get("timestep_spacing") == "trailing" else "leading"
        settings = {"timestep_spacing": spacing, "clip_sample": False, "thresholding": False}
        return DDIMScheduler.from_config(config, **settings)
    name = type(scheduler).__name__
    if sampler == "ddim":
        raise ValueError(
            f"sampler: expected sde or cps for {type(family).__name__}, which predicts velocities; got ddim; "
            "set sampler: sde"
        )
    if name != FLOW or config.get("stochastic_sampling") or config.get("invert_sigmas"):
        raise ValueError(
            f"sampler: {sampler} expects {FLOW} without stochastic_sampling and invert_sigmas; got {name}; "
            "take the model's published scheduler"
        )
    return type(scheduler).from_config(config)


def step_std(scheduler: Any, noise: NoiseConfig, index: int) -> float:
    """Standard deviation of the noise that step `index` of the schedule adds."""
    level = noise.noise_level
    if noise.sampler == "ddim":
        alpha, alpha_next = ddim_alphas(scheduler, index)
        return level * ((1 - alpha_next) / (1 - alpha) * (1 - alpha / alpha_next)) ** 0.5
    sigma, sigma_next = float(scheduler.sigmas[index]), float(scheduler.sigmas[index + 1])
    if noise.sampler == "cps":
        return sigma_next * math.sin(level * math.pi / 2)
    return sde_scale(scheduler, level, index) * (sigma - sigma_next) ** 0.5


def sde_scale(scheduler: Any, noise_level: float, index: int) -> float:
    """s = a · √(σ / (1 − min(σ, σ₁))), the SDE's noise per square root of time (Flow-GRPO)."""
    sigma = float(scheduler.sigmas[index])
    return noise_level * (sigma / (1 - min(sigma, float(scheduler.sigmas[1])))) ** 0.5


def transition(
    scheduler: Any,
    noise: NoiseConfig,
    index: int,
    model_pred: Float[Tensor, "b c h w"],
    latents: Float[Tensor, "b c h w"],
) -> Transition:
    """Distribution of the latents after step `index` of the schedule, for the editor's prediction.

    With v the velocity, dt = σ' − σ < 0 and x̂₀, x̂₁ the predicted clean latents and noise:

    - sde: mean x · (1 + s² / 2σ · dt) + v · (1 + s² · (1 − σ) / 2σ) · dt, spread s · √−dt;
    - cps: mean x̂₀ · (1 − σ') + x̂₁ · √(σ'² − s²), spread s = σ' · sin(aπ/2);
    - ddim: mean √ᾱ' · x̂₀ + √(1 − ᾱ' − s²) · x̂₁, spread s = η · √((1 − ᾱ') / (1 − ᾱ) · (1 − ᾱ / ᾱ')).
    """
    x, pred = latents.float(), model_pred.float()
    std = step_std(scheduler, noise, index)
    if noise.sampler == "ddim":
        alpha, alpha_next = ddim_alphas(scheduler, index)
        of_sample, of_pred = pred_x0_coefficients(scheduler, scheduler.timesteps[index], index)
        clean = of_sample * x + of_pred * pred
        eps = (x - alpha**0.5 * clean) / (1 - alpha) ** 0.5
        of_eps = max(1 - alpha_next - std**2, 0.0) ** 0.5  # 0 for η = 1 where ᾱ' is 0, but for rounding
        return Transition(alpha_next**0.5 * clean + of_eps * eps, std)

    sigma, sigma_next = float(scheduler.sigmas[index]), float(scheduler.sigmas[index + 1])
    if noise.sampler == "cps":
        clean = x - sigma * pred
        eps = x + (1 - sigma) * pred
        return Transition((1 - sigma_next) * clean + (sigma_next**2 - std**2) ** 0.5 * eps, std, unit=True)
    dt = sigma_next - sigma
    drift = sde_scale(scheduler, noise.noise_level, index) ** 2 / (2 * sigma)
    return Transition(x * (1 + drift * dt) + pred * ((1 + drift * (1 - sigma)) * dt), std)


class StochasticSampler:
    """Samples with noise in a window of steps, and replays these steps."""

    def __init__(
        self,
        family: EditFamily,
        scheduler: Any,
        noise: NoiseConfig,
        config: RolloutConfig,
        like: Float[Tensor, "_ c h w"],
    ) -> None:
        """
        Args:
            scheduler: the pipeline's; it is not changed.
            config: its number of steps and its guidance are used; no step of a rollout carries a gradient.
            like: latents of the shape and on the device of those to sample, on which the schedule depends.
        """
        self.family = family
        self.noise = noise
        self.config = config
        self.scheduler = stochastic_scheduler(family, scheduler, noise.sampler)
        family.set_timesteps(self.scheduler, config.num_inference_steps, like)

    @torch.no_grad()
    def rollout(
        self,
        denoiser: Callable[..., Any],
        initial: Float[Tensor, "b c h w"],
        cond: Conditioning,
        window: range,
        generators: Sequence[torch.Generator],
        inside: Bool[Tensor, "b 1 h w"] | None = None,
    ) -> Trajectory:
        """Denoises rows with noise in the steps of `window`, and keeps what their replay needs.

        Args:
            initial: noise of unit variance, from which the rollout starts.
            generators: of the steps' noise, one for each row, on the CPU.
            inside: locations with noise; the others follow the ODE, and do not count in log-probabilities.

        Raises:
            ValueError: if the rows cannot be guided so.
        """
        self.family.require_guidance(self.config.guidance_scale, cond)
        scheduler = copy.copy(self.scheduler)  # flow matching's counts its steps
        latents = self.family.initial_latents(scheduler, initial.float())
        options = step_options(scheduler, None)
        window = window if self.noise.noise_level else range(0)

        states: list[Tensor] = []
        log_probs: list[Tensor] = []
        for i, t in enumerate(scheduler.timesteps):
            pred = self._predict(denoiser, i, latents, cond)
            following = scheduler.step(pred, t, latents, **options, return_dict=False)[0]
            if i in window:
                moves = transition(scheduler, self.noise, i, pred, latents)
                drawn = torch.stack([torch.randn(latents.shape[1:], generator=g) for g in generators])
                sample = moves.mean + moves.std * drawn.to(latents)
                following = sample if inside is None else torch.where(inside, sample, following)
                log_probs.append(moves.log_prob(following, inside))
                states += [following] if states else [latents, following]
            latents = following

        torch.clear_autocast_cache()  # weights cast in steps without gradient pass none
        if not states:  # an ODE throughout
            return Trajectory(latents, latents[:, None], latents.new_empty(len(latents), 0))
        return Trajectory(latents, torch.stack(states, 1), torch.stack(log_probs, 1))

    def replay(
        self,
        denoiser: Callable[..., Any],
        index: int,
        latents: Float[Tensor, "b c h w"],
        cond: Conditioning,
    ) -> Transition:
        """Distribution of the outcome of step `index` of the schedule from these latents, with gradient."""
        pred = self._predict(denoiser, index, latents, cond)
        return transition(self.scheduler, self.noise, index, pred, latents)

    def _predict(
        self,
        denoiser: Callable[..., Any],
        index: int,
        latents: Float[Tensor, "b c h w"],
        cond: Conditioning,
    ) -> Float[Tensor, "b c h w"]:
        guidance = (self.config.guidance_scale, self.config.image_guidance_scale)
        t = self.scheduler.timesteps[index]
        x_t = self.family.model_input(self.scheduler, latents, t)
        return self.family.predict(denoiser, x_t, t, cond, *guidance).float()
