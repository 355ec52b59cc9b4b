"""Settings of reward feedback, its loss, and the mapping of the score that it takes."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from rewardedit.config import shown
from rewardedit.diffusion.rollout import RolloutConfig, Scored
from rewardedit.models.half_weights import HalfWeights, half_weights
from rewardedit.processes import print_on_main
from rewardedit.reward_prompt import RewardScale
from rewardedit.scorer_spec import ScorerSpec, resolve_spec, spec_name
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.scorers.base import Combination, no_gradient

GRADED = (0.0, 10.0)  # range for which the papers' hinge of 10 is the maximum
STEEP = 10.0  # ratio of steepest to flattest slope above which a mapping is reported
PRESETS: dict[str, dict[str, Any]] = {
    "adiee": {
        "num_inference_steps": tuple(range(10, 101, 5)),
        "stop_before_end": (1, 1),
        "scored": "prev_sample",
        "loss": "hinge",
        "hinge": 10.0,
    },
    "imagereward": {
        "num_inference_steps": (40,),
        "stop_before_end": (0, 9),
        "scored": "pred_x0",
        "loss": "hinge",
        "hinge": 2.0,
    },
    "draft": {
        "num_inference_steps": (50,),
        "stop_before_end": (0, 0),
        "scored": "prev_sample",
        "loss": "linear",
        "hinge": 0.0,
    },
}
PRESETS["adiee"] |= {"scale": "auto", "weight": 1e-3}
PRESETS["imagereward"] |= {"scale": "standard", "weight": 1e-3}
PRESETS["draft"] |= {"scale": "none", "weight": 1.0}

# least values of settings
LEAST = {
    "weight": 0,
    "diffusion_weight": 0,
    "reference_weight": 0,
    "rollout_batch_size": 1,
    "score_batch_size": 1,
}


@dataclass(frozen=True)
class RewardConfig:
    """Score that trains the editor, and settings of its use. The preset fills in settings that are None."""

    scorer: ScorerSpec  # differentiable scorer whose score is the reward
    # paper whose values fill in settings that are null
    preset: Literal["adiee", "imagereward", "draft"] = "adiee"
    weight: float | None = None  # λ, weight of the reward's loss
    loss: Literal["hinge", "linear"] | None = None  # loss of the score s: relu(hinge − s), or −s
    hinge: float | None = None  # threshold of the hinge loss, in units of the mapped score
    # mapping of the score before the loss. none: unchanged; range: to 0–10 by the scorer's declared range;
    # standard: by mean and standard deviation over the rows; quantiles: to 0–10 by the rows' quantiles, for
    # rows that include failed edits. auto: none for the range 0–10, range for other bounds, else standard
    scale: Literal["auto", "none", "range", "standard", "quantiles"] | None = None
    # weight of the diffusion loss on the data set's own pairs (ADIEE Eq. 8)
    diffusion_weight: float = 1.0
    reference_weight: float = 0.0  # weight of the distance to the starting model's prediction (LoRA only)
    num_inference_steps: tuple[int, ...] | None = None  # rollout lengths; one is drawn for all processes
    # least and most steps left out at a rollout's end: a number is drawn; at least one step is taken
    stop_before_end: tuple[int, int] | None = None
    grad_steps: int | None = 1  # last steps of a rollout that carry a gradient; None: all
    # output that is decoded and scored: the last step's result, or its prediction of the clean latents
    scored: Scored | None = None
    # scheduler of rollouts: the editor's own, or DDPM on its noise schedule
    scheduler: Literal["editor", "ddpm"] = "editor"
    guidance_scale: float | None = None  # text guidance scale of rollouts; None: no classifier-free guidance
    image_guidance_scale: float = 1.0  # image guidance scale of rollouts
    # rows that take the steps without gradient together, in whole micro-batches; None: all of a process's
    # share of an update. Where memory runs out, half as many
    rollout_batch_size: int | None = None
    score_batch_size: int = 64  # edits that are scored at a time for the mapping of the score
    # modules whose activations are recomputed; for the UNet see train.gradient_checkpointing
    gradient_checkpointing: tuple[Literal["vae", "scorer"], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "scorer", resolve_spec(self.scorer))
        preset = PRESETS[self.preset]
        if (self.loss or preset["loss"]) == "linear" and self.hinge not in (None, preset["hinge"]):
            raise ValueError("hinge: has no effect with loss: linear; leave it out, or take loss: hinge")

        for name, value in preset.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

        assert self.num_inference_steps is not None
        assert self.stop_before_end is not None
        if (
            not self.num_inference_steps
            or not 0 <= self.stop_before_end[0] <= self.stop_before_end[1]
            or self.stop_before_end[0] >= min(self.num_inference_steps)
        ):
            given = f"{shown(self.num_inference_steps)} and {shown(self.stop_before_end)}"
            raise ValueError(
                f"num_inference_steps, stop_before_end: expected at least one step to be taken; got {given}"
            )

        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: expected at least {least}; got {value}")

        if self.weight and self.grad_steps == 0:
            raise ValueError(
                "grad_steps: the reward has no gradient without at least one; take 1, or weight: 0"
            )
        if self.guidance_scale is None and self.image_guidance_scale != 1.0:
            raise ValueError("image_guidance_scale: has no effect without guidance_scale; give that too")
        self.rollout(torch.Generator())  # raises if its numbers do not fit each other

    def stops_before_end(self, steps: int) -> tuple[int, int]:
        """Least and most steps that a rollout of the given length leaves out."""
        assert self.stop_before_end is not None
        return self.stop_before_end[0], min(self.stop_before_end[1], steps - 1)

    def micro_batches_at_once(self, size: int, micro_batches: int) -> int:
        """Number of micro-batches of a size that take the steps without gradient together."""
        if self.rollout_batch_size is None:
            return micro_batches
        return min(max(self.rollout_batch_size // size, 1), micro_batches)

    @property
    def mean_grad_steps(self) -> float:
        """Mean number of steps of a rollout that carry a gradient."""
        return self.mean_steps if self.grad_steps is None else min(self.grad_steps, self.mean_steps)

    @property
    def mean_steps(self) -> float:
        """Mean number of steps of a rollout."""
        assert self.num_inference_steps is not None
        return sum(steps - sum(self.stops_before_end(steps)) / 2 for steps in self.num_inference_steps) / len(
            self.num_inference_steps
        )

    def rollout(self, generator: torch.Generator) -> RolloutConfig:
        """Settings of one training step's rollout, drawn at random."""
        assert self.num_inference_steps is not None
        assert self.scored is not None
        steps = self.num_inference_steps[
            int(torch.randint(len(self.num_inference_steps), (), generator=generator))
        ]
        least, most = self.stops_before_end(steps)
        skip = int(torch.randint(least, most + 1, (), generator=generator))
        grad_steps = None if self.grad_steps is None else min(self.grad_steps, steps - skip)
        guidance = {"guidance_scale": self.guidance_scale, "image_guidance_scale": self.image_guidance_scale}
        stop = steps - skip if skip else None
        return RolloutConfig(steps, stop, grad_steps, self.scored, **guidance)


