"""ViFi-CLIP for edits: retrieval fine-tuning of a CLIP on edits and their instructions.

Method: symmetric InfoNCE with a learned temperature over a batch gathered from all processes, and hard
negatives in every batch: the reversed pair, the identity pair, and another instruction for the same source
(from rows that share it). The poster (Donabauer et al. 2025) states neither loss nor learning rates; the
defaults of `TrainConfig` are those of ViFi-CLIP's released code (Rasheed et al. 2023),
which trains all of CLIP except its token embeddings.

Deviations: no mixup, flips or colour jitter, which would change the meaning of an instruction; pairs with the
same instruction are not negatives of each other.

Command: rewardedit train humanedit-vifi-clip
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoImageProcessor

from rewardedit import devices
from rewardedit.batch import EditBatch, collate_pixels
from rewardedit.data import DataConfig, Rows, held_out_rows, open_rows, row_shards
from rewardedit.data.bad_rows import require_few, require_share
from rewardedit.data.datasets import warn_of_shared_sources
from rewardedit.data.reading import PreparedRows, read_shard
from rewardedit.evaluation.retrieval import Retrieval, retrieve
from rewardedit.files import join_arrays, join_lists, replaced, write_json
from rewardedit.images import to_bytes
from rewardedit.models import CLIP, pretrained, resolve_model
from rewardedit.processes import processes
from rewardedit.scorers.vifi_clip import POOLINGS, ViFiClip
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import stage
from rewardedit.training import run
from rewardedit.training.estimate import plan_of
from rewardedit.training.fit import SmallTrainConfig, count, fit
from rewardedit.training.loop import batch_rows
from rewardedit.training.memory.peak import FULL, OVERHEAD, parameters, peak_memory, table
from rewardedit.training.trainable import autocast_type
from rewardedit.untrusted import read_settings_file

Negative = Literal["reversed", "identity", "instruction"]
READ_BATCH = 64


@dataclass(frozen=True)
class TrainConfig(SmallTrainConfig):
    """ViFi-CLIP's settings: AdamW with β (0.9, 0.98), a cosine to a hundredth."""

    max_steps: int = 2000
    batch_size: int = 256  # edits per process and step
    lr: float = 8e-6
    lr_warmup_steps: int = 100
    weight_decay: float = 1e-3
    beta2: float = 0.98
    floor: float = 0.01
    gradient_checkpointing: bool = False  # gradient checkpointing of CLIP


@dataclass(frozen=True)
class Config:
    """CLIP to start from, training edits and form of a ViFi-CLIP scorer."""

    name: str  # name of the run and of its folder in runs/
    data: DataConfig  # edits to train on, read at `size`
    checkpoint: str = CLIP  # hub name or folder of the CLIP to start from
    pooling: str = "temporal"  # function that combines the embeddings of source and edit
    size: int | None = None  # image side in pixels; None: the checkpoint's own
    # rows for retrieval, each instruction once; None: rows of the sources that data.holdout_sources keeps
    # back
    held_out: DataConfig | None = None
    negatives: tuple[Negative, ...] = ("reversed", "identity", "instruction")  # hard negatives in every batch
    lora_rank: int | None = None  # rank of the LoRA; None: all of CLIP. Temporal pooling is always trained
    train: TrainConfig = field(default_factory=TrainConfig)  # settings of the optimizer and the loop
    bad_rows: float = 0.01  # largest share of unreadable rows; above it the run stops

    def __post_init__(self) -> None:
        require_share(self.bad_rows)
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling: expected one of {', '.join(POOLINGS)}; got {self.pooling!r}")


@dataclass
class Pairs:
    """Rows as memory-mapped bytes, and instructions by row and by source."""

    pictures: np.ndarray  # (n, 2, 3, s, s) uint8: source, edited
    tokens: dict[str, Tensor]  # tokens of the distinct instructions, each (texts, length)
    text: Int[Tensor, " n"]  # index of each row's instruction
    siblings: list[list[int]]  # other instructions of each row's source

    def __len__(self) -> int:
        return len(self.pictures)

    def another(self, row: int, draw: float) -> int:
        """Another instruction of the row's source, chosen by `draw` in [0, 1); its own if there is none."""
        others = self.siblings[row]
        return others[int(draw * len(others))] if others else int(self.text[row])


