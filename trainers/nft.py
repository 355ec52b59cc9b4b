"""DiffusionNFT: images better than their group pull the editor towards them, worse ones push it away.

Method: Zheng et al. 2025 (2509.16117), Sec. 3: an old policy makes groups of images of one source and one
instruction by an ordinary sampler; their advantages become r̂ in [0, 1], and flow matching on these images
trains two implicit policies, v⁺ = β v_θ + (1 − β) v_old with weight r̂ and v⁻ = (1 + β) v_old − β v_θ with
1 − r̂. No reward has to be differentiable, and no likelihood is computed. The old policy follows the trained
one between rollouts; the reference is the editor with its LoRA off. The source is never noised.

Deviations from the paper's code: losses are written over predicted clean latents, so that models that predict
noise or velocities (InstructPix2Pix) train too; groups without spread are left out, and the rest weighs more;
several rewards are normalised apart; noise is keyed by an image's place in the rollout. With
`reward.noise_mask`, credit is given inside the edit region alone, and outside the prediction is held at the
reference's (after RC-GRPO-Editing, 2604.09386, whose masks restrict the noise of stochastic steps).

Command: rewardedit train klein-nft
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rewardedit.diffusion.families import Conditioning, EditFamily
from rewardedit.evaluation.evaluate_config import require_variants
from rewardedit.processes import print_on_main
from rewardedit.stages.stage import variants
from rewardedit.training import run
from rewardedit.training.estimate import UnetCalls
from rewardedit.training.finetune import Finetuning
from rewardedit.training.group_rollouts import GroupRollouts, Rollout
from rewardedit.training.loop import TrainLoop, step_generator
from rewardedit.training.monitor import Monitor
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
from rewardedit.training.online_plan import fitted_train, plan_online, rollout_calls
from rewardedit.training.trainable import TrainConfig

SEED = 3_000_017  # so that the losses' noise differs from the rollouts'
LEAST_ERROR = 1e-5  # of the errors by which losses are divided
# flat, rate, hold: after n updates the old policy keeps min(max(0, n − flat) · rate, hold) of itself
SCHEDULES: dict[str, tuple[float, float, float]] = {
    "latest": (0, 0.0, 0.0),
    "half": (0, 0.001, 0.5),
    "long": (75, 0.0075, 0.999),
}
Variant = Literal["nft", "unmasked", "on_policy"]
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "unmasked": {"reward": {"noise_mask": None}},
    # with old = new in every rollout it is regression weighted by advantages
    "on_policy": {"nft": {"old_policy": "latest"}},
}  # what a variant changes of the recipe


@dataclass(frozen=True)
class NftConfig:
    """The loss of DiffusionNFT."""

    beta: float = 1.0  # β, the trained policy's share of the implicit positive one; it is no weight of a KL
    reference_weight: float = 1e-4  # λ, weight of the squared distance to the reference's prediction
    outside_weight: float = 1.0  # weight of that distance outside the edit region, with reward.noise_mask
    times: float = 0.5  # share of a rollout's steps at which each of its images is trained on
    # schedule of the old policy: latest (a copy after each rollout), half (keeps up to half
    # of itself) or long (up to 0.999), the paper's three schedules; or numbers [flat, rate, hold]
    old_policy: Literal["latest", "half", "long"] | tuple[float, float, float] = "half"

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ValueError(f"beta: expected above 0; got {self.beta:g}")
        if not 0 < self.times <= 1:
            raise ValueError(f"times: expected a share above 0, at most 1; got {self.times:g}")
        for name in ("reference_weight", "outside_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: expected at least 0; got {getattr(self, name):g}")
        flat, rate, hold = self.schedule
        if flat < 0 or rate < 0 or not 0 <= hold <= 1:
            raise ValueError(
                "old_policy: expected latest, half, long, or [flat, rate, hold] with flat and rate of at "
                f"least 0 and hold in [0, 1]; got {[flat, rate, hold]}"
            )

    @property
    def schedule(self) -> tuple[float, float, float]:
        """flat, rate and hold."""
        return SCHEDULES[self.old_policy] if isinstance(self.old_policy, str) else self.old_policy

    def decay(self, updates: int) -> float:
        """Share of itself that the old policy keeps after so many updates, in [0, 1]."""
        flat, rate, hold = self.schedule
        return min(max(0.0, updates - flat) * rate, hold)

    def times_of(self, steps: int) -> int:
        """Number of times at which an image of a rollout of so many steps is trained on."""
        return max(1, int(steps * self.times))


@dataclass(frozen=True)
class Config(OnlineRecipe):
    """One training by DiffusionNFT, or a comparison with its parts."""

    nft: NftConfig = field(default_factory=NftConfig)  # the loss and the old policy
    # the first is the result; the others are what it is compared with
    variants: tuple[Variant, ...] = ("nft",)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_variants(self.variants)
        self.require_groups()
        if self.reward.same_noise:
            raise ValueError(
                "reward.same_noise: its sampler adds no noise, so that all images of a group would be the "
                "same; set it to false"
            )
        if "unmasked" in self.variants and self.reward.noise_mask is None:
            raise ValueError("variants: unmasked has no effect without reward.noise_mask; set that too")


def variant_config(config: Config, variant: str) -> Config:
    """The recipe with what the variant changes of it."""
    for name, values in CHANGES.get(variant, {}).items():
        config = replace(config, variants=("nft",), **{name: replace(getattr(config, name), **values)})
    return config


def plan(config: Config) -> list[str]:
    """Lines to print; raises PlanIncomplete naming the first thing that is not there."""
    return plan_online(config, config.variants, lambda *given: update_calls(config, *given))


def update_calls(config: Config, train: TrainConfig, processes: int, guided: int) -> list[UnetCalls]:
    """UNet calls of an update on one process."""
    rows, micro_batches = train.micro_batches(processes)
    times = micro_batches * config.nft.times_of(config.reward.num_inference_steps)
    return [
        UnetCalls(times, rows * guided, gradient=True),
        UnetCalls(2 * times, rows * guided, gradient=False),  # old policy and reference
        rollout_calls(config.reward, train, processes, guided),
    ]


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Prepares the inputs, trains one variant at a time and compares them.

    Returns:
        The folder of the first variant's result, lora/.
    """
    fitted = fitted_train(config)
    data = with_data(config)
    run.start(folder, config, resume)
    inputs = prepare(data, folder)

    def train_one(variant: str, settings: Path) -> None:
        print_on_main(f"variant {variant}: {config.train.max_steps} steps")
        of_variant = variant_config(replace(data, train=fitted), variant)

        def tuned(monitor: Monitor) -> Path:
            return tune(of_variant, inputs, monitor, settings, resume)

        train_variant(of_variant, inputs.watching, settings, tuned, of_variant.reward.sampled_guidance)

    results = variants(config.variants, folder, config.train.result, made_of(data, "nft"), train_one)
    return finish(data, results, inputs.watching, folder)