def reward_loss(
    score: Float[Tensor, " b"],
    valid: Tensor,
    loss: str = "hinge",
    hinge: float = 10.0,
    scale: RewardScale | None = None,
) -> Float[Tensor, ""]:
    """Mean over the valid rows of relu(hinge − s) or −s,
    where s is the score, mapped if a scale is given.
    """
    kept = score[valid]
    mapped = kept if scale is None else scale(kept, clamp=False)
    each = F.relu(hinge - mapped) if loss == "hinge" else -mapped
    return each.sum() / max(len(each), 1)


def chosen_scale(config: RewardConfig, scorer: Scorer) -> Literal["none", "range", "standard", "quantiles"]:
    """Scale of the reward; `auto` is resolved by the scorer's range.

    Raises:
        ValueError: if it is `range` and the scorer's range has no bounds.
    """
    assert config.scale is not None
    bounded = all(map(math.isfinite, scorer.range))
    if config.scale == "range" and not bounded:
        name = spec_name(config.scorer)
        raise ValueError(
            f"reward.scale: expected a scorer with bounds for range; {name} has none; take standard"
        )
    if config.scale != "auto":
        return config.scale
    if scorer.range == GRADED:
        return "none"
    return "range" if bounded else "standard"


def reward_mapping(config: RewardConfig, scorer: Scorer, scores: Sequence[float]) -> RewardScale | None:
    """Mapping of the score before the loss, from the scores of some rows; None if it stays unchanged.

    Raises:
        ValueError: if the scorer's range, or the rows' scores, do not define a mapping.
    """
    scale = chosen_scale(config, scorer)
    if scale == "none":
        return None
    if scale == "range":
        return RewardScale.from_range(*scorer.range)
    if scale == "standard":
        return RewardScale.standard(scores)
    mapping = RewardScale.from_quantiles(scores)
    if mapping.steepness > STEEP:
        print_on_main(
            f"reward.scale: by these rows' quantiles the reward is {mapping.steepness:.0f} times as steep at "
            "some scores as at others, and failed edits may hardly count; take reward.scale=auto, or rows "
            "that hold failed edits"
        )
    return mapping


def load_rewards(reward: ScorerSpec, held_out: ScorerSpec) -> dict[str, Scorer]:
    """Loads the scorer that trains and the one that monitors, by their names.

    Raises:
        ValueError: if the first has no gradient with its options; then the second is not loaded.
    """
    first = load_scorer(reward, device="cpu")
    if not first.differentiable:
        error = no_gradient(type(first), f"{spec_name(reward)} with these options")
        raise ValueError(f"reward.scorer: {error}")
    return {spec_name(reward): first, spec_name(held_out): load_scorer(held_out, device="cpu")}


def with_half_weights(scorer: Scorer) -> list[Scorer]:
    """The scorer, or the members of a combination, whose weights may be in bf16 under autocast."""
    if not isinstance(scorer, Combination):
        return [scorer] if scorer.allows_half_weights else []
    allowed = []
    for _, member in scorer.named():
        allowed += with_half_weights(member)
    return allowed


def reward_in_bf16(scorer: Scorer, enabled: bool) -> AbstractContextManager[HalfWeights]:
    """Context in which the weights of `with_half_weights` are held in bf16, if enabled."""
    return half_weights(with_half_weights(scorer) if enabled else [])


def require_effect(config: RewardConfig, scale: RewardScale | None, scores: Sequence[float]) -> None:
    """Raises ValueError if the hinge loss is zero on every scored row, and so would train nothing."""
    score = torch.tensor(scores, dtype=torch.float64)
    valid = score.isfinite()
    if (
        config.weight
        and config.loss == "hinge"
        and reward_loss(score, valid, "hinge", config.hinge, scale) == 0
    ):
        least = score[valid].min() if scale is None else scale(score[valid], clamp=False).min()
        raise ValueError(
            f"reward.hinge: relu({config.hinge:g} − s) is zero for all {len(score)} rows that were scored, "
            f"whose least s is {least:.3g}, and would train nothing; "
            "take reward.scale=standard or range, or a higher reward.hinge"
        )
