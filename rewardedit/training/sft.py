"""Settings of supervised fine-tuning through TRL, its checkpoints and its log."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rewardedit import devices
from rewardedit.devices import Precision
from rewardedit.files import append_json_line
from rewardedit.processes import any_process, processes
from rewardedit.training.stopping import StopRequest

KEPT = 2  # checkpoints


@dataclass(frozen=True)
class SftConfig:
    """Settings of TRL's trainer; the defaults are ADIEE's (App. B), which cites LLaMA-Factory's example."""

    epochs: float = 3.0  # passes over the rows
    max_steps: int = 0  # number of updates, in place of passes over the rows; 0: epochs applies
    batch_size: int = 8  # answers per update
    micro_batch_size: int = 1  # answers per process and forward pass
    lr: float = 1e-4  # peak learning rate, which then falls by a cosine
    lr_warmup_ratio: float = 0.1  # share of the updates over which the learning rate rises to its peak
    beta2: float = 0.999  # AdamW's β₂
    gradient_checkpointing: bool = True  # gradient checkpointing of the model
    mixed_precision: Precision = "bf16"  # precision of a step, on hardware that saves time by it
    checkpoint_every: int = 50  # updates between two checkpoints
    seed: int = 0  # seed of the order of the rows, and of new weights

    def __post_init__(self) -> None:
        if self.micro_batch_size < 1 or self.batch_size < 1 or self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"train.batch_size: expected a multiple of micro_batch_size, {self.micro_batch_size}; got "
                f"{self.batch_size}"
            )

    def accumulation(self) -> int:
        """Number of forward passes of this process in an update.

        Raises:
            ValueError: if a batch does not divide evenly.
        """
        count, rest = divmod(self.batch_size, self.micro_batch_size * processes().num_processes)
        if rest:
            raise ValueError(
                f"train.batch_size: expected {self.batch_size} to part into micro-batches of "
                f"{self.micro_batch_size} on {processes().num_processes} processes; change one of them"
            )
        return count

    def updates(self, examples: int) -> int:
        """Number of updates for so many examples."""
        return self.max_steps or ceil(self.epochs * examples / self.batch_size)


def trl_settings(train: SftConfig, folder: Path, steps: int, workers: int = 0) -> Any:
    """TRL's settings of a training, with checkpoints in `folder`, and processes that read ahead."""
    from trl import SFTConfig

    precision = devices.precision_here(train.mixed_precision)
    settings = SFTConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=train.micro_batch_size,
        gradient_accumulation_steps=train.accumulation(),
        train_sampling_strategy="sequential",  # the rows are in their order already
        learning_rate=train.lr,
        lr_scheduler_type="cosine",
        warmup_steps=train.lr_warmup_ratio,
        adam_beta2=train.beta2,
        gradient_checkpointing=train.gradient_checkpointing,
        seed=train.seed,
        save_steps=train.checkpoint_every,
        save_total_limit=KEPT,
        max_length=None,
        completion_only_loss=True,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=devices.default_device() == "cpu",
        remove_unused_columns=False,
        dataloader_num_workers=workers,
        ddp_find_unused_parameters=False,  # each pass uses the whole LoRA: nothing to look for
        report_to="none",
    )
    settings._n_gpu = 1  # one process trains on one GPU: DataParallel would multiply the batch
    return settings


class StopsWhenAsked(TrainerCallback):
    """Ends TRL's training at the end of a step, after a checkpoint, if a signal has requested it."""

    def __init__(self, request: StopRequest) -> None:
        self.request = request

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if any_process(self.request.number is not None):
            control.should_save = control.should_training_stop = True


class Logs(TrainerCallback):
    """Copies TRL's log to metrics.jsonl, and counts the minutes at each checkpoint."""

    def __init__(self, folder: Path, spent: Callable[[], float]) -> None:
        self.folder = folder
        self.spent = spent

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **more: Any) -> None:
        if state.is_world_process_zero and "loss" in logs:
            append_json_line(self.folder / "metrics.jsonl", {"step": state.global_step, **logs})

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.spent()


def newest_checkpoint(folder: Path) -> Path | None:
    """Newest complete checkpoint, by trainer_state.json, which Trainer writes last; None without one."""
    whole = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
