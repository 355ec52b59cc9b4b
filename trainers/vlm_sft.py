"""Supervised fine-tuning of a vision-language model: a captioner of edits, or DICE's two parts.

Method: a LoRA on all linear layers of the language model, trained by TRL's SFT trainer on the model's answers
only. Its `max_length` is None: truncated conversations would lose image tokens. The rows of a task are
- captions: rows captioned by people, in two turns (ADIEE Sec. 3.1 and App. A, which fine-tunes Qwen2-VL-7B);
- differences: pairs of images with the differences between them (DICE's detector), which `pairs` makes of
  images with boxes, in the paper's two stages: similar images, then inpainted ones;
- coherence: single differences, each with a verdict (DICE's coherence estimator).

Deviations from DICE's paper: both stages train the same LoRA, where the paper merges the first stage into the
model; `dice-detector` inpaints with Kandinsky alone, where the paper removes objects by LaMa, and its share
of EDIT, 0.34, is ours; rank, learning rate and batch size are stated nowhere and are those of the captioner's
example.

Command: rewardedit train captioner data.captions.path=FOLDER
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from rewardedit import devices
from rewardedit.data import DataConfig, open_rows, require_size
from rewardedit.data.bad_rows import require_few, require_share, unreadable_rows, usable_rows
from rewardedit.data.datasets import Subset, reading_workers
from rewardedit.data.difference_rows import open_differences, readable_rows, reasons_of
from rewardedit.data.worlds import WORLDS
from rewardedit.devices import require_precision
from rewardedit.files import replaced, write_json
from rewardedit.language.vlm import (
    Bits,
    Vlm,
    load_processor,
    load_vlm,
    require_vlm,
    reserved_tokens,
    special_tokens,
)
from rewardedit.language.vlm_weights import load_adapter, save_adapter
from rewardedit.language.vocabulary import extend_vocabulary, make_room
from rewardedit.models import NAMES, resolve_model
from rewardedit.models.extras import install_command
from rewardedit.models.four_bit import require_bitsandbytes
from rewardedit.processes import print_on_main, processes
from rewardedit.scorers.dice_models import ADAPTER, save_dice
from rewardedit.scorers.dice_text import DICE_SETTINGS, DiceFormat
from rewardedit.scorers.dice_vlm import DiceVlm
from rewardedit.synthesis.captions import Prompts
from rewardedit.synthesis.difference_settings import DifferencePairsConfig
from rewardedit.synthesis.differences import make_pairs, require_pairs
from rewardedit.training import run
from rewardedit.training.conversations import (
    TaskRows,
    as_texts,
    caption_examples,
    check_captions,
    coherence_examples,
    difference_examples,
    merged_order,
)
from rewardedit.training.estimate import plan_of
from rewardedit.training.sft import Logs, SftConfig, StopsWhenAsked, newest_checkpoint, trl_settings
from rewardedit.training.stopping import Stopped, stop_request
from rewardedit.training.vlm_lora import compute_features_without_gradient, linear_layers

TASKS = ("captions", "differences", "coherence")
EXAMPLES = {False: difference_examples, True: coherence_examples}  # of judged differences: True
SEEN = 2000  # examples whose words are looked through for new tokens


@dataclass(frozen=True)
class Config:
    """Model, rows and settings of a LoRA."""

    name: str  # name of the run and of its folder in runs/
    # rows by task: captions, differences, coherence
    data: dict[str, DataConfig] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)  # share of each task; empty: by numbers of rows
    # images with boxes, of which pairs with differences are made; None: only those of data.differences
    pairs: DifferencePairsConfig | None = None
    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"  # hub name or folder of the model
    adapter: str | None = None  # LoRA to train further, such as an earlier phase's; None: a new one
    lora_rank: int = 8  # rank of a new LoRA on all linear layers of the language model
    quantize: Bits | None = None  # bits of the frozen language model under the LoRA (bitsandbytes); None: off
    prompts: Prompts = "ours"  # wording of the captions' questions; captions.prompts must be the same
    answers: DiceFormat = field(default_factory=DiceFormat)  # texts of differences and verdicts
    extend_vocabulary: bool = False  # add tokens that a small model's tokenizer lacks, and train them
    train: SftConfig = field(default_factory=SftConfig)  # settings of the optimizer and the loop
    bad_rows: float = 0.01  # largest share of unusable rows; above it the run stops

    def __post_init__(self) -> None:
        require_share(self.bad_rows)
        if set(self.data) - set(TASKS) or not (self.data or self.pairs):
            raise ValueError(
                f"data: expected rows of some of {', '.join(TASKS)}, e.g. data.captions.path=FOLDER; got "
                f"{', '.join(self.data) or 'none'}"
            )
        if self.pairs is not None and "differences" in self.data:
            raise ValueError("pairs: makes the rows of differences; leave data.differences out, or pairs")
        if self.shares and (set(self.shares) != set(self.tasks) or abs(sum(self.shares.values()) - 1) > 1e-6):
            raise ValueError(f"shares: expected one of each task in data, with sum 1; got {self.shares}")
        for task, data in self.data.items():
            if task == "captions":
                require_size(data)

    @property
    def tasks(self) -> list[str]:
        """Names of all tasks, that of `pairs` last."""
        return [*self.data, *(["differences"] if self.pairs is not None else [])]


def plan(config: Config) -> list[str]:
    """Lines to print; raises PlanIncomplete naming the first thing that is missing."""

    def model() -> str:
        require_trl()
        require_vlm(config.model)
        config.train.accumulation()
        if config.quantize is not None:
            require_bitsandbytes()
        return f"model: {config.model}, a LoRA of rank {config.lora_rank}"

    def rows() -> list[str]:
        lines = [] if config.pairs is None else require_pairs(config.pairs)
        tasks = [open_task(task, data, config) for task, data in config.data.items()]
        for task, examples in zip(config.data, tasks, strict=True):
            if task == "captions":
                check_captions(examples.rows[0])
            with_reasons = task == "coherence" and config.answers.rationale
            bare = reasons_of(examples.rows).count("") if with_reasons else 0
            lines.append(f"{task}: {len(examples)} examples{f', {bare} without a reason' if bare else ''}")
        if config.pairs is None or config.train.max_steps:
            lines.append(f"training: {config.train.updates(sum(map(len, tasks)))} updates")
        return lines

    return plan_of(rows, model)


def open_task(
    task: str,
    data: DataConfig,
    config: Config,
    reserved: Sequence[str] = (),
    usable: Sequence[Any] | None = None,
) -> TaskRows:
    """The rows of a task and the conversations that they become.

    Args:
        reserved: texts that control the model, which are removed from a row's.
        usable: the rows that can be read; None: all.
    """
    if task == "captions":
        make = partial(caption_examples, data=data, reserved=reserved, prompts=config.prompts)
        return TaskRows(open_rows(data) if usable is None else usable, make, each=2)
    judged = task == "coherence"
    make = partial(EXAMPLES[judged], form=config.answers, reserved=reserved)
    rows = open_differences(data, judged, config.answers.rationale) if usable is None else usable
    opens = not judged or config.answers.opens_judgement
    return TaskRows(rows, make, is_shuffled=data.name in WORLDS, opens_answer=opens)


def read_rows(config: Config, folder: Path) -> dict[str, Sequence[Any]]:
    """The usable rows of all tasks of which rows may be unusable, and the pairs of `config.pairs`, which are
    made in `folder` if necessary.
    """
    usable: dict[str, Sequence[Any]] = {}
    faults: list[dict[str, Any]] = []
    reserved: list[str] = []
    if is_of_dice(config):
        reserved = special_tokens(load_processor(resolve_model(config.model), require_vlm(config.model)))
    for task, data in config.data.items():
        if task == "captions":
            rows = open_rows(data)
            usable[task] = Subset(rows, usable_rows(rows, data, check_captions, folder, config.bad_rows))
        elif data.name not in WORLDS:
            marked = open_differences(data, task == "coherence", config.answers.rationale)
            kept, reasons = readable_rows(marked, reserved)
            bad = unreadable_rows(reasons)
            require_few(folder, bad, len(marked), config.bad_rows, before=faults)
            faults += bad
            usable[task] = Subset(marked, kept)
    if config.pairs is not None:
        usable["differences"] = make_pairs(config.pairs, folder / "pairs", config.bad_rows, reserved)
    return usable


def open_tasks(config: Config, usable: dict[str, Sequence[Any]], reserved: Sequence[str]) -> list[TaskRows]:
    """All tasks, with the rows of `read_rows`."""
    tasks = [open_task(task, data, config, reserved, usable.get(task)) for task, data in config.data.items()]
    if config.pairs is not None:
        make = partial(difference_examples, form=config.answers, reserved=reserved)
        tasks.append(TaskRows(usable["differences"], make))
    return tasks


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains the LoRA and saves it in `folder/lora`, or one of differences or verdicts in `folder/dice`;
    metrics.json holds the share of the answers' tokens that were the likeliest, in the last updates.

    Raises:
        ValueError: if TRL is not installed, a batch does not divide evenly, or more rows than `bad_rows`
            allows are unusable.
    """
    require_trl()
    from trl import SFTTrainer

    config.train.accumulation()
    require_precision(config.train.mixed_precision)
    run.start(folder, config, resume)
    spent = run.minutes_spent(folder)

    out = folder / ("dice" if is_of_dice(config) else "lora")
    torch.manual_seed(config.train.seed)
    usable = read_rows(config, folder)  # before a large model is loaded
    vlm = load_base(config)
    tasks = open_tasks(config, usable, reserved_tokens(vlm))
    steps = config.train.updates(sum(map(len, tasks)))
    shares = [config.shares[task] for task in config.tasks] if config.shares else None
    order = merged_order(tasks, config.train.seed, steps * config.train.batch_size, shares)
    model = make_trainable(config, vlm, texts_of(tasks, order) if config.extend_vocabulary else [])
    compute_features_without_gradient(model.get_base_model())
    workers = 0 if all(task.is_shuffled for task in tasks) else reading_workers(len(order))
    trainer = SFTTrainer(
        model,
        args=trl_settings(config.train, folder / "checkpoints", steps, workers),
        train_dataset=lazy_dataset(config, vlm, tasks, order),
        processing_class=vlm.processor,
    )
    checkpoint = newest_checkpoint(folder / "checkpoints") if resume else None
    with stop_request() as request:
        trainer.add_callback(StopsWhenAsked(request))
        trainer.add_callback(Logs(folder, spent))
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.state.global_step < steps:
        raise Stopped(f"stopped after step {trainer.state.global_step}, with a checkpoint", request.number)
    if processes().is_main_process:
        save(config, trainer.model, vlm, out)
        last = trainer.state.log_history[-2] if len(trainer.state.log_history) > 1 else {}
        metrics = {name: last.get(name) for name in ("loss", "mean_token_accuracy")}
        write_json(folder / "metrics.json", {**metrics, "examples": len(order), "minutes": spent()})
    processes().wait_for_everyone()
    return out