def plan(config: Config) -> list[str]:
    loaded = Lazy(lambda: ViFiClip.from_pretrained(config.checkpoint, config.pooling, config.size))
    what = "all of it" if config.lora_rank is None else f"LoRA of rank {config.lora_rank}"

    def data() -> str:
        measured = held_out_of(config)
        held_out = "" if measured is None else f", {len(measured)} held out"
        steps = f"{config.train.max_steps} steps of {config.train.batch_size} a process"
        return f"data: {len(open_rows(config.data))} edits{held_out}; {steps}"

    def model() -> str:
        size = f"{count(loaded())}, {what}, {loaded().preprocess.size} px"
        return f"scorer: {config.checkpoint} with {config.pooling} pooling, {size}"

    return plan_of(model, data, lambda: table(memory(config, loaded())))


def memory(config: Config, scorer: ViFiClip) -> dict[str, int]:
    """Peak GPU memory of training in bytes, measured on `meta`."""
    scorer, side = scorer.to("meta").train(), scorer.preprocess.size
    make_trainable(scorer, config.lora_rank, config.train.gradient_checkpointing)
    trained = [p for p in scorer.parameters() if p.requires_grad]
    for p in trained:
        p.grad = torch.empty_like(p)
    b = config.train.batch_size
    tokens = {name: value.expand(b, -1) for name, value in scorer.tokenize(["a word " * 77]).items()}
    pairs = Pairs(np.zeros((b, 2, 3, side, side), np.uint8), tokens, torch.arange(b), [[]] * b)
    step = peak_memory(
        lambda: contrast(config, scorer, pairs, 0, torch.Generator()),
        autocast_type(config.train.mixed_precision),
    ).peak
    moments = 2 * FULL + FULL * bool(config.train.ema)
    resident = FULL * parameters(scorer) + (FULL + moments) * sum(p.numel() for p in trained)
    return {"step": resident + step + OVERHEAD}


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains the scorer and saves it in fp16 to `folder/scorer`,
    and its retrieval metrics on held-out rows to metrics.json.

    Raises:
        TrainingStopped: if the loss or the gradient is not finite.
    """
    run.start(folder, config, resume)
    if config.held_out is not None:
        warn_of_shared_sources([config.data], config.held_out)
    torch.manual_seed(config.train.seed)
    scorer = ViFiClip.from_pretrained(config.checkpoint, config.pooling, config.size)
    pairs = read_pairs(
        open_rows(config.data), _sized(config.data, scorer), scorer, folder / "pairs", config.bad_rows
    )
    on_cpu = devices.default_device() == "cpu"
    if on_cpu:  # the backward pass of SDPA's CPU kernel takes two fifths of a step
        scorer.model.set_attn_implementation("eager")
    make_trainable(scorer, config.lora_rank, config.train.gradient_checkpointing)

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        return contrast(config, scorer, pairs, step, generator)

    with sdpa_kernel(SDPBackend.MATH) if on_cpu else nullcontext():  # the temporal pooling's
        fit(config.train, {"scorer": scorer}, loss_of, folder, resume)
    if config.lora_rank is not None:
        scorer.model = scorer.model.merge_and_unload()
    scorer.requires_grad_(False)
    if processes().is_main_process:
        with replaced(folder / "scorer") as aside:
            scorer.half().save(aside)
            pretrained.load(AutoImageProcessor, resolve_model(config.checkpoint)).save_pretrained(aside)
        measured = held_out_of(config)
        if measured is not None:
            scorer.float()  # with the values that are saved
            figures, kinds = retrieval(scorer, measured, config.held_out or config.data)
            write_json(folder / "metrics.json", {"retrieval": figures.summary(kinds)})
    return folder / "scorer"


def _sized(data: DataConfig, scorer: ViFiClip) -> DataConfig:
    return replace(data, size=scorer.preprocess.size, resize=scorer.preprocess.policy)


def make_trainable(scorer: ViFiClip, lora_rank: int | None, checkpointing: bool = False) -> None:
    """Makes all but CLIP's token embeddings trainable, or a LoRA on attention, temperature and pooling."""
    if checkpointing:
        scorer.model.gradient_checkpointing_enable({"use_reentrant": False})
    if lora_rank is not None:
        from peft import LoraConfig, get_peft_model

        layers = ["q_proj", "k_proj", "v_proj", "out_proj"]
        scorer.model = get_peft_model(
            scorer.model, LoraConfig(r=lora_rank, lora_alpha=lora_rank, target_modules=layers)
        )
        scorer.model.logit_scale.requires_grad_(True)
    else:
        scorer.model.text_model.embeddings.token_embedding.requires_grad_(False)


