"""Training of small models on custom losses: AdamW or Muon, a cosine schedule,
and losses that call parts of modules.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from rewardedit.devices import Precision
from rewardedit.training.loop import LoopConfig, TrainLoop, make_accelerator, step_generator
from rewardedit.training.optimizer import Muon, learning_rate_share, parameter_groups
from rewardedit.training.trackers import Tracker

LossOf = Callable[[int, torch.Generator], Tensor]


@dataclass(frozen=True)
class SmallTrainConfig(LoopConfig):
    """Settings of the small models' trainings."""

    max_steps: int = 1000
    lr: float = 1e-3
    lr_warmup_steps: int = 100
    schedule_steps: int | None = None  # steps over which the learning rate falls; None: max_steps
    mixed_precision: Precision = "bf16"
    tracker: Tracker = "none"
    muon_lr: float | None = None  # Muon's learning rate of hidden matrices, convolutions; None: AdamW for all
    beta2: float = 0.99  # AdamW's β₂
    floor: float = 0.0  # share of the learning rate at which the cosine ends


def fit(
    config: SmallTrainConfig,
    modules: dict[str, nn.Module],
    loss_of: LossOf,
    folder: Path,
    resume: bool,
    lrs: dict[str, float] | None = None,
) -> None:
    """Trains modules in place on `loss_of(step, generator)`; they end with their averaged weights."""
    folder.mkdir(parents=True, exist_ok=True)
    accelerator = make_accelerator(folder, config.mixed_precision, 1, config.tracker)
    for module in modules.values():  # not wrapped, since losses call parts of modules
        accelerator.prepare_model(module.train(), evaluation_mode=True)
    groups = []
    for name, module in modules.items():
        if lrs is not None and name in lrs:
            groups += parameter_groups(module, lrs[name], None)
        else:
            groups += parameter_groups(module, config.lr, config.muon_lr)
    optimizer = Muon(
        groups,
        lr=config.lr,
        betas=(0.9, config.beta2),
        weight_decay=config.weight_decay,
        fused=True,
    )
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(config))
    optimizer = accelerator.prepare(optimizer)
    every = chain.from_iterable(module.parameters() for module in modules.values())
    parameters = [parameter for parameter in every if parameter.requires_grad]
    loop = TrainLoop(
        config, accelerator, optimizer, lr_scheduler, parameters, folder, resume, label=folder.name
    )

    for step in loop.steps():
        with loop.autocast():
            loss = loss_of(step, step_generator(config.seed, step))
        loop.backward(loss, [f"of step {step}"])
        loop.update()

    loop.finish()
    for module in modules.values():
        module.eval()


def schedule(config: SmallTrainConfig) -> Callable[[int], float]:
    """Function that gives the share of the learning rate at each step."""
    last = config.schedule_steps or config.max_steps
    return partial(learning_rate_share, warmup=config.lr_warmup_steps, last=last, floor=config.floor)


def count(module: nn.Module) -> str:
    """Number of parameters as text, e.g. "0.65 M parameters"."""
    return f"{sum(p.numel() for p in module.parameters()) / 1e6:.2f} M parameters"
