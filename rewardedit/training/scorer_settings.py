"""Settings of the ADIEE scorer's training, and the steps and micro-batches that follow from them."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from rewardedit.devices import Precision
from rewardedit.processes import processes
from rewardedit.training.loop import LoopConfig


@dataclass(frozen=True)
class TrainConfig(LoopConfig):
    """ADIEE's settings as far as the paper states them (App. B)."""

    max_steps: int = 15_000
    epochs: float | None = None  # passes over the rows, which determine max_steps; None: max_steps applies
    batch_size: int = 192
    micro_batch_size: int | None = None  # rows per process and forward pass; None: all of a process's share
    questions_per_edit: int = 1  # consecutive rows with the same edit, whose images are read once for all
    lr: float = 2e-5
    lr_warmup_steps: int = 0
    # schedule of the learning rate after the warm-up
    lr_scheduler: Literal["constant_with_warmup", "cosine"] = "constant_with_warmup"
    beta2: float = 0.95  # AdamW's β₂
    weight_decay: float = 0.0
    head_lr: float | None = None  # learning rate of the head; None: train.lr
    muon_lr: float | None = None  # Muon's learning rate of the language model's matrices; None: AdamW for all
    text_weight: float = 1.0  # weight of the answer's cross-entropy
    score_weight: float = 10.0  # weight of the score's error
    # weight of the score's error for labels of 5 or more; set it above 1 if most rows are failures
    positive_weight: float = 1.0
    gradient_checkpointing: bool = True  # gradient checkpointing of the language model
    mixed_precision: Precision = "bf16"

    def over(self, rows: int) -> "TrainConfig":
        """Settings whose `max_steps` are `epochs` passes over the given number of rows, and which state no
        `epochs` any more; unchanged without `epochs`.
        """
        if self.epochs is None:
            return self
        return replace(self, max_steps=math.ceil(self.epochs * rows / self.batch_size), epochs=None)

    def shares(self) -> list[slice]:
        """Micro-batches, as slices of a process's share of a batch.

        Raises:
            ValueError: if a batch does not divide evenly.
        """
        share = self.batch_size // processes().num_processes
        size = self.micro_batch_size or share
        parts = share * processes().num_processes == self.batch_size and not share % size
        if self.questions_per_edit < 1 or not parts or size % self.questions_per_edit:
            raise ValueError(
                f"batch_size: expected {self.batch_size} to part into micro-batches of {size} on "
                f"{processes().num_processes} processes, and these into {self.questions_per_edit} questions "
                "an edit"
            )
        return [slice(first, first + size) for first in range(0, share, size)]
