"""The small flow-matching editor of the shapes world: a stock `Flux2KleinPipeline` from scratch, with
classifier-free guidance.

Its transformer learns by flow matching (Lipman et al. 2023) on right edits. Its text encoder is trained
first, to parse instructions (`flow_text`), and then frozen; the autoencoder is the InstructPix2Pix editor's.
Times are drawn as sampling spends its steps: more of them at high noise, where it is decided what is edited
and where. During training only, a head predicts from a middle block which colours and shapes are where, in
the source and in the target, and its error is added to the loss (`rewardedit.shapes.maps_head`). A row whose
text is dropped has its source as target: without an instruction the editor leaves the image unchanged, which
is the starting point of guidance.

The guidance scale that is best on val is saved with the editor. It never sees reward text.

Command: rewardedit train shapes/flow-editor
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rewardedit import devices
from rewardedit.diffusion.editors import Editor, SamplingConfig, load_editor
from rewardedit.diffusion.families import Conditioning, family_of
from rewardedit.diffusion.families.flow import pack, unpack
from rewardedit.diffusion.saving import save_editor
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.files import write_json
from rewardedit.shapes import Shapes, ShapesBatch, ShapesOracle
from rewardedit.shapes.flow_architecture import make_pipeline, normalise
from rewardedit.shapes.maps import CHANNELS, object_maps
from rewardedit.shapes.maps_head import TokenMapHead
from rewardedit.shapes.trainers.flow_text import Words, hidden_states, read_words, train_text_encoder
from rewardedit.shapes.trainers.text_encoder import instruction_labels
from rewardedit.training import run
from rewardedit.training.fit import SmallTrainConfig, count, fit

MAP_SIDE = 8  # squares a side of the maps that the head predicts, and tokens of an image
AT_ONCE = 140  # images encoded, and edits made, at a time


@dataclass(frozen=True)
class Config:
    """Architecture, data and training of the flow-matching editor."""

    name: str  # name of the run and of its folder in runs/
    # editor whose autoencoder and words are taken, and with which the result is compared
    editor: str = "shapes/editor"
    width: int = 96  # channels of the transformer, a multiple of 48
    blocks: tuple[int, int] = (1, 5)  # blocks of the transformer with two streams (text and image), with one
    text_width: int = 48  # channels of the text encoder, a multiple of 16
    sources: int = 14_000  # source images of the shapes world
    draws: int = 3  # edits of each source
    backdrops: tuple[str, ...] = ("plain",) * 8 + ("textured", "photo")  # backdrops of successive sources
    text_dropout: float = 0.1  # share of rows whose text is dropped
    shift: float = 2.0  # shift of the times, in training and sampling; above 1, more of them at high noise
    map_weight: float = 1.0  # weight of the head's error in the loss
    num_inference_steps: int = 10  # denoising steps of the evaluation, saved with the editor
    guidance_scales: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0)  # scales that are tried on val
    choose_n: int = 140  # val edits by which the guidance scale is chosen
    evaluate_n: int = 560  # test edits by which it is compared
    text: SmallTrainConfig = field(default_factory=SmallTrainConfig)  # training of the text encoder
    train: SmallTrainConfig = field(default_factory=SmallTrainConfig)  # training of the transformer


def load(config: Config) -> tuple[Editor, Any]:
    """The InstructPix2Pix editor, and the pipeline with its autoencoder and words and the rest random."""
    known = load_editor(config.editor, device="cpu", dtype=torch.float32)
    torch.manual_seed(config.train.seed)
    return known, make_pipeline(known.pipe, config.width, config.blocks, config.text_width, config.shift)


def plan(config: Config) -> list[str]:
    _, pipe = load(config)
    parts = ", ".join(
        f"{name} {count(getattr(pipe, name))}" for name in ("vae", "text_encoder", "transformer")
    )
    return [f"flow editor: {parts}; {config.sources * config.draws} edits, {config.train.max_steps} steps"]


@dataclass(frozen=True)
class Rows:
    """Edits of one update."""

    target: Float[Tensor, "b c h w"]
    source: Float[Tensor, "b c h w"]
    text: Float[Tensor, "b t d"]
    target_maps: Float[Tensor, "b m h w"]
    source_maps: Float[Tensor, "b m h w"]

    def to(self, device: torch.device) -> "Rows":
        """Copies the edits to another device, in fp32."""
        return Rows(*(tensor.to(device, torch.float32) for tensor in vars(self).values()))


@dataclass(frozen=True)
class Edits:
    """The edits that the editor is trained on."""

    source: Float[Tensor, "sources c h w"]  # normalised latents
    target: Float[Tensor, "n c h w"]  # row i belongs to source i % sources
    source_maps: Float[Tensor, "sources m h w"]
    target_maps: Float[Tensor, "n m h w"]
    text: Int[Tensor, " n"]  # row of `words`
    words: Words  # the instructions, each once; the last is empty
    labels: Int[Tensor, "texts a"]  # parts of each instruction but the last

    def take(
        self, rows: Int[Tensor, " b"], dropped: Bool[Tensor, " b"], embeds: Float[Tensor, "texts t d"]
    ) -> Rows:
        """Some of the edits; where the text is dropped, the target is the source.

        Args:
            embeds: of `words`.
        """
        of_source = rows % len(self.source)
        source = self.source[of_source]
        source_maps = self.source_maps[of_source]
        without = dropped[:, None, None, None]
        text = torch.where(dropped, len(embeds) - 1, self.text[rows])
        return Rows(
            target=torch.where(without, source, self.target[rows]),
            source=source,
            text=embeds[text],
            target_maps=torch.where(without, source_maps, self.target_maps[rows]),
            source_maps=source_maps,
        )


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains, saves fp16 weights to `folder/pipeline` and the comparison to metrics.json."""
    run.start(folder, config, resume, alone=True)
    known, pipe = load(config)
    pipe = pipe.to(devices.default_device())
    for part in (pipe.vae, pipe.text_encoder, pipe.transformer):
        part.requires_grad_(False).eval()
    edits = make_edits(config, pipe)

    # → text encoder, then frozen
    pipe.text_encoder.requires_grad_(True)
    reader = train_text_encoder(
        config.text, pipe.text_encoder, edits.words, edits.labels, folder / "text", resume
    )
    pipe.text_encoder.requires_grad_(False).eval()
    held_out = Shapes("val").batch(0, config.choose_n)
    words = read_words(pipe.tokenizer, held_out.instruction)
    read_right = reader.read_right(words, labels_of(held_out))

    # → transformer
    train_transformer(config, pipe, edits, folder, resume)
    out = folder / "pipeline"
    pipe.set_progress_bar_config(disable=True)
    editor = Editor(pipe.to(dtype=torch.float16), SamplingConfig(config.num_inference_steps, 1.0, 1.0))
    save_editor(editor, out)

    # → evaluate the saved fp16 values, in fp32
    pipe.to(dtype=torch.float32)
    editor, metrics = compare(config, editor, known)
    pipe.to(dtype=torch.float16)
    save_editor(editor, out)
    write_json(folder / "metrics.json", {"read_right": read_right, **metrics})
    return out