def load_base(config: Config) -> Vlm:
    """The model that the LoRA is trained on, on this process's device."""
    device = devices.default_device()
    # 7 billion weights in fp32 fill 28 GB; over a quantised base TRL casts all that is trained to bf16.
    bf16 = device == "cuda" or config.quantize is not None
    dtype = torch.bfloat16 if bf16 else torch.float32
    return load_vlm(config.model, device=device, dtype=dtype, quantize=config.quantize)


def make_trainable(config: Config, vlm: Vlm, texts: Sequence[str]) -> Any:
    """The model wrapped by PEFT, with a new LoRA or the one that `adapter` names.

    Args:
        texts: what it is to read and write, for `extend_vocabulary`.
    """
    from peft import LoraConfig, get_peft_model

    if config.adapter is not None:
        folder = Path(config.adapter)
        if (folder / DICE_SETTINGS).is_file():
            vlm.processor = load_processor(config.adapter, vlm.model.config.model_type)
            make_room(vlm.model, vlm.processor.tokenizer)
            folder = folder / ADAPTER
        return load_adapter(vlm.model, str(folder), config.model, trainable=True)
    if config.extend_vocabulary:
        extend_vocabulary(vlm.model, vlm.processor.tokenizer, texts, config.answers.decimals)
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=2 * config.lora_rank,
        target_modules=linear_layers(vlm.model),
        modules_to_save=["embed_tokens", "lm_head"] if config.extend_vocabulary else None,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(vlm.model, lora)


