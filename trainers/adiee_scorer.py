"""The ADIEE scorer: a vision-language model learns to answer with a token whose state is a score.

Method: ADIEE Sec. 3.3 and App. B. Each row is a question about an edit, one of four at random, and the answer
"It is [SCORE].": the loss is the cross-entropy of the answer's tokens plus ten times the error of the score
that is decoded from the token's last hidden state. Trained are a LoRA of rank 8 on the language model's
queries and values, the token's embeddings and the head; the vision tower and the projector are frozen.

Deviations from the released code: two separate images instead of one composite (`layout: concat`); one
answer of its five; our own wording of the questions (`prompts: paper`); no text loss on questions and images;
the same state is read in training and use; labels between classes are soft (`compat: code`); no flipping.

Command: rewardedit train adiee-scorer data.magicbrush.path=FOLDER
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from rewardedit import devices
from rewardedit.batch import collate_pixels
from rewardedit.data import DataConfig, Rows, open_named, open_rows, require_size
from rewardedit.data.bad_rows import require_share, usable_rows
from rewardedit.data.datasets import images_of, require_alike, warn_of_shared_sources
from rewardedit.devices import require_precision
from rewardedit.files import replaced, write_json
from rewardedit.language.vlm import Bits, Vlm, load_vlm, require_vlm
from rewardedit.models import NAMES, fetched
from rewardedit.models.four_bit import require_bitsandbytes
from rewardedit.processes import processes
from rewardedit.scorers.adiee import Adiee, width_of
from rewardedit.scorers.adiee_head import HEAD, SETTINGS, AdieeSettings, HeadKind, ScoreHead
from rewardedit.scorers.adiee_text import QUESTIONS, Layout, Prompts, add_token, add_words
from rewardedit.stages.lazy import Lazy
from rewardedit.training import run
from rewardedit.training.checkpoints import TrainedParameters
from rewardedit.training.estimate import plan_of
from rewardedit.training.labels import all_labels, evaluate_scorer, require_axes, require_label
from rewardedit.training.loop import TrainLoop, batch_rows, make_accelerator, step_generator
from rewardedit.training.memory.scorer import blueprint, frozen_type, length_line, scorer_lines
from rewardedit.training.optimizer import Muon, learning_rate_share, parameter_groups
from rewardedit.training.prefetch import Prefetcher
from rewardedit.training.score_token import losses
from rewardedit.training.scorer_settings import TrainConfig
from rewardedit.training.shared_images import (
    group_by_edit,
    require_clean_parts,
    require_shared_images,
    rows_of_same_edit,
)
from rewardedit.training.vlm_lora import Embeddings, wrap_lora


@dataclass(frozen=True)
class Config:
    """Model, training rows and form of an ADIEE scorer."""

    name: str  # name of the run and of its folder in runs/
    # rows with labels from 0 to 10, as made by `adiee_data`; names are free, size and resize must be the same
    data: dict[str, DataConfig]
    # hub name or folder of the model; a scorer with a fully trained language model keeps its token and head
    model: str = "llava-hf/llama3-llava-next-8b-hf"
    held_out: DataConfig | None = None  # labelled rows on which the scorer is measured at the end
    axes: tuple[str, ...] = ()  # further axes to score, learned from the rows that have labels of them
    head: HeadKind = "scalar"  # output: a number, or the expectation over the grades 0, 5 and 10
    layout: Layout = "pair"  # input: two images, or both side by side in one
    prompts: Prompts = "ours"  # wording of the four questions, ours or the paper's
    side: int | None = 512  # side in pixels to which images are stretched
    # text whose last token initialises [SCORE]; None: the mean of all tokens
    init_token_like: str | None = None
    add_question_tokens: bool = False  # make tokens of words that a small model's tokenizer splits
    lora_rank: int | None = 8  # rank of the LoRA; None: train the whole language model
    # embeddings trained with a LoRA: all input and output embeddings, as in ADIEE, or the token's row only
    embeddings: Embeddings = "all"
    quantize: Bits | None = None  # bits of the frozen language model under a LoRA (bitsandbytes); None: off
    compat: Literal["soft", "code"] = "soft"  # labels between classes: shared by both, or all to the lower
    train: TrainConfig = field(default_factory=TrainConfig)  # settings of the optimizer and the loop
    bad_rows: float = 0.01  # largest share of unusable rows; above it the run stops

    def __post_init__(self) -> None:
        require_alike(self.data, "data.magicbrush.name=labelled")
        require_share(self.bad_rows)
        if self.quantize is not None and self.lora_rank is None:
            raise ValueError(
                "quantize: quantised weights cannot be trained; set lora_rank, or leave quantize out"
            )
        if self.add_question_tokens and self.lora_rank is not None and self.embeddings == "token":
            raise ValueError(
                "add_question_tokens: their embeddings are to be trained too; set embeddings=all"
            )


def plan(config: Config) -> list[str]:
    """Lines to print; raises PlanIncomplete naming the first thing that is missing."""
    what = "its language model" if config.lora_rank is None else f"a LoRA of rank {config.lora_rank}"

    def model() -> str:
        require_settings(config)
        return f"scorer: {config.model}, {what}, head {config.head}, layout {config.layout}"

    rows = Lazy(lambda: open_named(config.data))

    def data() -> str:
        for table in (rows(), *([] if config.held_out is None else [open_rows(config.held_out)])):
            require_label(table[0])
        steps = config.train.over(len(rows())).max_steps
        passes = steps * config.train.batch_size / len(rows())
        return f"data: {len(rows())} labelled rows, {steps} steps, {passes:.1f} passes"

    def cost() -> list[str]:
        vlm = blueprint(config.model, frozen_type(config.train, config.lora_rank))
        train = config.train
        with suppress(ValueError):  # without rows, memory is known and the length is not
            train = train.over(len(rows()))
        place = (train.shares()[0].stop, require_size(images_of(config.data)))
        return scorer_lines(lambda: make_trainable(config, vlm)[0], train, *place)

    return plan_of(model, lambda: length_line(config.train), cost, data)


def require_settings(config: Config) -> None:
    """Raises ValueError if settings do not fit one another, the model or the installed packages."""
    config.train.shares()
    require_precision(config.train.mixed_precision)
    kind = require_vlm(config.model)
    if config.train.questions_per_edit > 1:
        require_shared_images(kind, config.train.gradient_checkpointing)
    if config.quantize is not None:
        require_bitsandbytes()


def make_scorer(config: Config) -> tuple[Adiee, Any]:
    """Loads the model that the settings name, on this process's device, and calls `make_trainable`."""
    device = devices.default_device()
    dtype = frozen_type(config.train, config.lora_rank)
    vlm = load_vlm(config.model, device=device, dtype=dtype, quantize=config.quantize)
    if device == "cpu":
        vlm.model.set_attn_implementation("eager")  # its backward pass is faster on CPUs than SDPA's
    return make_trainable(config, vlm, fetched(config.model, (SETTINGS, HEAD)))


