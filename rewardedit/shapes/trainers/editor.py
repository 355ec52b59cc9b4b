"""The small editor of the shapes world: a stock `StableDiffusionInstructPix2PixPipeline` from scratch.

The UNet learns to denoise at uniformly drawn time steps, with InstructPix2Pix's objective (Eq. 2), on edits
of mixed quality as InstructPix2Pix's were: right, half-done, over-done, untouched and of a wrong object, in
stated shares. The autoencoder and the text encoder are trained beforehand and frozen.

It predicts the sample. Most of an edited image equals its source, which is part of the UNet's input and can
be copied at every step; a velocity would also have to contain the noise. The noise schedule is DDPM's linear
one with zero terminal SNR: given a source image, the place of an object is decided at high noise, and there
the linear schedule spends more of its steps than Stable Diffusion's. Sampling is that of `LCMScheduler`:
every step adds new noise to the predicted clean latents (multistep sampling as in Song et al. 2023,
Algorithm 1), so that a later step can correct errors of an early one. On val it is better than DDPM's, which
keeps a share of the noise, by 0.4 of 10.

During training only, a head predicts from the middle of the UNet which colours and shapes are where, in the
source and in the target, and its error is added to the loss (`rewardedit.shapes.maps_head`).

With `null_text_target: source` a row whose text is dropped has its source as target: without an instruction
the editor leaves the image unchanged, which is the starting point of guidance. InstructPix2Pix keeps the
edited image there. The UNet also gets the text through its time embedding (`addition_embed_type="text"`),
which stock pipelines support. It never sees reward text.

The recipe has five phases; each has its own edits and starts from the fp16 weights saved by the one before,
so a phase can also start from the weights in this package: first_phase=2 phase-2.init_from=shapes/editor.
The recipe shapes/comparison-editors starts there, with other shares of flawed targets.

Command: rewardedit train shapes/editor
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from diffusers import AutoencoderKL, LCMScheduler, StableDiffusionInstructPix2PixPipeline
from diffusers.training_utils import compute_snr
from torch import Tensor
from transformers import CLIPTextModel, CLIPTokenizer

from rewardedit import devices
from rewardedit.diffusion.editors import Editor, SamplingConfig
from rewardedit.diffusion.families import Conditioning, family_of
from rewardedit.diffusion.noising import conditioning_dropout
from rewardedit.diffusion.saving import save_editor
from rewardedit.files import write_json
from rewardedit.models import pretrained, resolve_model
from rewardedit.shapes import DEFAULT_MIX, Shapes, corrupt_targets
from rewardedit.shapes.by_edit_type import rating_by_edit_type
from rewardedit.shapes.maps import CHANNELS, object_maps
from rewardedit.shapes.maps_head import ObjectMapHead
from rewardedit.shapes.trainers.text_encoder import TOKENS, RandomSuffix
from rewardedit.shapes.trainers.unet import make_unet
from rewardedit.training import run
from rewardedit.training.fit import SmallTrainConfig, count, fit

MAP_SIDE = 8  # squares a side of the maps that the head predicts: the resolution of the UNet's middle


@dataclass(frozen=True)
class Config:
    """Architecture, data and training of the editor."""

    name: str  # name of the run and of its folder in runs/
    vae: str = "runs/shapes-autoencoder/vae"  # folder of the trained autoencoder
    text_encoder: str = "runs/shapes-text-encoder"  # folder of the trained text encoder and its tokenizer
    init_from: str | None = None  # pipeline to train further; None: vae and text_encoder with a fresh UNet
    # number of the block of source images and of random numbers, counted from 1: phases take successive ones
    block: int = 1
    channels: tuple[int, ...] = (48, 128)  # channels of each level of the UNet
    sources: int = 28_000  # source images of the shapes world
    draws: int = 3  # edits of each source
    backdrops: tuple[str, ...] = ("plain",) * 8 + ("textured", "photo")  # backdrops of successive sources
    # share of each quality among the edits
    shares: dict[str, float] = field(default_factory=lambda: dict(DEFAULT_MIX))
    conditioning_dropout: float = 0.05  # share of rows whose text is dropped
    null_text_target: Literal["edited", "source"] = "source"  # target of a row whose text is dropped
    suffix_share: float = 0.5  # share of prompts with random words after the instruction
    # sampling settings that are saved with the editor
    sampling: SamplingConfig = field(default_factory=lambda: SamplingConfig(10, 2.0, 1.2))
    evaluate_n: int = 560  # test edits per backdrop
    lr_share: float = 1.0  # initial learning rates as a share of train.lr and train.muon_lr
    # upper limit of a row's loss weight, which is the signal-to-noise ratio at its time step, at least 1
    # (Salimans and Ho 2022): errors at low noise are small compared with those at high noise, and are those
    # of edges. 1: equal weights
    largest_weight: float = 1.0
    train: SmallTrainConfig = field(default_factory=SmallTrainConfig)  # the optimizer and the loop

    def __post_init__(self) -> None:
        if self.largest_weight < 1:
            raise ValueError(f"largest_weight: expected at least 1; got {self.largest_weight:g}")


def make_pipeline(config: Config) -> Any:
    """The pipeline with a trained autoencoder and text encoder and a fresh UNet, or `init_from`.

    Raises:
        ValueError: if one of these is missing.
    """
    stock = StableDiffusionInstructPix2PixPipeline
    no_checker = {"safety_checker": None, "requires_safety_checker": False}
    try:
        if config.init_from is not None:
            return pretrained.load(stock, resolve_model(config.init_from), dtype=torch.float32, **no_checker)
        vae = pretrained.load(AutoencoderKL, config.vae)
        text_encoder = pretrained.load(
            CLIPTextModel, f"{config.text_encoder}/text_encoder", dtype=torch.float32
        )
        tokenizer = pretrained.load(
            CLIPTokenizer, f"{config.text_encoder}/tokenizer", model_max_length=TOKENS
        )
    except OSError as error:
        names = config.init_from or f"{config.vae}, {config.text_encoder}"
        raise ValueError(f"{names}: {str(error).splitlines()[0]}; train them first") from error

    scheduler = LCMScheduler(
        beta_schedule="linear",
        beta_start=1e-4,
        beta_end=0.02,
        clip_sample=False,  # latents may exceed ±1
        prediction_type="sample",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
        set_alpha_to_one=True,
        original_inference_steps=1000,  # allows any number of steps up to that of training
        timestep_scaling=1e9,  # the prediction is used unscaled at every step
    )

    return stock(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=make_unet(
            8,
            config.channels,
            text_encoder.config.hidden_size,
            addition_embed_type="text",
            addition_embed_type_num_heads=8,
        ),
        scheduler=scheduler,
        feature_extractor=None,
        **no_checker,
    )


def plan(config: Config) -> list[str]:
    pipe = make_pipeline(config)
    parts = ", ".join(f"{name} {count(getattr(pipe, name))}" for name in ("vae", "text_encoder", "unet"))
    return [f"editor: {parts}; {config.sources * config.draws} edits, {config.train.max_steps} steps"]


@dataclass(frozen=True)
class Edits:
    """The edits that the editor is trained on."""

    source: Tensor  # (sources, 4, 16, 16) unscaled latents
    edited: Tensor  # (n, 4, 16, 16) unscaled latents; row i belongs to source i % sources
    tokens: Tensor  # (n, 77)
    maps: Tensor  # (n, 28, 8, 8): maps of the source's scene, then of the target's
    right: Tensor  # (n,) True where `edited` is the target


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains, saves fp16 weights to `folder/pipeline` and a table by edit type to metrics.json."""
    run.start(folder, config, resume, alone=True)
    torch.manual_seed(config.train.seed)
    pipe = make_pipeline(config).to(devices.default_device())
    edits = _edits(config, pipe)
    if config.init_from is None:
        # The latents are scaled to unit variance, as the noise schedule expects.
        pipe.vae.register_to_config(scaling_factor=1 / float(edits.edited.std()))
    train_unet(config, pipe, edits, folder, resume)
    out = folder / "pipeline"
    save_editor(Editor(pipe.to(dtype=torch.float16), config.sampling), out)

    pipe.to(dtype=torch.float32)  # the saved fp16 values, in fp32
    pipe.set_progress_bar_config(disable=True)
    editor = Editor(pipe, config.sampling)
    write_json(
        folder / "metrics.json",
        {"n": config.evaluate_n, "oracle": rating_by_edit_type(editor, config.evaluate_n)},
    )
    return out


