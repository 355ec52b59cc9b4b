"""What all trainers share: the run directory, checkpoints and resuming, tracking, the order of the data, stopping.

A run directory holds config.yaml (resolved), environment.json, metrics.jsonl, metrics.json (final), checkpoints/ and what
the trainer leaves (pipeline/, report.html …).
"""

import json
import os
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import LoggerType
from torch import Tensor
from tqdm import tqdm

from rewardedit import config as configs
from rewardedit import devices
from rewardedit.files import remove, replaced, write_json
from rewardedit.training.environment import environment
from rewardedit.training.processes import on_main_process, processes
from rewardedit.training.stages import MADE_OF, differences, plain

KEPT_CHECKPOINTS = 2
Precision = Literal["no", "bf16", "fp16"]
Tracker = Literal["tensorboard", "wandb", "none"]


class TrainingStopped(RuntimeError):
    """Training cannot go on: the loss is not a number. The message names the batch."""


def sum_of_processes(values: Tensor) -> Tensor:
    """The sum of what each process gives, on all of them."""
    state = processes()
    if state.num_processes == 1:
        return values
    total = values.to(state.device)
    torch.distributed.all_reduce(total)
    return total.cpu()


def make_accelerator(folder: Path, precision: Precision, accumulate: int, tracker: Tracker) -> Accelerator:
    """An accelerate handle that logs where it was asked to.

    Raises:
        ValueError: if W&B is asked for and not installed, or fp16 without a GPU.
    """
    if precision == "fp16" and devices.default_device() == "cpu":
        raise ValueError("precision: fp16 needs a GPU; take bf16 or no on a CPU")
    if tracker == "wandb":
        try:
            import wandb  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ValueError("tracker: wandb is not installed; pip install wandb, or take tensorboard") from None
    # Several runs may follow one another in a process, each with its own precision and accumulation.
    processes()
    AcceleratorState._reset_state()
    GradientState._reset_state()
    log_with: list[str | LoggerType] | None = None if tracker == "none" else [tracker]
    accelerator = Accelerator(
        cpu=devices.default_device() == "cpu",
        mixed_precision=precision,
        gradient_accumulation_steps=accumulate,
        log_with=log_with,
        project_dir=str(folder),
    )
    if log_with:
        accelerator.init_trackers("logs")
    return accelerator


def start(folder: Path, config: Any, resume: bool = False) -> None:
    """Makes the run directory and writes down what is about to run, where and with what.

    Raises:
        ValueError: where a run to be resumed had other settings; more steps than before are no others.
    """

    def write() -> None:
        path = folder / "config.yaml"
        if resume and path.is_file():
            require_resumable(folder, configs.load_yaml(path), config)
        with replaced(path) as aside:
            aside.write_text(configs.dump(config))
        write_json(folder / "environment.json", environment())

    on_main_process(write)


def clear(folder: Path, resume: bool, overwrite: bool) -> None:
    """Makes room for a run where that is allowed; one process decides for all.

    Raises:
        ValueError: where the folder holds an earlier run that is neither resumed nor written over.
    """

    def decide() -> None:
        if resume or not folder.exists() or not any(folder.iterdir()):
            return
        if not overwrite:
            raise ValueError(f"{folder} holds an earlier run; go on with --resume, start again with --overwrite, or name=…")
        remove(folder)

    on_main_process(decide)


def require_resumable(folder: Path, before: dict[str, Any], config: Any) -> None:
    """Raises ValueError where a run's settings have changed, but for `train.steps`, of which there may be more than done."""
    now = configs.parse_value(configs.dump(config))
    changed = differences(before, now)
    others = [line for line in changed if not line.startswith("train.steps:")]
    if others:
        raise ValueError(
            f"{folder} holds a run of other settings: {'; '.join(others)}. "
            "Take those settings again, or start again with --overwrite, or in another folder"
        )
    done = max((step_of(path) for run in (folder, *folder.glob("arms/*")) for path in checkpoints(run)), default=0)
    if changed and now["train"]["steps"] < done:
        raise ValueError(
            f"{folder}: {done} steps are done, and train.steps asks for {now['train']['steps']}; "
            f"take at least {done}, or start again with --overwrite"
        )


def say(text: str) -> None:
    """Prints on the main process."""
    if processes().is_main_process:
        print(text)


def is_made(result: Path, made_of: dict[str, Any]) -> bool:
    """True where a result is whole and was made of these settings."""
    path = result / MADE_OF
    return path.is_file() and json.loads(path.read_text()) == plain(made_of)


