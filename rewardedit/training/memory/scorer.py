"""Time and memory of a scorer's training, estimated on `meta` before any weights are there."""

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from rewardedit import devices
from rewardedit.batch import EditBatch
from rewardedit.language.vlm import Vlm, load_processor, naming
from rewardedit.models import pretrained, resolve_model
from rewardedit.scorers.adiee import Adiee
from rewardedit.training.memory.peak import FULL, OVERHEAD, peak_memory, table, weights
from rewardedit.training.memory.stages import MOMENTS
from rewardedit.training.score_token import losses
from rewardedit.training.scorer_settings import TrainConfig
from rewardedit.training.timing import time_line
from rewardedit.training.trainable import autocast_type

WORDS = 20  # words of a long instruction
ROOM = 256  # tokens that a scorer adds, at most


def frozen_type(train: TrainConfig, lora_rank: int | None) -> torch.dtype:
    """Type of frozen weights: that in which a step computes; trained ones are in fp32."""
    half = autocast_type(devices.precision_here(train.mixed_precision))
    return torch.float32 if half is None or lora_rank is None else half


def length_line(train: TrainConfig) -> str:
    """Line with the length of a training, as far as it is known without the rows."""
    long = f"{train.max_steps} steps" if train.epochs is None else f"{train.epochs:g} passes over the rows"
    return f"training: {long} in batches of {train.batch_size}"


def blueprint(name: str, dtype: torch.dtype) -> Vlm:
    """A vision-language model without weights, on `meta`, and its processor.

    Raises:
        ValueError: if there is no such model.
    """
    from transformers import AutoConfig, AutoModelForImageTextToText

    name = resolve_model(name)
    with naming(name):
        config = pretrained.load(AutoConfig, name)
        config.get_text_config().vocab_size += ROOM  # the embeddings cannot grow on `meta`
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(config).to(dtype)
        return Vlm(model.requires_grad_(False), load_processor(name, config.model_type))


def loss_of(scorer: Adiee, rows: int, side: int) -> torch.Tensor:
    """Loss of a micro-batch on `meta`."""
    images = torch.empty(rows, 3, side, side, device="meta")
    batch = EditBatch(images, ["word " * WORDS] * rows, images)
    text, score = losses(scorer, batch, torch.zeros(rows, 1), [0] * rows)
    return text + score


def scorer_step(scorer: Adiee, train: TrainConfig, rows: int, side: int) -> tuple[int, int]:
    """Bytes of a step that trains the scorer on a micro-batch, at most, and its operations."""
    scorer.train()
    trained = [p for p in scorer.parameters() if p.requires_grad]
    for p in trained:
        p.grad = torch.empty_like(p)
    half = autocast_type(train.mixed_precision)
    step = peak_memory(lambda: loss_of(scorer, rows, side), half).peak
    # Operations are counted apart, as the counter takes attention to pieces, which need more memory.
    with FlopCounterMode(display=False) as counter:
        peak_memory(lambda: loss_of(scorer, rows, side), half)
    moments = MOMENTS["adamw"] + FULL * bool(train.ema)
    resident = weights(scorer) + (FULL + moments) * sum(p.numel() for p in trained)
    return resident + step + OVERHEAD, counter.get_total_flops()


def scorer_lines(make: Callable[[], Adiee], train: TrainConfig, rows: int, side: int) -> list[str]:
    """Time and memory of the training of a scorer on `meta`, or the reason why they cannot be estimated.

    As long as the rows, and so the steps of `train.epochs`, are unknown, the time is that of a step.
    """
    try:
        memory, operations = scorer_step(make(), train, rows, side)
    except Exception as error:  # a model that does not support `meta` is no reason to refuse a recipe
        reason = str(error).partition("\n")[0]
        return [f"time and memory: not estimated ({type(error).__name__}: {reason})"]
    of_a_step = operations * train.batch_size / rows
    if train.epochs is None:
        time = time_line("training", of_a_step * train.max_steps, train.mixed_precision)
    else:
        time = time_line(f"a step's {train.batch_size} rows:", of_a_step, train.mixed_precision)
    return [time, table({"step": memory})]
