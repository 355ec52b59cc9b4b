"""Reward models of Flow-Factory: `reward_model: rewardedit.integrations.flow_factory.EditPointwise`, and
`scorer:` beside it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from flow_factory.rewards.abc import (  # pyright: ignore[reportMissingImports]
    GroupwiseRewardModel,
    PointwiseRewardModel,
    RewardModelOutput,
)

from rewardedit.integrations.edit_reward import BATCH_SIZE, EditReward, rewards_of
from rewardedit.untrusted import read_json


class _Rewards:
    """Scores of edits whose source is the only condition image."""

    required_fields = ("image", "prompt", "condition_images")
    use_tensor_inputs = False

    def __init__(self, config: Any, accelerator: Any) -> None:
        super().__init__(config, accelerator)  # pyright: ignore[reportCallIssue]
        size = getattr(config, "batch_size", None) or BATCH_SIZE
        self.reward = EditReward(getattr(config, "scorer", "vlm_judge"), self.device, size)

    def rewards(
        self, image: Sequence[Any] | None, prompt: list[str], conditions: Any, metadata: Any
    ) -> list[float]:
        several = [len(images) for images in conditions or [] if images is not None and len(images) > 1]
        if several:
            raise ValueError(f"condition_images: expected one source an edit; got {several[0]}")
        sources = None
        if conditions is not None:
            sources = [None if images is None or not len(images) else images[0] for images in conditions]
        rows = None if metadata is None else [read_json(text) if text else {} for text in metadata]
        return rewards_of(self.reward(sources, image or [], prompt, rows))


class EditPointwise(_Rewards, PointwiseRewardModel):
    """The score of each edit. A batch without sources, or with an edit that has no score, raises."""

    def __call__(self, prompt, image=None, condition_images=None, metadata=None) -> Any:
        return RewardModelOutput(torch.tensor(self.rewards(image, prompt, condition_images, metadata)), None)


class EditGroupwise(_Rewards, GroupwiseRewardModel):
    """The rank of each edit in its group by score: 1 for the best, 0 for the worst; equal scores share."""

    def __call__(self, prompt, image=None, condition_images=None, metadata=None) -> Any:
        scores = torch.tensor(self.rewards(image, prompt, condition_images, metadata))
        below = (scores[:, None] > scores).sum(1) + (scores[:, None] == scores).sum(1).sub(1) / 2
        return RewardModelOutput(below / max(len(scores) - 1, 1), {"scores": scores.tolist()})