def read_pairs(rows: Rows, data: DataConfig, scorer: ViFiClip, folder: Path, bad_rows: float = 0.01) -> Pairs:
    """Reads all rows at the scorer's size into `folder`, or opens the complete result of an earlier run;
    unreadable rows are left out.

    Raises:
        ValueError: if a larger share than `bad_rows` cannot be read.
    """
    parts = row_shards(rows, READ_BATCH)
    none = np.zeros((0, 2, 3, data.size, data.size), np.uint8)  # for a shard without readable rows

    def read(number: int, path: Path) -> None:
        path.mkdir()
        pairs = []
        instructions = []
        unreadable = []
        for chunk in read_shard(parts[number], data, READ_BATCH, fields=(), first=number * len(parts[0])):
            for row, reason in chunk.unreadable.items():
                unreadable.append({"row": row, "image": "of the row", "reason": reason})
            if chunk.pixels is not None:
                both = [to_bytes(chunk.pixels.images[name]) for name in ("source", "edited")]
                pairs.append(torch.stack(both, dim=1).numpy())
                instructions += chunk.pixels.instruction
        np.save(path / "images.npy", np.concatenate([none, *pairs]))
        write_json(path / "rows.json", {"instructions": instructions, "unreadable": unreadable})

    def join(shards: list[Path]) -> None:
        join_arrays([shard / "images.npy" for shard in shards], folder / "images.npy")
        write_json(folder / "rows.json", join_lists([shard / "rows.json" for shard in shards]))

    stage(folder, {"data": data, "rows": len(rows)}, read, len(parts), finish=join)
    settings = read_settings_file(folder / "rows.json")
    require_few(folder.parent, settings["unreadable"], len(rows), bad_rows)
    images = np.load(folder / "images.npy", mmap_mode="r")
    texts = sorted(set(settings["instructions"]))
    place = {text: i for i, text in enumerate(texts)}
    text = [place[instruction] for instruction in settings["instructions"]]
    said = defaultdict(set)
    sources = [hash(image.tobytes()) for image in images[:, 0]]
    for source, caption in zip(sources, text, strict=True):
        said[source].add(caption)
    siblings = [sorted(said[source] - {caption}) for source, caption in zip(sources, text, strict=True)]
    return Pairs(images, dict(scorer.tokenize(texts)), torch.tensor(text), siblings)