def make_trainable(config: Config, vlm: Vlm, folder: Path | None = None) -> tuple[Adiee, Any]:
    """Scorer with token and head, whose trained parameters require a gradient; and the model wrapped by PEFT,
    None without a LoRA. The vocabulary grows before wrapping, since the adapter must hold the token's row.

    Args:
        folder: folder of the model; if it holds a scorer, training continues from its head.
    """
    number = add_token(vlm.model, vlm.processor, config.init_token_like)
    if config.add_question_tokens:
        add_words(vlm.model, vlm.processor, config.layout)

    # Store a folder's full path: the adapter may be loaded from elsewhere.
    is_run = config.model not in NAMES and Path(config.model).is_dir()
    model = str(Path(config.model).resolve()) if is_run else config.model
    base = None if config.lora_rank is None else model
    axes = ("overall", *config.axes)
    rest = (axes, base, config.quantize, config.prompts)
    settings = AdieeSettings(config.head, config.layout, config.side, *rest)
    head = ScoreHead.to_train(width_of(vlm.model), settings, folder).to(vlm.model.device)

    scorer = Adiee(vlm, head, settings, share_prefix=False)
    scorer.requires_grad_(False)
    head.requires_grad_(True)

    adapter = None
    if config.lora_rank is None:
        scorer.model.model.get_decoder().requires_grad_(True)
        scorer.model.get_output_embeddings().requires_grad_(True)
    else:
        adapter = wrap_lora(scorer.model, number, config.lora_rank, config.embeddings)

    for parameter in scorer.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    if config.train.gradient_checkpointing:
        scorer.model.gradient_checkpointing_enable({"use_reentrant": False})
    return scorer, adapter


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains the scorer and saves it to `folder/scorer`; metrics.json holds the rank correlation of its
    scores with the labels of held-out rows.

    Raises:
        ValueError: if more rows than `bad_rows` allows are unusable, or a batch does not divide evenly.
        TrainingStopped: if the loss or the gradient is not finite.
    """
    require_settings(config)  # before hours are spent
    run.start(folder, config, resume)
    spent = run.minutes_spent(folder)

    torch.manual_seed(config.train.seed)
    held_out = None if config.held_out is None else open_rows(config.held_out)
    if config.held_out is not None:
        warn_of_shared_sources(config.data.values(), config.held_out)
    rows = open_named(config.data)
    usable = usable_rows(rows, images_of(config.data), require_label, folder, config.bad_rows, config.data)
    require_axes(rows, usable, config.axes)
    config = replace(config, train=config.train.over(len(usable)))

    scorer, adapter = make_scorer(config)
    torch.manual_seed(config.train.seed + processes().process_index)  # each process has its own dropout
    per_edit = config.train.questions_per_edit
    if per_edit > 1:
        require_clean_parts(scorer)

    loop = make_loop(config, scorer, folder, resume)
    scorer.train()
    micro_batches = read_steps(config, rows, usable)
    for step in loop.steps():
        for pixels, cpu_labels, ids, questions in micro_batches(step):
            batch = pixels.to(loop.accelerator.device)
            labels = cpu_labels.to(loop.accelerator.device)
            with loop.accumulate():
                with loop.autocast():
                    text, score = losses(
                        scorer,
                        batch,
                        labels,
                        questions,
                        config.compat,
                        per_edit,
                        config.train.positive_weight,
                    )
                    loss = config.train.text_weight * text + config.train.score_weight * score
                loop.backward(loss, ids)
            loop.record("text_loss", text, len(ids))
            loop.record("score_loss", score, len(ids))
        loop.update()
        if (step + 1) % config.train.checkpoint_every == 0:
            spent()
    micro_batches.close()
    loop.finish()

    scorer.eval()
    if processes().is_main_process:
        _save(scorer, adapter, folder / "scorer")
        metrics: dict[str, Any] = {"minutes": spent()}
        if held_out is not None and config.held_out is not None:
            saved = _as_loaded(scorer, adapter, folder / "scorer")
            with loop.autocast():
                metrics |= evaluate_scorer(saved, held_out, config.held_out, config.train.shares()[0].stop)
        write_json(folder / "metrics.json", metrics)
    return folder / "scorer"


def _save(scorer: Adiee, adapter: Any, folder: Path) -> None:
    """Saves the scorer with its adapter; without one, its language model in float16."""
    with replaced(folder) as aside:
        aside.mkdir()
        if adapter is None:
            scorer.model.half()
        scorer.save(aside, adapter)


def _as_loaded(scorer: Adiee, adapter: Any, folder: Path) -> Adiee:
    """The saved scorer as it will be loaded: halving also rounds buffers that loading recomputes."""
    if adapter is not None:
        return scorer
    return Adiee.from_pretrained(str(folder)).to(devices.default_device())


def make_loop(config: Config, scorer: Adiee, folder: Path, resume: bool) -> TrainLoop:
    """Loop over the parameters that require a gradient, with a separate learning rate for the head."""
    steps = len(config.train.shares())
    accelerator = make_accelerator(folder, config.train.mixed_precision, steps, config.train.tracker)
    head = list(scorer.head.parameters())
    rest = [p for p in scorer.model.parameters() if p.requires_grad]
    groups = parameter_groups(scorer.model, config.train.lr, config.train.muon_lr)
    optimizer = Muon(
        [*groups, {"params": head, "lr": config.train.head_lr or config.train.lr}],
        lr=config.train.lr,
        betas=(0.9, config.train.beta2),
        weight_decay=config.train.weight_decay,
    )
    last = config.train.max_steps if config.train.lr_scheduler == "cosine" else None
    share = partial(learning_rate_share, warmup=config.train.lr_warmup_steps, last=last)
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    # Modules are not prepared: losses call parts of them, and a checkpoint needs no copy of frozen weights.
    optimizer = accelerator.prepare(optimizer)
    trained = rest + head
    saved = [TrainedParameters(trained)]
    return TrainLoop(
        config.train, accelerator, optimizer, lr_scheduler, trained, folder, resume, folder.name, states=saved
    )


def read_steps(config: Config, rows: Rows, usable: list[int]) -> Prefetcher[list[tuple]]:
    """Reads the steps ahead, by `read_step`."""
    same = group_by_edit(rows, usable) if config.train.questions_per_edit > 1 else None
    return Prefetcher(lambda step: read_step(config, rows, usable, step, same), config.train.max_steps)


def read_step(
    config: Config, rows: Rows, usable: list[int], step: int, same: list[list[int]] | None = None
) -> list[tuple]:
    """This process's micro-batches of a step, from the usable rows: edits, labels (b, axes) with NaN for
    missing ones, ids and question numbers. `same`: result of `group_by_edit`, for several questions per edit.
    """
    state = processes()
    share = config.train.batch_size // state.num_processes
    generator = step_generator(config.train.seed, step)
    drawn = torch.randint(len(QUESTIONS), (config.train.batch_size,), generator=generator)
    per_edit = config.train.questions_per_edit
    chosen = batch_rows(len(usable), config.train.batch_size // per_edit, step, config.train.seed).tolist()
    if same is not None:
        firsts = chosen
        chosen = []
        for i in firsts:
            chosen += rows_of_same_edit(i, same[i], per_edit, generator)
    share_of_process = slice(state.process_index * share, (state.process_index + 1) * share)
    local, questions = chosen[share_of_process], drawn[share_of_process].tolist()
    images = images_of(config.data)
    micro_batches = []
    for chunk in config.train.shares():
        samples = [rows[usable[i]] for i in local[chunk]]
        labels = torch.tensor([all_labels(sample, config.axes) for sample in samples])
        batch = collate_pixels(samples, require_size(images), images.resize, fields=())
        micro_batches.append((batch, labels, [sample.id for sample in samples], questions[chunk]))
    return micro_batches


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints how to load the scorer."""
    print(f'scorer: load_scorer("adiee", checkpoint="{train(config, folder, resume)}")')