def tune(config: Config, inputs: OnlineInputs, monitor: Monitor, folder: Path, resume: bool = False) -> Path:
    """Trains a LoRA on the images of its own rollouts; returns the folder of the result.

    Raises:
        TrainingStopped: where the loss is not a number.
    """
    settings = config.reward
    times = config.nft.times_of(settings.num_inference_steps)
    tuning = Finetuning(
        config.train, config.base, inputs.prompts.cache, inputs.labels, folder, resume, passes_per_row=times
    )
    old = OldPolicy(tuning.modules.unet)
    rollouts = GroupRollouts(settings, config.train, inputs, tuning.editor.pipe)
    tuning.check(monitor, 0)  # the base, which later checks are compared with

    loop = tuning.loop
    rollout: Rollout | None = None
    for step in loop.steps():
        number, update = divmod(step, settings.updates)
        if update == 0 or rollout is None:  # a resumed run makes the same images again
            with old.active(), tuning.rollouts():
                rollout = rollouts.make(number, loop)
        for images in micro_batches(rollout, update, settings.updates, tuning.micro_batch_size):
            ids = [inputs.prompts.cache.ids[row] for row in images.rows.tolist()]
            cond = inputs.prompts.conditioning(images.rows, loop.accelerator.device)
            for noise, t in noisings(images, rollouts, times, step):
                with loop.accumulate():
                    with loop.autocast():
                        loss = loss_of(config, tuning, old, images, cond, noise, t)
                    loop.backward(loss, ids)
        loop.update()
        if update == settings.updates - 1:
            old.follow(config.nft.decay(step + 1))

        if tuning.is_validation_step() or loop.is_last():
            with loop.ema_weights():
                if tuning.is_validation_step():
                    tuning.save_previews()
                if tuning.check(monitor, step + 1):
                    break
    return tuning.save()


def micro_batches(rollout: Rollout, update: int, updates: int, size: int) -> Iterator[Rollout]:
    """The images of one of a rollout's updates, a few at a time."""
    n = len(rollout) // updates
    for first in range(update * n, (update + 1) * n, size):
        yield rollout.take(slice(first, first + size))


def noisings(
    images: Rollout, rollouts: GroupRollouts, times: int, step: int
) -> Iterator[tuple[Float[Tensor, "b c h w"], Int[Tensor, " b"]]]:
    """Noise and time steps for each of so many losses: of each image its own times of the rollout's, none
    twice.
    """
    family = rollouts.family
    scheduler = type(rollouts.pipe.scheduler).from_config(rollouts.pipe.scheduler.config)
    family.set_timesteps(scheduler, rollouts.config.num_inference_steps, images.latents)
    known = family.training_times(scheduler.timesteps)
    orders = []
    generators = []
    for slot in images.slots.tolist():
        generator = step_generator(rollouts.train.seed + SEED + slot, step)
        orders.append(torch.randperm(len(known), generator=generator))
        generators.append(generator)
    for i in range(times):
        t = torch.stack([known[order[i % len(known)]] for order in orders])
        noise = [torch.randn(images.latents.shape[1:], generator=generator) for generator in generators]
        yield torch.stack(noise), t


