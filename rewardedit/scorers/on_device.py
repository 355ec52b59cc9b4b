"""A scorer that stays on a device of its own, such as a judge beside the GPU that trains."""

from collections.abc import Mapping
from typing import Any

import torch

from rewardedit.batch import EditBatch, Scores
from rewardedit.prepared import Prepared
from rewardedit.scorers.base import Scorer


class OnDevice(Scorer):
    """Scores on its device whatever batch it is given, and returns the scores to the batch's device; without
    a gradient.
    """

    def __init__(self, scorer: Scorer, device: torch.device | str) -> None:
        super().__init__()
        self.scorer = scorer.to(device)
        self.device = torch.device(device)
        self.range = scorer.range
        self.required_fields = scorer.required_fields
        self.family = scorer.family

    @property
    def fingerprint(self) -> dict[str, Any]:
        return self.scorer.fingerprint

    def _apply(self, fn: Any, recurse: bool = True) -> "OnDevice":
        """Stays where it is when moved."""
        return self

    @torch.no_grad()
    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        scores = self.scorer(batch.to(self.device))
        device = batch.edited.device
        parts: Mapping[str, torch.Tensor] = scores.parts
        moved = {name: value.to(device) for name, value in parts.items()}
        return Scores.make(scores.score.to(device), moved, list(scores.reason))
