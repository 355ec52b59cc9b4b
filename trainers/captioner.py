"""A captioner of images before and after an edit: a vision-language model, fine-tuned on a few hundred rows.

Method: ADIEE Sec. 3.1 and App. A, which fine-tunes Qwen2-VL-7B with a LoRA on rows captioned by people. Rows
are conversations of two turns, as in `rewardedit.synthesis.captions`; TRL's SFT trainer trains on the model's
turns only. Its `max_length` is None: truncated conversations would lose image tokens.

Command: rewardedit train captioner data.path=FOLDER
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from rewardedit import devices
from rewardedit.batch import EditSample
from rewardedit.data import DataConfig, Rows, open_rows, require_size
from rewardedit.data.bad_rows import require_share, usable_rows
from rewardedit.data.datasets import Subset
from rewardedit.files import replaced
from rewardedit.images import fit, to_pil, to_tensor
from rewardedit.language.vlm import load_vlm, require_vlm, reserved_tokens, without
from rewardedit.models.extras import install_command
from rewardedit.processes import print_on_main
from rewardedit.synthesis.captions import Prompts, first_question, said, second_question
from rewardedit.training import run
from rewardedit.training.stopping import Stopped, StopRequest, stop_request
from rewardedit.training.vlm_lora import linear_layers

SAVE_STEPS = 50  # updates between two checkpoints
ANSWERS = 2  # answers per row: the source's caption and the target's


@dataclass(frozen=True)
class SftConfig:
    """Settings of TRL's trainer; the defaults are ADIEE's (App. B), which cites LLaMA-Factory's example."""

    epochs: float = 3.0  # passes over the rows
    batch_size: int = 8  # answers per update
    micro_batch_size: int = 1  # answers per forward pass
    lr: float = 1e-4  # peak learning rate, which then falls by a cosine
    lr_warmup_ratio: float = 0.1  # share of the updates over which the learning rate rises to its peak
    lora_rank: int = 8  # rank of the LoRA on all linear layers of the language model
    seed: int = 0  # seed of the order of the rows

    def __post_init__(self) -> None:
        if self.micro_batch_size < 1 or self.batch_size < 1 or self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"train.batch_size: expected a multiple of micro_batch_size, {self.micro_batch_size}; got "
                f"{self.batch_size}"
            )


@dataclass(frozen=True)
class Config:
    """Model, training rows and settings of a captioner's LoRA."""

    name: str  # name of the run and of its folder in runs/
    data: DataConfig  # rows with captions of the source and of the target
    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"  # hub name or folder of the model
    prompts: Prompts = "ours"  # wording of the questions; captions.prompts must be the same
    train: SftConfig = field(default_factory=SftConfig)  # settings of the optimizer and the loop
    bad_rows: float = 0.01  # largest share of unusable rows; above it the run stops

    def __post_init__(self) -> None:
        require_share(self.bad_rows)
        require_size(self.data)


def plan(config: Config) -> list[str]:
    """Lines to print; raises ValueError naming the first thing that is missing."""
    rows = open_rows(config.data)
    require_captions(rows[0])
    require_vlm(config.model)
    updates = int(ANSWERS * len(rows) * config.train.epochs / config.train.batch_size)
    return [f"rows: {len(rows)}; {updates} updates", "all files and models are there"]


def require_captions(sample: EditSample) -> None:
    """Raises ValueError if a row has no captions to learn from."""
    if not sample.source_caption or not sample.target_caption:
        raise ValueError(f"row {sample.id}: expected source_caption and target_caption; it lacks one")


