"""Flow-GRPO: policy gradients on the steps of a sampler with noise.

Method: Liu et al. 2025 (arXiv 2505.05470): draw a group of images of each source and instruction with noise
in some steps, score them, and raise the likelihood of the steps that led to the better ones, by PPO's clipped
ratio on the group's advantages. Few steps of the first half have noise, as in Flow-GRPO-Fast and MixGRPO
(2507.21802). With `noise_mask` noise and credit are restricted to the edit's region (RC-GRPO-Editing,
2604.09386). Editors by flow matching take the SDE or coefficient-preserving sampling (2509.05952);
InstructPix2Pix takes DDIM with η, which makes it DDPO (2305.13301) with groups.

Deviations from Flow-GRPO's code: the KL divergence to the editor with its LoRA off is the true one, (m −
m_ref)² / (2 s² |dt|), where that code leaves |dt| out, so that its weights are 1/|dt| times those here; the
last step has no noise; a group is one source with one instruction; several rewards are normalised apart;
groups without spread are dropped. Guidance is the same in rollouts and in training, or off in both. Take a
base that is not distilled to a few steps. The monitor and the comparison judge edits without added noise, as
CPS draws narrower than the editor.

Command: rewardedit train kontext-flow-grpo
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rewardedit.diffusion.families import Conditioning
from rewardedit.diffusion.stochastic import (
    NoiseConfig,
    Sampler,
    StochasticSampler,
    Transition,
    stochastic_scheduler,
)
from rewardedit.processes import print_on_main
from rewardedit.stages.stage import variants
from rewardedit.training import run
from rewardedit.training.estimate import UnetCalls
from rewardedit.training.finetune import Finetuning
from rewardedit.training.group_rollouts import GroupRollouts, Rollout, Sampled
from rewardedit.training.loop import TrainLoop, step_generator
from rewardedit.training.memory.blueprint import load_family, load_scheduler
from rewardedit.training.monitor import Monitor
from rewardedit.training.noise_masks import GIVEN
from rewardedit.training.old_policy import OldPolicy, reference
from rewardedit.training.online import (
    OnlineInputs,
    OnlineRecipe,
    finish,
    made_of,
    prepare,
    train_variant,
    with_data,
)
from rewardedit.training.online_plan import fitted_train, plan_online
from rewardedit.training.trainable import TrainConfig

# Half-widths of the clipping interval, small as log-probabilities are means over all locations: those of
# Flow-GRPO's code for its SDE and for CPS, and DDPO's.
CLIP: dict[Sampler, float] = {"sde": 1e-4, "cps": 1e-5, "ddim": 1e-4}
WINDOW_SEED = 4_000_037  # so that windows differ from other draws


@dataclass(frozen=True)
class Config(OnlineRecipe):
    """One training by Flow-GRPO."""

    # the noise that rollouts explore with
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    # half-width of the interval around 1 to which the ratio of likelihoods is clipped; None: by the sampler,
    # 1e-4 (sde, ddim) or 1e-5 (cps)
    clip_range: float | None = None
    # weight of the KL divergence to the starting model; 0.004 with ten steps is the 0.04 of Flow-GRPO's code
    kl_weight: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_groups()
        if not self.noise.noise_level:
            raise ValueError("noise.noise_level: expected above 0, or nothing is explored; got 0")
        if self.clip_range is not None and not 0 < self.clip_range < 1:
            raise ValueError(f"clip_range: expected above 0 and below 1; got {self.clip_range:g}")
        if not self.kl_weight >= 0:
            raise ValueError(f"kl_weight: expected at least 0; got {self.kl_weight:g}")
        self.window(0)  # raises if the steps with noise do not fit

    @property
    def clip(self) -> float:
        """Half-width of the clipping interval."""
        return CLIP[self.noise.sampler] if self.clip_range is None else self.clip_range

    def window(self, rollout: int) -> range:
        """The steps with noise of one rollout, the same on all processes."""
        generator = step_generator(self.train.seed + WINDOW_SEED, rollout)
        return self.noise.window(self.reward.num_inference_steps, generator)


@dataclass(frozen=True)
class Images:
    """Images of one forward pass, on the device of the training."""

    rows: Int[Tensor, " b"]  # in the cache; on the CPU
    states: Float[Tensor, "b k1 c h w"]  # before each step with noise, and after the last of them
    log_probs: Float[Tensor, "b k"]  # log-probabilities of the steps, under the policy that took them
    advantage: Float[Tensor, " b"]
    weight: Float[Tensor, " b"]
    inside: Bool[Tensor, "b 1 h w"] | None  # the region with noise

    @classmethod
    def of(cls, rollout: Rollout, device: torch.device) -> "Images":
        """The images of a part of a rollout."""
        kept = rollout.kept
        values = (kept["states"], kept["log_probs"], rollout.advantage, rollout.weight)
        inside = None if rollout.mask is None else (rollout.mask > 0.5).to(device)
        return cls(rollout.rows, *(value.to(device) for value in values), inside)


class NoisyRollouts:
    """Makes rollouts with noise, by the policy before the updates on them."""

    def __init__(self, config: Config, inputs: OnlineInputs, tuning: Finetuning) -> None:
        pipe = tuning.editor.pipe
        like = torch.empty(1, *inputs.prompts.cache.shape, device=pipe.device)
        self.config = config
        self.loop = tuning.loop
        self.denoiser = tuning.modules.unet
        self.micro_batch_size = tuning.micro_batch_size
        self.replayed = tuning.rollouts
        self.old = OldPolicy(self.denoiser)
        self.sampler = StochasticSampler(
            tuning.editor.family, pipe.scheduler, config.noise, config.reward.rollout(), like
        )
        # Whole micro-batches at a time, as `draw` divides what it is given.
        at_once = config.reward.rollout_batch_size
        whole = None if at_once is None else max(at_once // self.micro_batch_size, 1) * self.micro_batch_size
        reward = replace(config.reward, rollout_batch_size=whole)
        self.rollouts = GroupRollouts(
            reward, config.train, inputs, pipe, self.draw, mask_first=True, together=self.micro_batch_size
        )
        self.window = range(0)  # steps with noise of the current rollout
        self.current: Rollout | None = None

    def images(self, step: int) -> Iterator[Images]:
        """This process's images of an update, in micro-batches.

        A run that is resumed in the middle of a rollout's updates makes the rollout again by the policy that
        made it, which the checkpoint holds.
        """
        number, update = divmod(step, self.config.reward.updates)
        if update == 0:
            self.old.follow(0.0)
        if update == 0 or self.current is None:
            self.window = self.config.window(number)
            with self.old.active(), self.replayed():
                self.current = self.rollouts.make(number, self.loop)

        share = len(self.current) // self.config.reward.updates
        for start in range(update * share, (update + 1) * share, self.micro_batch_size):
            chunk = self.current.take(slice(start, start + self.micro_batch_size))
            yield Images.of(chunk, self.loop.accelerator.device)

    def draw(
        self,
        noise: Float[Tensor, "b c h w"],
        cond: Conditioning,
        generators: Sequence[torch.Generator],
        mask: Float[Tensor, "b 1 h w"] | None,
    ) -> Sampled:
        """Denoises with noise inside the mask alone; in the training's micro-batches, so that a step that is
        replayed is the step that was taken, to the bit.
        """
        parts = []
        for start in range(0, len(noise), self.micro_batch_size):
            rows = slice(start, start + self.micro_batch_size)
            inside = None if mask is None else mask[rows] > 0.5
            inputs = (noise[rows], cond.take(rows), self.window, generators[rows], inside)
            parts.append(self.sampler.rollout(self.denoiser, *inputs))
        kept = {}
        for name in ("states", "log_probs"):
            kept[name] = torch.cat([getattr(rollout, name) for rollout in parts])
        return Sampled(torch.cat([rollout.latents for rollout in parts]), kept)

    def reference(self, index: int, latents: Float[Tensor, "b c h w"], cond: Conditioning) -> Transition:
        """Distribution of a step's outcome under the starting model, without gradient."""
        with reference(self.denoiser):
            return self.sampler.replay(self.denoiser, index, latents, cond)