def loss_of(
    config: Config,
    tuning: Finetuning,
    old: OldPolicy,
    images: Rollout,
    cond: Conditioning,
    noise: Float[Tensor, "b c h w"],
    t: Int[Tensor, " b"],
) -> Float[Tensor, ""]:
    """The loss of some images at one time each; records how far the policy is from the old one and the
    reference.
    """
    family: EditFamily = tuning.editor.family
    bare = tuning.modules.unet
    loop: TrainLoop = tuning.loop
    device = loop.accelerator.device
    guidance = (config.reward.guidance_scale, config.reward.image_guidance_scale)
    x_0 = images.latents.to(device)
    mask = None if images.mask is None else images.mask.to(device)
    x_t, time = family.noised(tuning.scheduler, x_0, noise.to(device), t.to(device))

    # Three predictions of the same latents; only the first carries a gradient.
    with old.active():
        before = family.predict(bare, x_t, time, cond, *guidance).float()
    with reference(bare):
        start = family.predict(bare, x_t, time, cond, *guidance).float()
    now = family.predict(tuning.unet, x_t, time, cond, *guidance).float()

    share = reward_share(images.advantage, config.reward.advantage_clip).to(device)
    new_clean = family.clean(tuning.scheduler, now, x_t, time)
    old_clean = family.clean(tuning.scheduler, before, x_t, time)
    losses = nft_loss(new_clean, old_clean, x_0, share, config.nft.beta, config.reward.advantage_clip, mask)
    distance = (now - start) ** 2
    losses = losses + config.nft.reference_weight * masked_mean(distance)
    if mask is not None:
        losses = losses + config.nft.outside_weight * masked_mean(distance, 1 - mask)

    loop.record("distance_from_old", ((now - before) ** 2).mean(), len(x_0))
    loop.record("distance_from_reference", distance.mean(), len(x_0))
    return (images.weight.to(device) * losses).mean()


def reward_share(advantage: Float[Tensor, " b"], clip: float) -> Float[Tensor, " b"]:
    """r̂ in [0, 1]: 0.5 for an image as good as its group, 1 for an advantage of `clip`."""
    return advantage.clamp(-clip, clip) / (2 * clip) + 0.5


def nft_loss(
    new: Float[Tensor, "b c h w"],
    old: Float[Tensor, "b c h w"],
    x_0: Float[Tensor, "b c h w"],
    share: Float[Tensor, " b"],
    beta: float = 1.0,
    clip: float = 5.0,
    mask: Float[Tensor, "b 1 h w"] | None = None,
) -> Float[Tensor, " b"]:
    """Returns c/β · (r̂ ‖x̂⁺ − x_0‖² / w⁺ + (1 − r̂) ‖x̂⁻ − x_0‖² / w⁻), one value a row.

    x̂⁺ = β x̂_θ + (1 − β) x̂_old and x̂⁻ = (1 + β) x̂_old − β x̂_θ are those of v⁺ and v⁻ (2509.16117 Eq. 5 and
    Theorem 3.2), as clean latents are affine in predictions; w is the mean absolute error, without gradient
    (Sec. 3.3). Where new = old the gradient is c (2 r̂ − 1) ∇‖x̂_θ − x_0‖² / w.

    Args:
        new: clean latents that the policy predicts.
        old: clean latents that the old policy predicts.
        x_0: the image's.
        share: r̂.
        clip: c, the largest advantage.
        mask: 1 where errors count.
    """
    positive = beta * new + (1 - beta) * old
    negative = (1 + beta) * old - beta * new
    better = share * normalised_error(positive, x_0, mask)
    worse = (1 - share) * normalised_error(negative, x_0, mask)
    return clip / beta * (better + worse)


def normalised_error(
    clean: Float[Tensor, "b c h w"], x_0: Float[Tensor, "b c h w"], mask: Float[Tensor, "b 1 h w"] | None
) -> Float[Tensor, " b"]:
    """Mean squared error over mean absolute error, the latter without gradient and of at least 1e-5."""
    error = clean - x_0
    scale = masked_mean(error.detach().double().abs(), mask).clamp_min(LEAST_ERROR)
    return masked_mean(error**2, mask) / scale.to(error)


def masked_mean(
    values: Float[Tensor, "b c h w"], mask: Float[Tensor, "b 1 h w"] | None = None
) -> Float[Tensor, " b"]:
    """Mean of each row where the mask is 1; 0 where it nowhere is."""
    if mask is None:
        return values.flatten(1).mean(1)
    inside = mask.to(values)
    return (values * inside).flatten(1).sum(1) / (inside.flatten(1).sum(1) * values.shape[1]).clamp_min(1)


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and says where the result is."""
    out = train(config, folder, resume)
    print_on_main(
        f"the editor is in {out}; try: rewardedit edit IMAGE INSTRUCTION --model {folder} --out edited"
    )