def examples(
    rows: Rows, data: DataConfig, reserved: Sequence[str] = (), prompts: Prompts = "ours"
) -> list[dict[str, Any]]:
    """Rows as TRL's conversations: the model learns its two answers, the second given the first.

    Each conversation is passed twice, with one answer each, so that only answers count in the loss. Texts in
    `reserved`, which control the model, are removed from a row's texts.
    """
    found = []
    for i in range(len(rows)):
        row = rows[i]
        assert row.source_caption is not None
        assert row.target_caption is not None
        image = to_pil(fit(to_tensor(row.source, 3)[None], require_size(data), data.resize)[0])
        instruction = without(reserved, row.instruction)
        before = without(reserved, row.source_caption)
        after = without(reserved, row.target_caption)
        first = first_question(instruction, prompts)
        second = second_question(instruction, before, prompts)
        for prompt, answer in ((first, before), (second, after)):
            found.append({"images": [image], "prompt": prompt, "completion": [said(answer)]})
    return found


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains the LoRA and saves it in `folder/lora`.

    Raises:
        ValueError: if TRL is not installed, if more rows than `bad_rows` allows cannot be read or have no
            captions, or if it is started as several processes.
    """
    try:
        from trl import SFTTrainer
    except ImportError as error:
        raise ValueError(f"captioner needs TRL: {install_command('sft')}") from error
    from peft import LoraConfig

    run.start(folder, config, resume, alone=True)
    rows = open_rows(config.data)
    usable = usable_rows(rows, config.data, require_captions, folder, config.bad_rows)
    on_gpu = devices.default_device() == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32  # 7 billion weights in fp32 do not fit 24 GB
    vlm = load_vlm(config.model, device=devices.default_device(), dtype=dtype)
    vlm.model.requires_grad_(True).train()
    lora = LoraConfig(
        r=config.train.lora_rank,
        lora_alpha=2 * config.train.lora_rank,
        target_modules=linear_layers(vlm.model),
        task_type="CAUSAL_LM",
    )
    from datasets import Dataset

    trainer = SFTTrainer(
        vlm.model,
        args=sft_config(config, folder / "checkpoints", on_gpu),
        train_dataset=Dataset.from_list(
            examples(Subset(rows, usable), config.data, reserved_tokens(vlm), config.prompts)
        ),
        processing_class=vlm.processor,
        peft_config=lora,
    )
    checkpoint = newest_checkpoint(folder / "checkpoints") if resume else None
    with stop_request() as request:
        trainer.add_callback(StopsWhenAsked(request))
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if request.number is not None:
        raise Stopped(f"stopped after step {trainer.state.global_step}, with a checkpoint", request.number)
    with replaced(folder / "lora") as aside:
        trainer.model.save_pretrained(aside)
    return folder / "lora"


class StopsWhenAsked(TrainerCallback):
    """Ends TRL's training at the end of a step, after a checkpoint, if a signal has requested it."""

    def __init__(self, request: StopRequest) -> None:
        self.request = request

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.request.number is not None:
            control.should_save = control.should_training_stop = True


def sft_config(config: Config, folder: Path, on_gpu: bool) -> Any:
    """TRL's settings of the training, with checkpoints in `folder`."""
    from trl import SFTConfig

    settings = SFTConfig(
        output_dir=str(folder),
        num_train_epochs=config.train.epochs,
        per_device_train_batch_size=config.train.micro_batch_size,
        gradient_accumulation_steps=config.train.batch_size // config.train.micro_batch_size,
        learning_rate=config.train.lr,
        lr_scheduler_type="cosine",
        warmup_steps=config.train.lr_warmup_ratio,
        seed=config.train.seed,
        save_steps=SAVE_STEPS,
        max_length=None,
        completion_only_loss=True,
        bf16=on_gpu,
        use_cpu=devices.default_device() == "cpu",
        remove_unused_columns=False,
        report_to="none",
    )
    settings._n_gpu = 1  # one process trains on one GPU: DataParallel would multiply the batch
    return settings


def newest_checkpoint(folder: Path) -> Path | None:
    """Newest complete checkpoint, by trainer_state.json, which Trainer writes last; None without one."""
    whole = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints where the LoRA is."""
    out = train(config, folder, resume)
    print_on_main(f"the captioner's LoRA is in {out}; a recipe takes it as captions.adapter={out}")