def phase_config(config: Config) -> SmallTrainConfig:
    """Settings of the optimizer and the loop, with the block's seed and learning rates."""
    muon_lr = config.train.muon_lr
    return dataclasses.replace(
        config.train,
        lr=config.train.lr * config.lr_share,
        muon_lr=None if muon_lr is None else muon_lr * config.lr_share,
        seed=config.train.seed + config.block - 1,  # other rows, noise and time steps
    )


def train_unet(config: Config, pipe: Any, edits: Edits, folder: Path, resume: bool) -> None:
    """Trains the pipeline's UNet on the edits."""
    train_config = phase_config(config)
    for module in (pipe.vae, pipe.text_encoder):
        module.requires_grad_(False).eval()
    family = family_of(pipe)
    unet = pipe.unet.to(memory_format=torch.channels_last)
    head = ObjectMapHead(unet, 2 * CHANNELS)
    tails = RandomSuffix(pipe.tokenizer, config.suffix_share)
    no_words = family.tokenize(pipe, [""]).input_ids[0]
    scale = pipe.vae.config.scaling_factor
    times = pipe.scheduler.config.num_train_timesteps

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        b = train_config.batch_size
        rows = torch.randint(len(edits.edited), (b,), generator=generator)
        source = edits.source[rows % len(edits.source)]
        t = torch.randint(times, (b,), generator=generator)
        noise = torch.randn(source.shape, generator=generator)
        u = torch.rand(b, generator=generator)
        no_text, no_image = conditioning_dropout(u, config.conditioning_dropout)
        words = torch.where(no_text[:, None], no_words, tails(edits.tokens[rows], generator))
        becomes_source = no_text & ~no_image & (config.null_text_target == "source")
        latents = torch.where(becomes_source[:, None, None, None], source, edits.edited[rows]) * scale
        image = source * (~no_image)[:, None, None, None]
        known = edits.right[rows] & ~no_text & ~no_image
        # All random draws happen on the CPU, so that they are the same on every device; then the batch moves
        # to the models' device.
        inputs = (latents, image, noise, t, words, edits.maps[rows], known)
        latents, image, noise, t, words, maps, known = (tensor.to(unet.device) for tensor in inputs)
        with torch.no_grad():
            embeds = pipe.text_encoder(words).last_hidden_state
        cond = Conditioning(embeds, image)
        losses = family.loss(unet, pipe.scheduler, latents, noise, t, cond)
        weights = compute_snr(pipe.scheduler, t).clamp(1, config.largest_weight)
        return (weights * losses).mean() + head.loss(maps, known)

    fit(train_config, {"unet": unet, "head": head}, loss_of, folder, resume)
    head.remove()