def mark_made(result: Path, made_of: dict[str, Any]) -> None:
    """Says that a result is whole, and what it was made of: the last that is done for it."""
    if processes().is_main_process:
        write_json(result / MADE_OF, plain(made_of))


def append(path: Path, values: dict[str, Any]) -> None:
    """One more line of a JSONL file."""
    with path.open("a") as file:
        file.write(json.dumps(values) + "\n")


def log(accelerator: Accelerator, folder: Path, step: int, values: dict[str, float]) -> None:
    """To metrics.jsonl and to the tracker."""
    if accelerator.is_main_process:
        append(folder / "metrics.jsonl", {"step": step, **values})
    if accelerator.log_with:
        accelerator.log(values, step=step)


def finish(accelerator: Accelerator) -> None:
    """Closes the trackers. The processes stay joined for what comes after: other arms, and words between them.

    Accelerate's own `end_training` takes the process group apart while DDP still holds it, which can wait for ever.
    """
    for tracker in accelerator.trackers:
        tracker.finish()


def read_log(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of a log; of a step logged twice (before and after a resume), the later."""
    path = folder / name
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [by_step for _, by_step in sorted({line["step"]: line for line in lines}.items())]


def save_checkpoint(accelerator: Accelerator, folder: Path, step: int) -> None:
    """`checkpoints/step-000100`: all prepared and registered objects; written aside and renamed, older ones removed."""
    parent = folder / "checkpoints"
    final, aside = parent / f"step-{step:06d}", parent / f".step-{step:06d}.partial"
    if accelerator.is_main_process:
        remove(aside)
        parent.mkdir(parents=True, exist_ok=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(aside))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        remove(final)
        os.replace(aside, final)
        for old in checkpoints(folder)[:-KEPT_CHECKPOINTS]:
            remove(old)


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    return sorted((folder / "checkpoints").glob("step-*"))


def resume(accelerator: Accelerator, folder: Path) -> int:
    """Loads the newest checkpoint and returns its step; 0 where there is none."""
    found = checkpoints(folder)
    if not found:
        return 0
    accelerator.load_state(str(found[-1]))
    return step_of(found[-1])


def step_of(checkpoint: Path) -> int:
    """How many steps were done when a checkpoint was written."""
    return int(checkpoint.name.removeprefix("step-"))


def batch_rows(rows: int, batch: int, step: int, seed: int) -> Tensor:
    """Which rows step `step` trains on: passes over the data in a new order each, cut into batches.

    A function of its arguments alone, so that a resumed run and one of several processes see the same batches.
    """
    first = step * batch
    drawn = []
    while len(drawn) < batch:
        epoch, at = divmod(first + len(drawn), rows)
        drawn += row_order(rows, seed, epoch)[at : at + batch - len(drawn)].tolist()
    return torch.tensor(drawn)


@lru_cache(maxsize=2)  # a step may lie in two passes; drawing the order of millions of rows takes longer than a step
def row_order(rows: int, seed: int, epoch: int) -> Tensor:
    """The order of one pass over the data."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def average_gradients(accelerator: Accelerator, parameters: list[torch.nn.Parameter]) -> None:
    """The mean of all processes' gradients on each of them, for modules that are not wrapped."""
    if accelerator.num_processes > 1:
        for p in parameters:
            if p.grad is not None:
                p.grad = accelerator.reduce(p.grad, "mean")


def step_generator(seed: int, step: int) -> torch.Generator:
    """The generator of one step's noise, time steps and dropout, on the CPU: the same on every device and after a resume."""
    return torch.Generator().manual_seed((seed * 2_000_003 + step) % 2**63)


def require_finite(loss: Tensor, step: int, ids: list[str]) -> None:
    """Stops a run whose loss is NaN or infinite.

    Raises:
        TrainingStopped: naming the step and the batch.
    """
    if not torch.isfinite(loss):
        shown = ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
        raise TrainingStopped(
            f"the loss is {loss.item()} at step {step}, in the batch of rows {shown}; "
            "check those rows, or lower train.lr or take precision=no, and go on with --resume"
        )


def steps(first: int, last: int, images_per_step: int, accelerator: Accelerator, label: str) -> Iterator[tuple[int, tqdm]]:
    """Counts first … last − 1 beside a progress bar with images/s and the time left; the caller adds the loss."""
    bar = tqdm(range(first, last), initial=first, total=last, desc=label, disable=not accelerator.is_main_process, unit="step")
    began = time.monotonic()
    for step in bar:
        yield step, bar
        done = (step + 1 - first) * images_per_step
        bar.set_postfix_str(
            f"{bar.postfix or ''}".split(" · ")[0] + f" · {done / (time.monotonic() - began):.0f} images/s",
            refresh=False,
        )