def contrast(config: Config, scorer: ViFiClip, pairs: Pairs, step: int, generator: torch.Generator) -> Tensor:
    """Loss of one step, the same on every process:
    each encodes its share of the batch and gathers all shares.
    """
    state = processes()
    b = config.train.batch_size
    device = scorer.model.device
    rows = batch_rows(len(pairs), b * state.num_processes, step, config.train.seed)
    local = slice(state.process_index * b, (state.process_index + 1) * b)
    text = [pairs.text[rows]]
    if "instruction" in config.negatives:
        draws = torch.rand(len(rows), generator=generator).tolist()
        text.append(
            torch.tensor([pairs.another(row, draw) for row, draw in zip(rows.tolist(), draws, strict=True)])
        )
    pixels = torch.from_numpy(pairs.pictures[rows[local].numpy()]).to(device).float() / 255
    source = scorer.frame(pixels[:, 0])
    edited = scorer.frame(pixels[:, 1])
    videos = [scorer.video(source, edited)]
    if "reversed" in config.negatives:
        videos.append(scorer.video(edited, source))
    if "identity" in config.negatives:
        videos.append(scorer.video(source, source))
    words = torch.cat([gather(read(scorer, pairs, index[local])) for index in text])
    videos = torch.cat(list(map(gather, videos)))
    return info_nce(videos, words, torch.cat(text).to(device), len(rows), scorer.model.logit_scale)


def read(scorer: ViFiClip, pairs: Pairs, text: Int[Tensor, " b"]) -> Float[Tensor, "b e"]:
    """Normalised features of instructions, with gradient."""
    tokens = {name: value[text].to(scorer.model.device) for name, value in pairs.tokens.items()}
    return F.normalize(scorer.model.get_text_features(**tokens).pooler_output.float(), dim=-1)


def gather(local: Float[Tensor, "b e"]) -> Float[Tensor, "all e"]:
    """Rows of all processes, one process after another; gradients flow back to the process of each row."""
    if processes().num_processes == 1:
        return local
    from torch.distributed.nn.functional import all_gather

    return torch.cat(all_gather(local.contiguous()))


def info_nce(
    videos: Float[Tensor, "kb e"],
    words: Float[Tensor, "mb e"],
    text: Int[Tensor, " mb"],
    b: int,
    log_scale: Tensor,
) -> Float[Tensor, ""]:
    """Symmetric InfoNCE of the first b videos and words; the others are negatives for all of them.

    Args:
        text: index of the instruction of each row of `words`; repetitions of a row's own instruction are not
            negatives.
        log_scale: logarithm of the inverse temperature, which is clamped to at most 100, as in CLIP.
    """
    scale = log_scale.exp().clamp(max=100)
    positives = torch.arange(b, device=videos.device)
    again = text[:b, None] == text[None, :]
    again[positives, positives] = False
    by_video = (scale * videos[:b] @ words.T).masked_fill(again, -torch.inf)
    same_edit = F.pad(again[:, :b], (0, len(videos) - b))
    by_words = (scale * words[:b] @ videos.T).masked_fill(same_edit, -torch.inf)
    return (F.cross_entropy(by_video, positives) + F.cross_entropy(by_words, positives)) / 2


def held_out_of(config: Config) -> Rows | None:
    """Rows on which retrieval is measured; None if no setting names any."""
    if config.held_out is not None:
        return open_rows(config.held_out)
    return held_out_rows(config.data) if config.data.holdout_sources else None


def retrieval(scorer: ViFiClip, rows: Rows, data: DataConfig) -> tuple[Retrieval, list[str | None]]:
    """Retrieval among held-out rows, each instruction once, and the kinds of their edits."""
    seen: set[str] = set()
    kinds: list[str | None] = []

    def chunks() -> Iterator[EditBatch]:
        config = _sized(data, scorer)
        prepared = PreparedRows(rows, config.size, config.resize, fields=())
        samples = []
        for i in range(len(rows)):
            with suppress(ValueError):  # an unreadable row
                sample = prepared.prepare(rows[i])
                if sample.instruction not in seen:
                    seen.add(sample.instruction)
                    kinds.append(sample.edit_type)
                    samples.append(sample)
            if samples and (len(samples) == READ_BATCH or i == len(rows) - 1):
                yield collate_pixels(samples, fields=()).to(scorer.model.device)
                samples = []

    return retrieve(scorer.eval(), chunks()), kinds


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints how to load the scorer."""
    print(f'scorer: load_scorer("vifi_clip", checkpoint="{train(config, folder, resume)}")')