def train_transformer(config: Config, pipe: Any, edits: Edits, folder: Path, resume: bool) -> None:
    """Trains the pipeline's transformer on the edits."""
    family = family_of(pipe)
    transformer = pipe.transformer.requires_grad_(True)
    middle = transformer.single_transformer_blocks[config.blocks[1] // 2]
    head = TokenMapHead(middle, config.width, CHANNELS)
    scheduler = family.training_scheduler(pipe.scheduler)
    steps = scheduler.config.num_train_timesteps
    embeds = encode_words(pipe, edits.words)

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        # All random draws happen on the CPU, so that they are the same on every device.
        b = config.train.batch_size
        drawn = torch.randint(len(edits.target), (b,), generator=generator)
        times = shifted(torch.rand(b, generator=generator), config.shift) * steps
        noise = torch.randn(b, *edits.target.shape[1:], generator=generator)
        dropped = torch.rand(b, generator=generator) < config.text_dropout

        device = transformer.device
        rows = edits.take(drawn, dropped, embeds).to(device)
        with attention(device):
            cond = Conditioning(rows.text, rows.source)
            losses = family.loss(
                transformer, scheduler, rows.target, noise.to(device), times.long().to(device), cond
            )
        return losses.mean() + config.map_weight * head.loss(rows.target_maps, rows.source_maps)

    fit(config.train, {"transformer": transformer, "head": head}, loss_of, folder, resume)
    head.remove()


def shifted(u: Float[Tensor, " b"], shift: float) -> Float[Tensor, " b"]:
    """Times in [0, 1), spread as a scheduler of this shift spreads its steps, for u uniform in [0, 1)."""
    return shift * u / (1 + (shift - 1) * u)


@contextmanager
def attention(device: torch.device) -> Iterator[None]:
    """Attention by plain products on a CPU, whose fused kernel is slow backwards in bf16."""
    if device.type != "cpu":
        yield
        return
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


@torch.no_grad()
def make_edits(config: Config, pipe: Any) -> Edits:
    """The edits of the world's first sources; sets the autoencoder's normalisation by those."""
    sources: list[Tensor] = []
    targets: list[Tensor] = []
    maps: tuple[list[Tensor], list[Tensor]] = ([], [])
    texts: list[str] = []
    labels: list[Tensor] = []
    for draw in range(config.draws):
        world = Shapes(backdrops=config.backdrops, draw=draw)
        for first in range(0, config.sources, 2800):
            batch = world.batch(first, min(2800, config.sources - first))
            if draw == 0:
                sources.append(patches(pipe.vae, batch.source))
                maps[0].append(object_maps(batch.before, MAP_SIDE).half())
            targets.append(patches(pipe.vae, batch.target))
            maps[1].append(object_maps(batch.after, MAP_SIDE).half())
            texts += batch.instruction
            labels.append(labels_of(batch))

    source = torch.cat(sources)
    target = torch.cat(targets)
    normalise(pipe.vae, source)
    mean = pipe.vae.bn.running_mean.cpu().view(1, -1, 1, 1)
    std = (pipe.vae.bn.running_var.cpu().view(1, -1, 1, 1) + pipe.vae.config.batch_norm_eps).sqrt()
    different = list(dict.fromkeys(texts))
    place = {text: row for row, text in enumerate(different)}
    text = torch.tensor([place[text] for text in texts])
    parts = torch.zeros(len(different), labels[0].shape[1], dtype=torch.long)
    parts[text] = torch.cat(labels)
    words = read_words(pipe.tokenizer, [*different, ""])
    source = (source - mean) / std
    target = (target - mean) / std
    return Edits(source, target, torch.cat(maps[0]), torch.cat(maps[1]), text, words, parts)


def labels_of(batch: ShapesBatch) -> Int[Tensor, "n a"]:
    """Parts of the parsed instructions, as classes."""
    return torch.tensor(list(map(instruction_labels, batch.parsed)))


def patches(vae: Any, images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n c h2 w2"]:
    """Patches of 2 × 2 latent modes of images in [0, 1], not normalised."""
    parts = []
    for part in images.split(AT_ONCE):
        with devices.autocast(vae.device.type):
            parts.append(vae.encode(part.to(vae.device) * 2 - 1).latent_dist.mode().float().cpu())
    modes = torch.cat(parts)
    return unpack(pack(modes, 2), (modes.shape[-2] // 2, modes.shape[-1] // 2), 1)


@torch.no_grad()
def encode_words(pipe: Any, words: Words) -> Float[Tensor, "n t d"]:
    """Embeddings of instructions, on the CPU."""
    parts = []
    for rows in torch.arange(len(words.ids)).split(280):
        parts.append(hidden_states(pipe.text_encoder.model, words.take(rows)).half().cpu())
    return torch.cat(parts)


def compare(config: Config, editor: Editor, known: Editor) -> tuple[Editor, dict[str, Any]]:
    """The editor with the guidance scale that is best on val, and the oracle's ratings on the test split
    beside those of the InstructPix2Pix editor and of untouched sources, with the same seeds.
    """
    val = Shapes("val").batch(0, config.choose_n)
    scales = {}
    for scale in config.guidance_scales:
        settings = replace(editor.settings, guidance_scale=scale)
        scales[scale] = float(rate(replace(editor, settings=settings), val).mean())
    best = max(scales, key=lambda scale: scales[scale])
    editor = replace(editor, settings=replace(editor.settings, guidance_scale=best))

    test = Shapes("test").batch(0, config.evaluate_n)
    score = rate(editor, test)
    others = {
        "untouched": ShapesOracle().rate(test, test.source).score,
        config.editor: rate(known, test),
    }
    metrics: dict[str, Any] = {
        "n": config.evaluate_n,
        "oracle": float(score.mean()),
        "guidance_scale": best,
        "val": {f"{scale:g}": value for scale, value in scales.items()},
    }
    for name, other in others.items():
        difference = paired_bootstrap(score.numpy(), other.numpy(), test.id)
        metrics[name] = {"oracle": float(other.mean()), "ci95_of_difference": list(difference.ci95)}
    types = {}
    for name in sorted(set(test.edit_type)):
        types[name] = float(score[test.edits.is_type(name)].mean())
    return editor, {**metrics, "by_edit_type": types}


@torch.no_grad()
def rate(editor: Editor, samples: ShapesBatch) -> Float[Tensor, " n"]:
    """The oracle's ratings (0–10) of edits of samples, row i from seed i."""
    made = []
    with devices.autocast(editor.pipe.device.type):
        for first in range(0, len(samples), AT_ONCE):
            part = samples[first : first + AT_ONCE]
            rows = range(first, first + len(part))
            edits = editor.sample(editor.encode(part.source, part.instruction), rows)
            made.append(edits.to("cpu").images)
    return ShapesOracle().rate(samples, torch.cat(made)).score


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints the path of the pipeline."""
    print(f"flow editor: {train(config, folder, resume)}")