def plan(config: Config) -> list[str]:
    """Lines to print; raises PlanIncomplete naming the first thing that is not there."""

    def calls(train: TrainConfig, count: int, guided: int) -> list[UnetCalls]:
        require_sampler(config)
        return update_calls(config, train, count, guided)

    return plan_online(config, ("flow_grpo",), calls)


def update_calls(config: Config, train: TrainConfig, processes: int, guided: int) -> list[UnetCalls]:
    """UNet calls of an update on one process."""
    rows, passes = train.micro_batches(processes)
    replays = passes * len(config.window(0))
    steps = config.reward.num_inference_steps
    # Each image is denoised once for all updates on it, in batches of the training's size.
    without = passes * steps + (replays if config.kl_weight else 0)
    kinds = [UnetCalls(replays, rows * guided, True), UnetCalls(without, rows * guided, False)]
    if config.reward.noise_mask not in (None, GIVEN):  # an edit for each group's region
        groups = config.reward.groups(train, processes) // processes
        kinds.append(UnetCalls(steps, groups * guided, gradient=False))
    return kinds


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Caches sources and prompts, trains, and compares base and result.

    Returns:
        The folder of the result, lora/.
    """
    fitted = fitted_train(config)
    require_sampler(config)
    data = with_data(config)
    run.start(folder, config, resume)
    inputs = prepare(data, folder)

    def train_one(_: str, settings: Path) -> None:
        of_variant = replace(data, train=fitted)

        def tuned(monitor: Monitor) -> Path:
            return tune(of_variant, inputs, monitor, settings, resume)

        train_variant(of_variant, inputs.watching, settings, tuned, of_variant.reward.sampled_guidance)

    parts = made_of(data, "noise", "clip_range", "kl_weight")
    results = variants(("flow_grpo",), folder, config.train.result, parts, train_one)
    return finish(data, results, inputs.watching, folder)


def require_sampler(config: Config) -> None:
    """Raises ValueError for a sampler that does not fit the base's predictions."""
    family = load_family(config.base)
    stochastic_scheduler(family, load_scheduler(config.base), config.noise.sampler)


