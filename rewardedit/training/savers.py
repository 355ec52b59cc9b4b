"""`memory: auto`: how a fine-tuning saves memory, in the order of what that costs, until it fits the card."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from rewardedit.processes import processes
from rewardedit.training.memory import Blueprint, training_memory
from rewardedit.training.meta import GIB
from rewardedit.training.trainable import TrainConfig

SHARE = 0.9  # of a card's memory that a training may take
FEWEST = 4  # rows of a micro-batch that still fill a GPU


@dataclass(frozen=True)
class Fitted:
    """Settings that fit a card, with the bytes that they need of it."""

    train: TrainConfig
    needed: int
    card: int

    def __str__(self) -> str:
        """The line to print."""
        train = self.train
        return (
            f"memory: auto takes micro_batch_size={train.micro_batch_size}, "
            f"gradient_checkpointing={str(train.gradient_checkpointing).lower()}: "
            f"{self.needed / GIB:.1f} of {self.card / GIB:.1f} GiB"
        )


def card_memory() -> int | None:
    """Bytes of the GPU's memory; None without one."""
    return torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else None


def fit_training(train: TrainConfig, editor: Blueprint) -> tuple[TrainConfig, list[str]]:
    """The settings to train an editor with, and lines to print; those given where `memory` is, or without a
    GPU.

    Raises:
        ValueError: if nothing that `auto` takes fits the card.
    """
    card = card_memory()
    if train.memory == "given":
        return train, []
    if card is None:
        return replace(train, memory="given"), ["memory: auto takes the settings as given, without a GPU"]
    n = processes().num_processes
    fitted = fit_to_card(train, lambda candidate: training_memory(editor, candidate, n), card, n)
    return fitted.train, [str(fitted)]


def fit_to_card(
    train: TrainConfig, needed: Callable[[TrainConfig], int], card: int, processes: int = 1
) -> Fitted:
    """The first of `candidates` that fits.

    Args:
        needed: estimates the bytes that a training with these settings needs.

    Raises:
        ValueError: if none fits.
    """
    least = None
    for candidate in candidates(train, processes):
        size = needed(candidate)
        if size <= SHARE * card:
            return Fitted(candidate, size, card)
        least = size if least is None else min(least, size)
    assert least is not None
    raise ValueError(
        f"train.memory: expected a GPU of {least / SHARE / GIB:.1f} GiB for the least that auto takes; "
        f"got {card / GIB:.1f} GiB; give train.lora_rank, train.optimizer=adamw8bit or a smaller data.size"
    )


def candidates(train: TrainConfig, processes: int = 1) -> Iterator[TrainConfig]:
    """Settings to try, the cheapest first, with the same updates up to rounding.

    Smaller micro-batches that still fill a GPU cost next to nothing; gradient checkpointing computes each
    forward pass twice; micro-batches of fewer rows leave a GPU waiting, and come last. What is given already
    stays.
    """
    most, passes = train.micro_batches(processes)
    sizes = [rows for rows in range(most, 0, -1) if most * passes % rows == 0]
    filling = [rows for rows in sizes if rows >= FEWEST] or sizes[:1]
    others = [rows for rows in sizes if rows not in filling]
    given = train.gradient_checkpointing
    tried = [] if given else [(rows, False) for rows in filling]
    tried += [(rows, True) for rows in (*filling, *others)]
    for rows, checkpointing in tried:
        yield replace(train, memory="given", micro_batch_size=rows, gradient_checkpointing=checkpointing)
