"""Scorer of UniRL's reward service (0.2); a file of yours registers it:
`registry.register("rewardedit", EditScorer)`.
"""

from typing import Any

from reward_service.scorers.base import BaseScorer  # pyright: ignore[reportMissingImports]

from rewardedit.batch_sizes import free_memory
from rewardedit.integrations.edit_reward import BATCH_SIZE, EditReward


class EditScorer(BaseScorer):
    """Scores the last turn of each item by the turn before it; NaN is a failed item.

    Args:
        scorer: as for `load_scorer`.
    """

    name = "rewardedit"
    version = "1"
    input_kind = "image"
    supports_offload = True
    supports_grad = False
    sub_metric_names = ("score",)

    def __init__(
        self, scorer: Any = "vlm_judge", device: str | None = None, batch_size: int = BATCH_SIZE
    ) -> None:
        self.reward = EditReward(scorer, device, batch_size)

    def score(self, items: list[Any]) -> list[dict[str, float]]:
        """Returns {"score": …} of each item; its history is (instruction, source), (instruction, edited).

        Raises:
            ValueError: if an item has no source turn.
        """
        sources = [item.history[-2][1] if len(item.history) > 1 else None for item in items]
        instruction, edited = zip(*(item.history[-1] for item in items), strict=True)
        scores = self.reward(sources, edited, instruction, [item.metadata for item in items])
        return [{"score": value} for value in scores.score.tolist()]  # NaN exactly where invalid

    def offload(self) -> None:
        self.reward.scorer.to("cpu")
        free_memory()  # of the device, for the others on it

    def onload(self) -> None:
        self.reward.scorer.to(self.reward.device)

    def health(self) -> bool:
        return True

    def drain(self) -> None:
        """Nothing is queued here."""

    def close(self) -> None:
        self.offload()