def clipped_loss(
    log_ratio: Float[Tensor, " b"], advantage: Float[Tensor, " b"], clip: float
) -> Float[Tensor, " b"]:
    """PPO's loss, max(−A ρ, −A clip(ρ, 1 − c, 1 + c)) for the ratio ρ of likelihoods (Schulman et al. 2017,
    Eq. 7).
    """
    ratio = log_ratio.exp()
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip))


def record_ratio(
    loop: TrainLoop, log_ratio: Float[Tensor, " b"], kept: Bool[Tensor, " b"], clip: float
) -> None:
    """Records the mean ratio, its mean distance from 1, and the share of ratios outside the interval, of the
    images that are trained on.
    """
    ratio = log_ratio.detach().exp()
    change = (ratio - 1).abs()
    n = kept.sum()
    for name, values in (("ratio", ratio), ("ratio_change", change), ("clipped", (change > clip).float())):
        loop.record(name, (values * kept).sum() / n.clamp_min(1), n)


def tune(config: Config, inputs: OnlineInputs, monitor: Monitor, folder: Path, resume: bool = False) -> Path:
    """Trains a LoRA on the steps of its own rollouts; returns the folder of the result.

    Raises:
        TrainingStopped: where the loss is not a number.
    """
    prompts = inputs.prompts
    steps = len(config.window(0))
    tuning = Finetuning(config.train, config.base, prompts.cache, inputs.labels, folder, resume, steps)
    rollouts = NoisyRollouts(config, inputs, tuning)
    tuning.check(monitor, 0)  # the base, which later checks are compared with

    loop = tuning.loop
    device = loop.accelerator.device
    for step in loop.steps():
        for images in rollouts.images(step):
            cond = prompts.conditioning(images.rows, device)
            for i, index in enumerate(rollouts.window):
                before, after = images.states[:, i], images.states[:, i + 1]
                with loop.accumulate():
                    with loop.autocast():
                        base = rollouts.reference(index, before, cond) if config.kl_weight else None
                        moves = rollouts.sampler.replay(tuning.unet, index, before, cond)
                        log_ratio = moves.log_prob(after, images.inside) - images.log_probs[:, i]
                        loss = images.weight * clipped_loss(log_ratio, images.advantage, config.clip)
                        if base is not None:
                            divergence = moves.divergence(base, images.inside)
                            loop.record("kl", divergence.mean(), len(divergence))
                            loss = loss + config.kl_weight * divergence
                    record_ratio(loop, log_ratio, images.weight > 0, config.clip)
                    loop.backward(loss.mean(), [prompts.cache.ids[row] for row in images.rows.tolist()])
        loop.update()

        if tuning.is_validation_step() or loop.is_last():
            with loop.ema_weights():
                if tuning.is_validation_step():
                    tuning.save_previews()
                if tuning.check(monitor, step + 1):
                    break
    return tuning.save()


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and says where the result is."""
    out = train(config, folder, resume)
    print_on_main(
        f"the editor is in {out}; try: rewardedit edit IMAGE INSTRUCTION --model {folder} --out edited"
    )
