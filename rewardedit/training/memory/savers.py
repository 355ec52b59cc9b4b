"""`memory: auto`: how a fine-tuning saves memory, in the order of what that costs, until it fits the card."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from rewardedit.processes import print_on_main, processes
from rewardedit.scorers import Scorer
from rewardedit.training.memory.blueprint import Blueprint
from rewardedit.training.memory.peak import GIB
from rewardedit.training.memory.stages import refl_memory, training_memory
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
            f"gradient_checkpointing={str(train.gradient_checkpointing).lower()}, "
            f"frozen_in_bf16={str(train.frozen_in_bf16).lower()}, "
            f"offload_text_encoder={str(train.offload_text_encoder).lower()}: "
            f"{self.needed / GIB:.1f} of {self.card / GIB:.1f} GiB"
        )


def card_memory() -> int | None:
    """Bytes of the GPU's memory; None without one."""
    return torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else None


def memory_of_pairs(editor: Callable[[], Blueprint]) -> Callable[[TrainConfig], int]:
    """Estimate of the bytes that fine-tuning on pairs alone needs, for `fit_training`."""
    return lambda train: training_memory(editor(), train, processes().num_processes)


def memory_of_feedback(
    config: Any,
    editor: Callable[[], Blueprint],
    scorers: Callable[[], dict[str, Scorer]],
    stages: Callable[..., dict[str, int]] = refl_memory,
) -> Callable[[TrainConfig], int]:
    """Estimate of the bytes that the dearest stage of a recipe with scorers needs, for `fit_training`.

    Args:
        stages: estimates the bytes of each stage.
        scorers: loads the training reward first, then the held-out one; they are moved to `meta`, without
            weights.
    """

    def needed(train: TrainConfig) -> int:
        needed = stages(replace(config, train=train), editor(), scorers(), processes().num_processes)
        return max(needed.values())

    return needed


def fit_training(train: TrainConfig, needed: Callable[[TrainConfig], int]) -> tuple[TrainConfig, list[str]]:
    """The settings to train an editor with, and lines to print; those given where `memory` is, or without a
    GPU.

    Args:
        needed: estimates the bytes that a training with these settings needs.

    Raises:
        ValueError: if nothing that `auto` takes fits the card.
    """
    card = card_memory()
    if train.memory == "given":
        return train, []
    if card is None:
        return replace(train, memory="given"), ["memory: auto takes the settings as given, without a GPU"]
    fitted = fit_to_card(train, needed, card, processes().num_processes)
    return fitted.train, [str(fitted)]


def fit_to_this_gpu(train: TrainConfig, needed: Callable[[TrainConfig], int]) -> TrainConfig:
    """The settings of `fit_training`, whose lines it prints."""
    settings, lines = fit_training(train, needed)
    for line in lines:
        print_on_main(line)
    return settings


def fit_to_card(
    train: TrainConfig, needed: Callable[[TrainConfig], int], card: int, processes: int = 1
) -> Fitted:
    """The first of `candidates` that fits.

    Args:
        needed: estimates the bytes that a training with these settings needs.

    Raises:
        ValueError: if none fits, or a scorer does not support the `meta` device, as quantised ones do not.
    """
    least = None
    for candidate in candidates(train, processes):
        try:
            size = needed(candidate)
        except RuntimeError as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(
                "train.memory: expected given for a recipe whose memory cannot be estimated; got auto "
                f"({first}); set it and train.micro_batch_size"
            ) from error
        if size <= SHARE * card:
            return Fitted(candidate, size, card)
        least = size if least is None else min(least, size)
    assert least is not None
    raise ValueError(
        f"train.memory: expected a GPU of {least / SHARE / GIB:.1f} GiB for the least that auto takes; "
        f"got {card / GIB:.1f} GiB; give train.lora_rank, with it train.quantize=4bit, "
        "train.optimizer=adamw8bit or a smaller data.size"
    )


def candidates(train: TrainConfig, processes: int = 1) -> Iterator[TrainConfig]:
    """Settings to try, the cheapest first, with the same updates up to rounding.

    Smaller micro-batches that still fill a GPU cost next to nothing; frozen parts in bf16, of a training that
    computes in it, change previews and checks by rounding; an offloaded text encoder is moved twice for each
    check; gradient checkpointing computes each forward pass twice; micro-batches of fewer rows
    leave a GPU waiting, and come last. What is given or was taken already stays.
    """
    most, passes = train.micro_batches(processes)
    sizes = [rows for rows in range(most, 0, -1) if most * passes % rows == 0]
    filling = [rows for rows in sizes if rows >= FEWEST] or sizes[:1]
    others = [rows for rows in sizes if rows not in filling]
    checkpointing = train.gradient_checkpointing
    offloading = train.offload_text_encoder or not train.text_encoder_lr
    halving = train.frozen_in_bf16 or (train.mixed_precision == "bf16" and not train.text_encoder_lr)
    tried = [(rows, train.frozen_in_bf16, checkpointing, train.offload_text_encoder) for rows in filling]
    tried += [(rows, halving, checkpointing, train.offload_text_encoder) for rows in filling]
    tried += [(rows, halving, checkpointing, offloading) for rows in filling]
    tried += [(rows, halving, True, offloading) for rows in (*filling, *others)]
    for rows, halved, checkpointed, offloaded in dict.fromkeys(tried):
        yield replace(
            train,
            memory="given",
            micro_batch_size=rows,
            gradient_checkpointing=checkpointed,
            frozen_in_bf16=halved,
            offload_text_encoder=offloaded,
        )
