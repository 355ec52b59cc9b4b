"""Reward backend of UniRL (0.2): `_target_: rewardedit.integrations.unirl.EditRewardBackend`."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from unirl.reward.base import PromptRewardComponentSpec, RewardBackend
from unirl.types.reward import RewardRequest, RewardResponse

from rewardedit.batch import EditBatch
from rewardedit.batch_sizes import free_memory
from rewardedit.images import read_images, resize
from rewardedit.integrations.edit_reward import BATCH_SIZE, EditReward, require_sources


@dataclass
class EditRewardSpec(PromptRewardComponentSpec):
    """Settings of `EditRewardBackend`."""

    scorer: Any = "vlm_judge"  # as for `load_scorer`
    batch_size: int = BATCH_SIZE


class EditRewardBackend(RewardBackend):
    """Scores edits whose source is the request's conditioning image; UniRL raises on a failed one."""

    def __init__(self, *, config: EditRewardSpec, base_device: str) -> None:
        super().__init__("rewardedit", config.batch_size, prompt_source=config.prompt_source)
        self.reward = EditReward(config.scorer, base_device, config.batch_size)

    def compute_rewards(self, request: RewardRequest) -> RewardResponse:
        start = time.perf_counter()
        given = request.conditioning.get("image")
        source = None if given is None else [image.pixels.clamp(0, 1) for image in given.to_list()]
        edited = [image.pixels.clamp(0, 1) for image in request.generated["image"].to_list()]
        scores = self.reward(source, edited, self.prompts(request), request.metadata)
        parts = {name: values.tolist() for name, values in scores.parts.items()}
        seconds = time.perf_counter() - start
        return RewardResponse(scores.score.tolist(), parts, scores.valid.tolist(), scores.reason, seconds)

    def compute_rewards_differentiable(
        self, media_tensor: Tensor, prompts: list[str], records: list[dict[str, Any]] | None = None
    ) -> Tensor:
        """Scores with a gradient, (b,), NaN where invalid; the source is each record's `source`."""
        given = None if records is None else [record.get("source") for record in records]
        images = [read_images(image)[0] for image in require_sources(given, len(media_tensor))]
        size = tuple(media_tensor.shape[-2:])
        source = torch.stack([resize(image[None].to(media_tensor), size)[0] for image in images])
        return self.reward.scorer(EditBatch(source, list(prompts), media_tensor.clamp(0, 1))).score

    def is_available(self) -> bool:
        return True

    def offload(self) -> None:
        self.reward.scorer.to("cpu")
        free_memory()  # of the device, for the others on it

    def onload(self) -> None:
        self.reward.scorer.to(self.reward.device)
