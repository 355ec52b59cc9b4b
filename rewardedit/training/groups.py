"""Advantages of online reinforcement learning: how much better an image is than the others of its group.

A group holds the images that one policy made of one source and one instruction. Rewards are normalised apart
before they are added, so that none outweighs the others by its units (GDPO, Liu et al. 2026).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

EPSILON = 1e-4  # added to standard deviations, as in the code of DDPO, Flow-GRPO and DiffusionNFT
Std = Literal["batch", "group"]


@dataclass(frozen=True)
class Advantages:
    """Advantages of g groups of k images."""

    value: Float[Tensor, "g k"]  # 0 where an image is left out
    kept: Bool[Tensor, "g k"]  # images that are trained on
    valid: Bool[Tensor, "g k"]  # images that all rewards could score
    spread: Float[Tensor, "r g"]  # standard deviation of each reward within each group
    flat: Bool[Tensor, " g"]  # groups whose images all rewards find alike
    few: Bool[Tensor, " g"]  # groups with too few valid images

    def row_weights(self, updates: int) -> Float[Tensor, "g k"]:
        """Weights of the images' losses, 0 where left out; their mean in each update that keeps any is 1, so
        that dropped groups do not shrink the update.

        Args:
            updates: number of updates that the groups are divided into, in their order.
        """
        kept = self.kept.float().reshape(updates, -1)
        share = kept.mean(1, keepdim=True)
        return (kept / share.clamp_min(1 / kept.shape[1])).reshape(self.kept.shape)


def group_advantages(
    rewards: Float[Tensor, "r g k"],
    weights: Float[Tensor, " r"],
    std: Std = "batch",
    least_spread: float = 1e-4,
    least_valid: float = 0.5,
) -> Advantages:
    """Returns Σ_r w_r (R_r − mean of the group) / (std + 1e-4), of several rewards divided by its own
    standard deviation over the batch.

    Of one reward with the batch's standard deviation that is DiffusionNFT's advantage (2509.16117 Sec. 3.3),
    with the group's GRPO's.

    Args:
        rewards: NaN where a reward has no score; such an image counts for none of them.
        weights: of the rewards; their sizes matter relative to one another alone.
        std: images over which a reward's standard deviation is taken: the valid ones of the batch or the
            group.
        least_spread: least standard deviation within a group, in the reward's units, with which a reward
            says anything about the group; a group about which none does is dropped.
        least_valid: share of a group's images that must be valid, or it is dropped; two are always needed.
    """
    valid = rewards.isfinite().all(0)
    few = valid.sum(1) < max(2, math.ceil(least_valid * valid.shape[1]))
    counted = valid & ~few[:, None]

    # Each reward, within its group.
    centred = torch.stack([_centred(reward, counted) for reward in rewards])
    spread = (centred**2).sum(2).div(counted.sum(1).clamp_min(1)).sqrt()
    informative = (spread > least_spread) & ~few
    flat = ~informative.any(0) & ~few
    if std == "group":
        scale = spread
    else:
        scale = torch.stack([_std(reward, counted) for reward in rewards])[:, None].expand_as(spread)
    normalised = centred / (scale + EPSILON)[:, :, None] * informative[:, :, None]

    # Their weighted sum, over the batch.
    shares = (weights / weights.abs().sum()).to(rewards)
    total = (shares[:, None, None] * normalised).sum(0)
    kept = counted & informative.any(0)[:, None]
    if len(rewards) > 1:
        total = total / (_std(total, kept) + EPSILON)
    return Advantages(total, kept, valid, spread, flat, few)


def _centred(values: Float[Tensor, "g k"], counted: Bool[Tensor, "g k"]) -> Float[Tensor, "g k"]:
    """The values minus the mean of their group; 0 where not counted."""
    known = torch.where(counted, values, 0)
    mean = known.sum(1, keepdim=True) / counted.sum(1, keepdim=True).clamp_min(1)
    return torch.where(counted, values - mean, 0)


def _std(values: Float[Tensor, "g k"], counted: Bool[Tensor, "g k"]) -> Float[Tensor, ""]:
    """Standard deviation over all counted values; 0 if there are none."""
    known = values[counted]
    return known.std(correction=0) if len(known) else values.new_zeros(())
