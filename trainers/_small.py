"""The loop of models that are trained on a loss of their own: cosine schedule, moving average, checkpoints."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers.training_utils import EMAModel
from torch import Tensor, nn

from rewardedit.trainers import _run
from rewardedit.trainers._muon import Muon, parameter_groups

LossOf = Callable[[int, torch.Generator], Tensor]


@dataclass(frozen=True)
class SmallTrain:
    """AdamW (or Muon) with a cosine schedule; what the small models' recipes set."""

    steps: int = 1000
    batch: int = 64
    lr: float = 1e-3
    muon_lr: float | None = None  # of hidden matrices and convolutions; None: AdamW for all
    warmup: int = 100
    weight_decay: float = 1e-2
    beta2: float = 0.99
    floor: float = 0.0  # share of the learning rate at which the cosine ends
    clip: float = 1.0
    ema: float | None = None
    precision: _run.Precision = "bf16"
    compile: bool = False  # needs a C++ compiler on a CPU
    seed: int = 0
    tracker: _run.Tracker = "none"
    log_every: int = 50
    checkpoint_every: int = 1000

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1; got {getattr(self, name)}")


def fit(
    config: SmallTrain,
    modules: dict[str, nn.Module],
    loss_of: LossOf,
    folder: Path,
    resume: bool,
    lrs: dict[str, float] | None = None,
) -> None:
    """Trains the modules in place (they end with their averaged weights) on `loss_of(step, generator)`."""
    folder.mkdir(parents=True, exist_ok=True)
    accelerator = _run.make_accelerator(folder, config.precision, 1, config.tracker)
    for module in modules.values():  # not wrapped: losses call modules by parts, and gradients are averaged below
        accelerator.prepare_model(module.train(), evaluation_mode=True)
    rates = {name: ((lrs or {}).get(name, config.lr), None if name in (lrs or {}) else config.muon_lr) for name in modules}
    optimizer = Muon(
        [group for name, module in modules.items() for group in parameter_groups(module, *rates[name])],
        lr=config.lr,
        betas=(0.9, config.beta2),
        weight_decay=config.weight_decay,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(config, step))
    optimizer = accelerator.prepare(optimizer)
    parameters = [p for m in modules.values() for p in m.parameters() if p.requires_grad]
    averages = EMAModel(parameters, decay=config.ema, use_ema_warmup=True, inv_gamma=10.0, power=1.0) if config.ema else None
    accelerator.register_for_checkpointing(*(o for o in (schedule, averages) if o is not None))
    first = _run.resume(accelerator, folder) if resume else 0
    if averages is not None:
        averages.to(accelerator.device)  # a checkpoint's are on the CPU
    recent: list[float] = []
    for step, bar in _run.steps(first, config.steps, config.batch, accelerator, folder.name):
        with accelerator.autocast():
            loss = loss_of(step, _run.step_generator(config.seed, step))
        _run.require_finite(loss.detach(), step, [f"of step {step}"])
        accelerator.backward(loss)
        _run.average_gradients(accelerator, parameters)
        accelerator.clip_grad_norm_(parameters, config.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        if averages is not None:
            averages.step(parameters)
        recent.append(loss.item())
        bar.set_postfix_str(f"loss {recent[-1]:.4f}", refresh=False)
        done = step + 1
        if done % config.log_every == 0 or done == config.steps:
            _run.log(accelerator, folder, done, {"loss": sum(recent) / len(recent), "lr": schedule.get_last_lr()[0]})
            recent = []
        if done % config.checkpoint_every == 0 or done == config.steps:
            _run.save_checkpoint(accelerator, folder, done)
    if averages is not None:
        averages.copy_to(parameters)
    for module in modules.values():
        module.eval()
    _run.finish(accelerator)


def cosine(config: SmallTrain, step: int) -> float:
    """The share of the learning rate at a step: a linear warm-up times a cosine that ends at the floor."""
    down = 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / config.steps))
    return min(1.0, (step + 1) / max(config.warmup, 1)) * max(down, config.floor)


def count(module: nn.Module) -> str:
    """e.g. "0.65 M parameters"."""
    return f"{sum(p.numel() for p in module.parameters()) / 1e6:.2f} M parameters"
