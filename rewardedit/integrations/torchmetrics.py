"""`EditMetric`, the mean score of edits as a metric of torchmetrics (1.7 and later)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from rewardedit.batch import EditBatch
from rewardedit.integrations.edit_reward import BATCH_SIZE, EditReward


class EditMetric(Metric):
    """Mean score of the edits that can be scored, and the number of those that cannot.

    Args:
        scorer: as for `load_scorer`.
        device: where the scorer runs; None: on a GPU if there is one.
        batch_size: most edits scored at once.
        options: of `torchmetrics.Metric`.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    total: Tensor
    valid: Tensor
    invalid: Tensor

    def __init__(
        self,
        scorer: str | Mapping[str, Any] | Callable[[EditBatch], Tensor],
        device: torch.device | str | None = None,
        batch_size: int = BATCH_SIZE,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.reward = EditReward(scorer, device, batch_size)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("valid", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("invalid", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, source: Sequence[Any], edited: Sequence[Any], instruction: Sequence[str]) -> None:
        """Scores n edits; images are tensors (n, 3, h, w) in [0, 1], or lists as for `EditReward`.

        Raises:
            ValueError: if an edit has no source.
        """
        scores = self.reward(source, edited, instruction)
        self.total += scores.score[scores.valid].double().sum().to(self.total.device)
        self.valid += scores.valid.sum().to(self.valid.device)
        self.invalid += (~scores.valid).sum().to(self.invalid.device)

    def compute(self) -> dict[str, Tensor]:
        """Returns {"score": the mean, NaN without a valid edit; "valid", "invalid": numbers of edits}."""
        return {"score": self.total / self.valid, "valid": self.valid, "invalid": self.invalid}
