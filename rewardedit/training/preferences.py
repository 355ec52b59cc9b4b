"""Direct preference optimisation of editors (Diffusion-DPO, Wallace et al. 2023): settings, pairs to compare,
and the loss.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rewardedit.diffusion.families import Conditioning, EditFamily
from rewardedit.processes import sum_of_processes
from rewardedit.training.finetune import Finetuning, MicroBatch
from rewardedit.training.group_rollouts import Rollout
from rewardedit.training.loop import TrainLoop
from rewardedit.training.rollouts import RolloutPrompts, slot_noise

# of predictions of noise: the paper's value for Stable Diffusion 1.5, where its code has 5000
NOISE_BETA = 2000.0
VELOCITY_BETA = 100.0  # of velocities, in Flow-GRPO's code; no source has one for predictions of x_0
SEED = 3_000_017  # so that the noise of comparisons differs from that of rollouts


@dataclass(frozen=True)
class PreferenceConfig:
    """Loss on pairs of a preferred and a rejected edit."""

    # β, how steeply the loss falls with the margin, and how near the result stays to the reference; None:
    # 2000 for editors that predict noise, 100 for others
    beta: float | None = None
    weight: float = 1.0  # weight of the preference loss
    diffusion_weight: float = 0.0  # weight of the diffusion loss on the preferred edits
    # share of the errors' weight that lies evenly on the whole image where reward.noise_mask gives the rest
    # to a region; 1: all of it
    unmasked: float = 0.1
    # scored edits of the data: least difference of the best and the worst score of a source, in the score's
    # units; equal scores are never a pair
    min_gap: float = 0.0
    times: int = 1  # pairs of rollouts: time steps at which a pair is compared in an update
    # pairs of rollouts: updates after which the reference becomes the current editor; None: it stays the base
    reference_every: int | None = 40

    def __post_init__(self) -> None:
        if self.beta is not None and not 0 < self.beta < math.inf:
            raise ValueError(f"beta: expected above 0 and finite; got {self.beta:g}")
        for name in ("weight", "diffusion_weight", "min_gap"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected at least 0 and finite; got {getattr(self, name):g}")
        if not 0 <= self.unmasked <= 1:
            raise ValueError(f"unmasked: expected a share from 0 to 1; got {self.unmasked:g}")
        if not self.weight and not self.diffusion_weight:
            raise ValueError(
                "weight, diffusion_weight: expected one above 0, or nothing is trained; got 0 and 0"
            )

    def beta_of(self, scheduler: Any) -> float:
        """β for an editor with this training scheduler."""
        if self.beta is not None:
            return self.beta
        return NOISE_BETA if scheduler.config.get("prediction_type") == "epsilon" else VELOCITY_BETA


@dataclass
class PairBatch:
    """b pairs to compare: the preferred edits, and below them the rejected ones in the same order. Both edits
    of a pair have the same noise, time step and conditioning.
    """

    x_0: Float[Tensor, "b2 c h w"]  # scaled latents of 2 b edits
    noise: Float[Tensor, "b2 c h w"]
    times: Int[Tensor, " b2"]
    cond: Conditioning
    region: Float[Tensor, "b2 1 h w"] | None = None  # weights of errors, 1 on average; None: 1
    share: Float[Tensor, " b"] | None = None  # share of each pair's loss, 0 where it is left out; None: 1
    guidance: tuple[float | None, float] = (None, 1.0)  # scales of text and image; None: no guidance

    @classmethod
    def of_data(
        cls,
        tuning: Finetuning,
        micro: MicroBatch,
        rejected: Float[Tensor, "b c h w"],
        region: Float[Tensor, "b 1 h w"] | None = None,
    ) -> "PairBatch":
        """A micro-batch of preferred edits beside their rejected ones, on the device that trains."""
        device = tuning.accelerator.device
        inputs = micro.inputs.to(device)
        return cls(
            torch.cat([inputs.edited, rejected.to(device)]),
            torch.cat([micro.noise.to(device)] * 2),
            torch.cat([micro.times.to(device)] * 2),
            tuning.conditioning(inputs).repeat(2),
            None if region is None else torch.cat([region.to(device)] * 2),
        )

    @classmethod
    def of_rollout(
        cls,
        tuning: Finetuning,
        prompts: RolloutPrompts,
        pairs: "RolloutPairs",
        step: int,
        number: int,
        guidance: tuple[float | None, float],
    ) -> "PairBatch":
        """The best and the worst of groups, on the device that trains.

        Args:
            guidance: scales of text and image, as in the rollout.
            number: of the comparison in an update, from 0; each has its own noise and time steps.
        """
        device = tuning.accelerator.device
        best = pairs.best
        seed = tuning.config.seed + (number + 1) * SEED
        noise, generators = slot_noise(prompts.cache.shape, best.slots, step, seed)
        most = tuning.scheduler.config.num_train_timesteps
        times = torch.stack([torch.randint(most, (), generator=generator) for generator in generators])
        return cls(
            torch.cat([best.latents, pairs.worst.latents]).to(device),
            torch.cat([noise] * 2).to(device),
            torch.cat([times] * 2).to(device),
            prompts.conditioning(best.rows, device).repeat(2),
            None if pairs.region is None else torch.cat([pairs.region] * 2).to(device),
            pairs.share.to(device),
            guidance,
        )

    def predict(self, family: EditFamily, denoiser: Any, scheduler: Any) -> Float[Tensor, "b2 c h w"]:
        """The denoiser's predictions, in fp32."""
        x_t, times = family.noised(scheduler, self.x_0, self.noise, self.times)
        return family.predict(denoiser, x_t, times, self.cond, *self.guidance).float()

    def errors(
        self, family: EditFamily, scheduler: Any, predicted: Float[Tensor, "b2 c h w"]
    ) -> "PairErrors":
        """Mean squared errors of predictions over an image's pixels."""
        target = family.target(scheduler, self.x_0, self.noise, self.times)
        error = F.mse_loss(predicted, target.float(), reduction="none")
        unmasked = error.flatten(1).mean(1)
        errors = unmasked if self.region is None else (error * self.region).flatten(1).mean(1)
        return PairErrors(*errors.chunk(2), unmasked=unmasked.chunk(2)[0])

    def winner_errors(self, family: EditFamily, denoiser: Any, scheduler: Any) -> Float[Tensor, " b"]:
        """Mean squared errors of unguided predictions for the preferred edits alone, without a region: their
        diffusion loss.
        """
        half = slice(len(self.x_0) // 2)
        winners = replace(
            self,
            x_0=self.x_0[half],
            noise=self.noise[half],
            times=self.times[half],
            cond=self.cond.take(half),
            region=None,
            guidance=(None, 1.0),
        )
        target = family.target(scheduler, winners.x_0, winners.noise, winners.times)
        predicted = winners.predict(family, denoiser, scheduler)
        return F.mse_loss(predicted, target.float(), reduction="none").flatten(1).mean(1)

    def mean(self, values: Float[Tensor, " b"]) -> Float[Tensor, ""]:
        """Mean of a loss over the pairs, by their shares."""
        return values.mean() if self.share is None else (values * self.share).mean()


@dataclass(frozen=True)
class PairErrors:
    """Errors of predictions for both edits of b pairs."""

    winner: Float[Tensor, " b"]
    loser: Float[Tensor, " b"]
    unmasked: Float[Tensor, " b"]  # error of the winner, without a region's weights

    def margin(self, reference: "PairErrors", beta: float) -> Float[Tensor, " b"]:
        """Implicit reward of the preferred edit over the rejected one: −β/2 · [(e_w − e_w,ref) − (e_l −
        e_l,ref)], 0 for the reference itself (Diffusion-DPO Eq. 14).
        """
        return -beta / 2 * ((self.winner - reference.winner) - (self.loser - reference.loser))


def preference_loss(margin: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """−log σ(margin) of each pair: log 2 where the editor is its reference."""
    return -F.logsigmoid(margin)


def region_weights(mask: Float[Tensor, "b 1 h w"], unmasked: float) -> Float[Tensor, "b 1 h w"]:
    """Weights of errors, 1 on average over an image: `unmasked` everywhere, and the rest inside the mask. An
    empty mask gives 1 everywhere, as one of the whole image does.
    """
    share = mask.flatten(1).mean(1)[:, None, None, None]
    inside = torch.where(share > 0, mask / share.clamp_min(1e-8), 1.0)
    return unmasked + (1 - unmasked) * inside


@dataclass(frozen=True)
class RolloutPairs:
    """The best and the worst image of each of g groups of this process."""

    best: Rollout
    worst: Rollout
    share: Float[Tensor, " g"]  # 0 for groups without spread; 1 on average over all processes' groups
    region: Float[Tensor, "g 1 h w"] | None  # weights of errors

    @classmethod
    def choose(cls, rollout: Rollout, group_size: int, groups: int, unmasked: float) -> "RolloutPairs":
        """The pairs of a rollout. All processes call it together.

        Args:
            groups: of all processes.
            unmasked: see `region_weights`.
        """
        value = rollout.advantage.reshape(-1, group_size)
        kept = rollout.weight.reshape(-1, group_size) > 0
        first = torch.arange(len(value)) * group_size
        highest, best = value.masked_fill(~kept, -math.inf).max(1)
        lowest, worst = value.masked_fill(~kept, math.inf).min(1)
        apart = (highest > lowest).double()
        total = float(sum_of_processes(apart.sum()))
        region = None if rollout.mask is None else region_weights(rollout.mask[first], unmasked)
        share = (apart * groups / max(total, 1.0)).float()
        pair = [_finite_where(apart > 0, rollout.take(first + place)) for place in (best, worst)]
        return cls(*pair, share, region)

    def split(self, size: int) -> list["RolloutPairs"]:
        """The pairs in parts of `size` groups."""
        parts = []
        for which in torch.arange(len(self.share)).split(size):
            region = None if self.region is None else self.region[which]
            pairs = RolloutPairs(self.best.take(which), self.worst.take(which), self.share[which], region)
            parts.append(pairs)
        return parts


def _finite_where(kept: Bool[Tensor, " g"], images: Rollout) -> Rollout:
    """The images, with zeros in place of those left out, which may be NaN: that times a share of 0 is NaN."""
    latents = images.latents
    return replace(images, latents=torch.where(kept[:, None, None, None], latents, torch.zeros_like(latents)))


def record_pairs(
    loop: TrainLoop,
    pairs: PairBatch,
    margin: Float[Tensor, " b"],
    errors: PairErrors,
    expected: PairErrors,
    distance: Float[Tensor, " b2"],
) -> None:
    """Records means over pairs for the log, without those that are left out.

    `accuracy` is the share of pairs whose preferred edit the editor prefers (a margin above 0; one of exactly
    0, as at the start, counts for half); `distance` the mean squared distance of its predictions to the
    reference's; `winner_gain` and `loser_gain` are how much lower than the reference's its errors are. Where
    both fall, it unlearns both edits.

    Args:
        expected: errors of the reference.
    """
    kept: Bool[Tensor, " b"] = torch.ones_like(margin, dtype=torch.bool)
    if pairs.share is not None:
        kept = pairs.share > 0
    n = kept.sum()
    values = {
        "margin": margin,
        "accuracy": (margin.sign() + 1) / 2,
        "distance": sum(distance.chunk(2)) / 2,
        "winner_gain": expected.winner - errors.winner,
        "loser_gain": expected.loser - errors.loser,
    }
    for name, value in values.items():
        loop.record(name, (value * kept).sum() / n.clamp_min(1), n)
