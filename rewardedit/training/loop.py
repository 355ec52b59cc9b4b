"""Method-independent part of a training: steps, gradients, updates, averages, log, checkpoints.

The loop of a method is in the method's own file and looks like this:

    for step in loop.steps():
        for micro_batch in …:
            with loop.accumulate():
                with loop.autocast():
                    loss = …
                loop.backward(loss, ids)
        loop.update()
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import ProjectConfiguration
from torch import Tensor, nn
from tqdm import tqdm

from rewardedit import devices
from rewardedit.devices import Precision
from rewardedit.files import append_json_line
from rewardedit.processes import any_process, print_on_main, processes, sum_of_processes
from rewardedit.training.averages import MovingAverages
from rewardedit.training.checkpoints import Stateful, load_newest_checkpoint, save_checkpoint
from rewardedit.training.host_copy import HostCopy
from rewardedit.training.stopping import Stopped, stop_request
from rewardedit.training.trackers import Tracker, installed_trackers, require_tracker, start_trackers


class TrainingStopped(RuntimeError):
    """Training cannot continue: the loss or the gradient is not finite. The message names the batch."""


@dataclass(frozen=True)
class LoopConfig:
    """Length, optimizer, precision, log and checkpoints of a training."""

    max_steps: int = 10_000  # total number of weight updates
    batch_size: int = 64  # rows per update
    lr: float = 5e-5  # peak learning rate
    lr_warmup_steps: int = 500  # updates over which the learning rate rises to its peak
    weight_decay: float = 1e-2  # weight decay of AdamW's parameters; Muon's have none
    max_grad_norm: float = 1.0  # norm to which larger gradients are clipped
    ema: float | None = None  # decay of the moving average of the weights; None: no average
    mixed_precision: Precision = "no"  # precision of the computation; trained weights stay in float32
    seed: int = 0  # seed of the order of the rows, noise, time steps and dropout
    # tracker that logs metrics, settings and previews, besides the files in the run's folder
    tracker: Tracker = "tensorboard"
    log_every: int = 50  # updates between two lines of metrics
    checkpoint_every: int = 1000  # updates between two checkpoints

    def __post_init__(self) -> None:
        for name in ("max_steps", "batch_size", "log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1; got {getattr(self, name)}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr: expected above 0 and finite, or nothing is trained; got {self.lr:g}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay: expected at least 0; got {self.weight_decay:g}")
        require_tracker(self.tracker)
        if not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm: expected above 0 (.inf: any); got {self.max_grad_norm:g}")
        if self.ema is not None and not 0 <= self.ema < 1:
            raise ValueError(f"ema: expected at least 0 and below 1; got {self.ema:g}")


class TrainLoop:
    """Runs the steps of one training, with the work at each step that all methods share."""

    def __init__(
        self,
        config: LoopConfig,
        accelerator: Accelerator,
        optimizer: Any,
        lr_scheduler: Any,
        parameters: list[nn.Parameter],
        folder: Path,
        resume: bool = False,
        label: str = "training",
        wrapped: Sequence[nn.Module] = (),
        states: Sequence[Stateful] = (),
    ) -> None:
        """
        Args:
            optimizer: prepared by `accelerator`.
            parameters: the trained parameters.
            resume: whether `steps` continues from the newest checkpoint in `folder`.
            label: text of the progress bar.
            wrapped: prepared modules, whose own hooks average gradients over processes; without any, `update`
                averages them.
            states: further states to store in checkpoints.
        """
        self.config = config
        self.accelerator = accelerator
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.parameters = parameters
        self.folder = folder
        self.resume = resume
        self.label = label
        self.wrapped = wrapped
        self.ema = MovingAverages(parameters, config.ema) if config.ema else None
        self.states = [*states, lr_scheduler, *([] if self.ema is None else [self.ema])]
        self.step = 0
        self._losses: list[float] = []  # losses of the steps since the last line of the log
        # On the device until the end of the update: losses of micro-batches with the ids of their rows,
        # and recorded means with their numbers of rows.
        self._passes: list[tuple[Tensor, list[str]]] = []
        self._means: list[tuple[str, Tensor, Tensor]] = []
        # sums and numbers of rows since the last line of the log
        self._recorded: dict[str, tuple[float, int]] = {}

    def steps(self) -> Iterator[int]:
        """Yields the remaining steps and shows a progress bar; after each step, saves a checkpoint if due.

        Raises:
            Stopped: at the end of a step, after a checkpoint, if a process has received a signal to stop.
        """
        first = load_newest_checkpoint(self.accelerator, self.folder, self.states) if self.resume else 0
        if self.ema is not None:
            self.ema.to(self.accelerator.device)  # a checkpoint's averages are on the CPU
        last = self.config.max_steps
        quiet = not self.accelerator.is_main_process
        began = time.monotonic()
        bar = tqdm(range(first, last), initial=first, total=last, desc=self.label, disable=quiet, unit="step")
        with stop_request() as request:
            for step in bar:
                self.step = step
                yield step
                # Only now, when the whole step is done: a run killed before this point repeats it.
                done = step + 1
                stops = any_process(request.number is not None)
                if done % self.config.checkpoint_every == 0 or self.is_last() or stops:
                    save_checkpoint(self.accelerator, self.folder, done, self.states)
                if stops:
                    raise Stopped(f"stopped after step {done}, with a checkpoint", request.number)
                rate = (step + 1 - first) * self.config.batch_size / (time.monotonic() - began)
                bar.set_postfix_str(f"loss {self.last_loss:.4f} · {rate:.0f} images/s", refresh=False)

    def accumulate(self) -> AbstractContextManager[Any]:
        """Context of the forward and backward pass of one micro-batch."""
        return self.accelerator.accumulate(*self.wrapped)

    def autocast(self) -> AbstractContextManager[Any]:
        """Context of a forward pass, in the configured precision."""
        return self.accelerator.autocast()

    def backward(self, loss: Tensor, ids: list[str]) -> None:
        """Adds the gradients of a micro-batch's mean loss.

        Args:
            ids: ids of the rows, for the error message of `update`.
        """
        self._passes.append((loss.detach(), ids))
        self.accelerator.backward(loss)

    def update(self) -> None:
        """Advances the optimizer, the learning rate and the averages by one step; then writes the log.

        The host waits for the device once: for the losses, the gradient's norm and the recorded means,
        while the device takes the optimizer's step.

        Raises:
            TrainingStopped: if a loss or the gradient is NaN or infinite. No checkpoint holds such a step.
        """
        if not self.wrapped:
            average_gradients(self.accelerator, self.parameters)
        norm = self.accelerator.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        numbers = self._send(norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not self.optimizer.step_was_skipped:
            self.lr_scheduler.step()
            if self.ema is not None:
                self.ema.step(self.parameters)
        self._receive(numbers)

        done = self.step + 1
        if done % self.config.log_every == 0 or self.is_last():
            self._log(done)

    def _send(self, norm: Tensor) -> HostCopy:
        """Sends the numbers of a step to the host, before the optimizer's step is given to the device."""
        losses = [loss for loss, _ in self._passes]
        zero = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        mean = sum(losses, zero) / self.accelerator.gradient_accumulation_steps
        mean = self.accelerator.reduce(mean, "mean")
        recorded = []
        for _, *pair in self._means:
            recorded += pair
        return HostCopy([mean, norm, *losses, *recorded], self.accelerator.device)

    def _receive(self, numbers: HostCopy) -> None:
        """Reads the numbers of a step.

        Raises:
            TrainingStopped: if a loss or the gradient's norm is NaN or infinite.
        """
        self.last_loss, norm, *values = numbers.read()
        for (_, ids), loss in zip(self._passes, values, strict=False):
            require_finite(loss, self.step, ids)
        ids = list(chain.from_iterable(ids for _, ids in self._passes))
        require_finite(self.last_loss, self.step, ids)  # of all processes
        if self.accelerator.scaler is None:  # in fp16 the scaler skips such a step itself
            require_finite(norm, self.step, ids, "gradient")
        self._losses.append(self.last_loss)

        recorded = iter(values[len(self._passes) :])
        for (name, *_), mean, rows in zip(self._means, recorded, recorded, strict=True):
            total, n = self._recorded.get(name, (0.0, 0))
            self._recorded[name] = (total + mean * rows, n + int(rows))
        self._passes = []
        self._means = []

    def is_last(self) -> bool:
        """True at the last step."""
        return self.step + 1 == self.config.max_steps

    def is_logged(self, step: int) -> bool:
        """True if the log's line with the records of a step, counted from 0, is written before this one."""
        every = self.config.log_every
        return (step // every + 1) * every <= self.step

    def record(self, name: str, mean: Tensor, rows: int | Tensor) -> None:
        """Records a mean over a number of rows, before the update that it belongs to, for the next line of
        the log, which holds the mean over all rows of all processes; a mean of none is left out of it.
        """
        self._means.append((name, mean.detach(), torch.as_tensor(rows)))

    def _log(self, step: int) -> None:
        """Writes a line to metrics.jsonl and to the trackers."""
        names = list(self._recorded)
        sums = sum_of_processes(torch.tensor([self._recorded[name] for name in names], dtype=torch.float64))
        means = {name: total / n for name, (total, n) in zip(names, sums.tolist(), strict=True) if n}
        loss = sum(self._losses) / len(self._losses)
        values = {"loss": loss, "lr": self.lr_scheduler.get_last_lr()[0], **means}
        self._losses = []
        self._recorded = {}
        if self.accelerator.is_main_process:
            append_json_line(self.folder / "metrics.jsonl", {"step": step, **values})
        if self.accelerator.log_with:
            self.accelerator.log(values, step=step)

    @contextmanager
    def ema_weights(self) -> Iterator[None]:
        """Within the block, the trained parameters hold their moving averages."""
        if self.ema is None:
            yield
            return
        self.ema.store(self.parameters)
        self.ema.copy_to(self.parameters)
        try:
            yield
        finally:
            self.ema.restore(self.parameters)

    def finish(self) -> None:
        """Sets the parameters to their moving averages and closes the trackers.

        The process group stays open for later work. Accelerate's own `end_training` destroys it while DDP
        still holds it, which can hang.
        """
        if self.ema is not None:
            self.ema.copy_to(self.parameters)
        for tracker in self.accelerator.trackers:
            tracker.finish()


def make_accelerator(
    folder: Path, precision: Precision, accumulation_steps: int, tracker: Tracker
) -> Accelerator:
    """Creates an `Accelerator` that logs to the given tracker. It computes in fp32, and reports that, if bf16
    is requested on a CPU or a GPU without bf16 units.

    Raises:
        ValueError: if fp16 is requested without a GPU.
    """
    devices.require_precision(precision)
    here = devices.precision_here(precision)
    if here != precision:
        where = "CPU" if devices.default_device() == "cpu" else "GPU, which may be faster in fp16,"
        print_on_main(f"mixed_precision: this {where} has no units for {precision}; computing in fp32")
    # Several trainings may follow one another in a process, each with its own precision and accumulation.
    processes()
    AcceleratorState._reset_state()
    GradientState._reset_state()
    log_with: list[Any] = [*installed_trackers(tracker)]
    accelerator = Accelerator(
        cpu=devices.default_device() == "cpu",
        mixed_precision=here,
        gradient_accumulation_steps=accumulation_steps,
        log_with=log_with or None,
        project_config=ProjectConfiguration(str(folder), str(folder / "logs")),
    )
    if log_with:
        start_trackers(accelerator, folder)
    return accelerator


def batch_rows(rows: int, batch: int, step: int, seed: int) -> Tensor:
    """Rows that step `step` trains on: passes over the data, each in a new order, cut into batches.

    Depends on its arguments only, so that resumed runs and runs on several processes see the same
    batches.
    """
    first = step * batch
    drawn = []
    while len(drawn) < batch:
        epoch, at = divmod(first + len(drawn), rows)
        drawn += row_order(rows, seed, epoch)[at : at + batch - len(drawn)].tolist()
    return torch.tensor(drawn)


# a step may span two passes; drawing the order of millions of rows takes longer than a step
@lru_cache(maxsize=2)
def row_order(rows: int, seed: int, epoch: int) -> Tensor:
    """Order of the rows in one pass over the data."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def step_generator(seed: int, step: int) -> torch.Generator:
    """Generator of one step's noise, time steps and dropout, on the CPU:
    the same on every device and after a resume.
    """
    return torch.Generator().manual_seed((seed * 2_000_003 + step) % 2**63)


def average_gradients(accelerator: Accelerator, parameters: list[nn.Parameter]) -> None:
    """Averages gradients over all processes, for modules that are not wrapped."""
    if accelerator.num_processes > 1:
        for p in parameters:
            if p.grad is not None:
                p.grad = accelerator.reduce(p.grad, "mean")


def require_finite(value: float, step: int, ids: list[str], what: str = "loss") -> None:
    """Stops a run if its loss or its gradient norm is NaN or infinite.

    Raises:
        TrainingStopped: naming the step and the batch.
    """
    if not math.isfinite(value):
        shown = ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
        raise TrainingStopped(
            f"the {what} is {value} at step {step}, in the batch of rows {shown}; check those rows. "
            "--resume meets the same batch; for a lower train.lr or train.mixed_precision=no start a new "
            "folder (copy relabelled/ and cache/ to keep them)"
        )