def texts_of(tasks: Sequence[TaskRows], order: Sequence[tuple[int, int]]) -> list[str]:
    """All texts of the first examples."""
    texts = []
    for task, index in islice(order, SEEN):
        example = tasks[task][index]
        for turn in (*example["prompt"], *example["completion"]):
            texts += [part["text"] for part in turn["content"] if part["type"] == "text"]
    return texts


def lazy_dataset(
    config: Config, vlm: Vlm, tasks: Sequence[TaskRows], order: Sequence[tuple[int, int]]
) -> Any:
    """The examples in order as a data set of TRL's, whose images are read when they are used."""
    from datasets import Dataset

    # Data sets hash what their functions hold, a model's weights too.
    speaker = replace(vlm, model=None)

    def read(columns: dict[str, list[int]]) -> dict[str, list[Any]]:
        examples = []
        for task, index in zip(columns["task"], columns["index"], strict=True):
            examples.append(as_texts(speaker, tasks[task][index], tasks[task].opens_answer))
        return {name: [example[name] for example in examples] for name in examples[0]}

    columns = dict(zip(("task", "index"), map(list, zip(*order, strict=True)), strict=True))
    return Dataset.from_dict(columns).with_transform(read)


def save(config: Config, model: Any, vlm: Vlm, folder: Path) -> None:
    """Saves a LoRA of captions; or of differences and verdicts, with its processor, for `load_dice`."""
    # Store a folder's full path: the adapter may be loaded from elsewhere.
    is_run = config.model not in NAMES and Path(config.model).is_dir()
    base = str(Path(config.model).resolve()) if is_run else config.model
    model.peft_config["default"].base_model_name_or_path = base
    with replaced(folder) as aside:
        if is_of_dice(config):
            aside.mkdir()
            save_dice(aside, DiceVlm(vlm, replace(config.answers, base=base), config.name), model)
        else:
            save_adapter(model, aside)


def is_of_dice(config: Config) -> bool:
    """True if the LoRA finds or judges differences."""
    return config.pairs is not None or bool(set(config.data) - {"captions"})


def require_trl() -> None:
    """Raises ValueError if TRL is not installed."""
    if find_spec("trl") is None:
        raise ValueError(f"this training needs TRL: {install_command('sft')}")


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints where the LoRA is."""
    out = train(config, folder, resume)
    print_on_main(f"the LoRA is in {out}; recipes and scorers take it as adapter={out}")
