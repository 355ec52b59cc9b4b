"""Flow-GRPO: policy gradients on the steps of a sampler with noise.

Method: Liu et al. 2025 (arXiv 2505.05470): draw a group of images of each source and instruction with noise
in some steps, score them, and raise the likelihood of the steps that led to the better ones, by PPO's clipped
ratio on the group's advantages. Few steps of the first half have noise, as in Flow-GRPO-Fast and MixGRPO
(2507.21802). With `noise_mask` noise and credit are restricted to the edit's region (RC-GRPO-Editing,
2604.09386). Editors by flow matching take the SDE or coefficient-preserving sampling (2509.05952);
InstructPix2Pix takes DDIM with η, which makes it DDPO (2305.13301) with groups.

Deviations from Flow-GRPO's code: the KL divergence to the editor without its LoRA is the true one, (m − m_ref)²
/ (2 s² |dt|), where that code leaves |dt| out, so that its weights are 1/|dt| times those here; the last step
has no noise; a group is one source with one instruction; several rewards are normalised apart; groups without
spread are dropped; the first level of the schedule is replaced wherever it is above the second.
The base may not be distilled for few steps. Guidance is the same in rollouts and in training, or off in both.
The monitor and the comparison judge edits without added noise: CPS draws narrower than the editor.

Command: rewardedit train kontext-flow-grpo
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.diffusion.families import Conditioning
from rewardedit.diffusion.stochastic import NoiseConfig, Sampler, StochasticSampler, Transition
from rewardedit.processes import print_on_main, processes
from rewardedit.stages.stage import variants
from rewardedit.training import estimate, run
from rewardedit.training.finetune import Finetuning
from rewardedit.training.group_rollouts import GroupRollouts, Rollout, Sampled
from rewardedit.training.loop import step_generator
from rewardedit.training.monitor import Monitor
from rewardedit.training.old_policy import OldPolicy, reference
from rewardedit.training.online import OnlineInputs, OnlineRecipe

# Half-widths of the clipping interval, small as log-probabilities are means over all locations: those of
# Flow-GRPO's code for its SDE and for CPS, and DDPO's.
CLIP: dict[Sampler, float] = {"sde": 1e-4, "cps": 1e-5, "ddim": 1e-4}
WINDOW_SEED = 3_000_017  # so that windows differ from other draws


@dataclass(frozen=True)
class Config(OnlineRecipe):
    """One training by Flow-GRPO."""

    # the noise that rollouts explore with
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig(noise_steps=2))
    # half-width of the interval around 1 to which the ratio of likelihoods is clipped; None: by the sampler,
    # 1e-4 (sde, ddim) or 1e-5 (cps)
    clip_range: float | None = None
    # weight of the KL divergence to the starting model; 0.004 with ten steps is the 0.04 of Flow-GRPO's code
    kl_weight: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.noise.noise_level:
            raise ValueError("noise.noise_level: expected above 0, as without noise nothing is explored; got 0")
        if self.clip_range is not None and not 0 < self.clip_range < 1:
            raise ValueError(f"clip_range: expected above 0 and below 1; got {self.clip_range:g}")
        if not self.kl_weight >= 0:
            raise ValueError(f"kl_weight: expected at least 0; got {self.kl_weight:g}")
        micro, _ = self.train.micro_batches(processes=1)
        if self.reward.rollout_batch_size not in (None, micro):
            raise ValueError(
                f"reward.rollout_batch_size: expected train.micro_batch_size ({micro}), so that a step that is "
                f"replayed is the step that was taken, to the bit; got {self.reward.rollout_batch_size}; "
                "leave it out"
            )
        self.window(0)  # raises if the steps with noise do not fit

    def window(self, rollout: int) -> range:
        """The steps with noise of one rollout, the same on all processes."""
        generator = step_generator(self.train.seed + WINDOW_SEED, rollout)
        return self.noise.window(self.reward.num_inference_steps, generator)


class NoisyRollouts:
    """Samples images with noise, and keeps what the replay of their steps needs."""

    def __init__(self, config: Config, pipe: Any, family: Any, shape: tuple[int, int, int]) -> None:
        self.denoiser = family.denoiser(pipe)
        like = torch.empty(1, *shape, device=pipe.device)
        self.sampler = StochasticSampler(
            family, pipe.scheduler, config.noise, config.reward.rollout(), like
        )
        self.window = range(0)  # steps with noise of the current rollout

    def __call__(
        self,
        noise: Float[Tensor, "b c h w"],
        cond: Conditioning,
        generators: Sequence[torch.Generator],
        mask: Float[Tensor, "b 1 h w"] | None,
    ) -> Sampled:
        """Denoises, with noise inside the mask alone."""
        drawn = self.sampler.rollout(self.denoiser, noise, cond, self.window, generators, inside_of(mask))
        return Sampled(drawn.latents, {"states": drawn.states, "log_probs": drawn.log_probs})