@torch.no_grad()
def _edits(config: Config, pipe: Any) -> Edits:
    """The edits of the block's sources, `draws` of each."""
    encode = family_of(pipe).encode_images
    source: list[Tensor] = []
    parts: list[list[Tensor]] = [[], [], [], []]
    first_source = (config.block - 1) * config.sources
    for draw in range(config.draws):
        world = Shapes(backdrops=config.backdrops, draw=draw)
        for first in range(0, config.sources, 2800):
            batch = world.batch(first_source + first, min(2800, config.sources - first))
            seed = (config.block * 100 + draw) * 1_000_003 + first
            qualities, made = corrupt_targets(batch, config.shares, seed=seed)
            if draw == 0:
                source += [encode(pipe, chunk).cpu() for chunk in batch.source.split(140)]
            edited = torch.cat([encode(pipe, chunk).cpu() for chunk in made.split(140)])
            tokens = family_of(pipe).tokenize(pipe, batch.instruction).input_ids
            maps = torch.cat([object_maps(scenes, MAP_SIDE) for scenes in (batch.before, batch.after)], dim=1)
            right = torch.tensor([quality == "right" for quality in qualities])
            for out, values in zip(parts, (edited, tokens, maps.half(), right), strict=True):
                out.append(values)
    edited, tokens, maps, right = map(torch.cat, parts)
    return Edits(torch.cat(source), edited, tokens, maps, right)


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints the path of the pipeline."""
    print(f"editor: {train(config, folder, resume)}")
