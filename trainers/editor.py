"""The small editor of the shapes world: a stock `StableDiffusionInstructPix2PixPipeline` from scratch.

The UNet has eight input channels; the text encoder starts from the small CLIP's and is trained along, since captions
alone do not teach it instructions. Its data is of mixed quality, as InstructPix2Pix's was: right, untouched, half-done
and over-done targets in stated shares. It never sees reward text.

Command: rewardedit train shapes-editor
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionInstructPix2PixPipeline, UNet2DConditionModel
from torch import Tensor
from transformers import CLIPModel, CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from rewardedit.assets import resolve
from rewardedit.data.shapes import KINDS, MIXED, Shapes, ShapesOracle, candidates
from rewardedit.diffusion.editors import Editor, EditSettings, encode_images, save_editor
from rewardedit.diffusion.training import conditioning_dropout, diffusion_loss
from rewardedit.trainers import _run
from rewardedit.trainers._small import SmallTrain, count, fit


@dataclass(frozen=True)
class Config:
    """Architecture, data and training of the editor."""

    name: str
    vae: str = "runs/shapes-autoencoder-2/vae"
    clip: str = "shapes-clip"
    channels: tuple[int, ...] = (64, 128)
    tokens: int = 48  # the longest prompt
    samples: int = 56_000
    backdrops: tuple[str, ...] = ("plain",) * 8 + ("textured", "photo")
    shares: dict[str, float] = field(default_factory=lambda: dict(MIXED))
    text_lr: float = 3e-4
    dropout: float = 0.05
    ask: EditSettings = EditSettings(15, 4.0, 1.3)
    train: SmallTrain = field(default_factory=SmallTrain)


def make_unet(config: Config, text_width: int) -> UNet2DConditionModel:
    n = len(config.channels)
    return UNet2DConditionModel(
        sample_size=16,
        in_channels=8,
        out_channels=4,
        down_block_types=("DownBlock2D", *("CrossAttnDownBlock2D",) * (n - 1)),
        up_block_types=(*("CrossAttnUpBlock2D",) * (n - 1), "UpBlock2D"),
        block_out_channels=config.channels,
        layers_per_block=1,
        cross_attention_dim=text_width,
        attention_head_dim=tuple(c // 32 for c in config.channels),
        norm_num_groups=16,
    )


def make_pipeline(config: Config) -> Any:
    """The pipeline with a trained autoencoder, CLIP's text encoder and a fresh UNet.

    Raises:
        ValueError: where the autoencoder or CLIP model is not there.
    """
    try:
        vae = AutoencoderKL.from_pretrained(config.vae)
        clip = CLIPModel.from_pretrained(resolve(config.clip), dtype=torch.float32)
        tokenizer = CLIPTokenizer.from_pretrained(resolve(config.clip), model_max_length=config.tokens)
    except OSError as error:
        raise ValueError(f"vae {config.vae!r}, clip {config.clip!r}: {str(error).splitlines()[0]}; train them first") from error
    text_encoder = CLIPTextModel(CLIPTextConfig(**clip.config.text_config.to_dict()))
    text_encoder.load_state_dict(clip.text_model.state_dict())
    scheduler = DDIMScheduler(
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.012,
        clip_sample=False,  # latents are not confined to ±1
        set_alpha_to_one=False,
        prediction_type="v_prediction",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
    )
    return StableDiffusionInstructPix2PixPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=make_unet(config, text_encoder.config.hidden_size),
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def plan(config: Config) -> list[str]:
    pipe = make_pipeline(config)
    parts = ", ".join(f"{name} {count(getattr(pipe, name))}" for name in ("vae", "text_encoder", "unet"))
    return [f"editor: {parts}; {config.samples} pairs, {config.train.steps} steps"]


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains UNet and text encoder, saves fp16 weights to `folder/pipeline` and a table by kind to metrics.json."""
    _run.start(folder, config)
    torch.manual_seed(config.train.seed)
    pipe = make_pipeline(config)
    source, edited, instructions = _latents(config, pipe)
    scale = 1 / float(edited.std())
    pipe.vae.register_to_config(scaling_factor=scale)
    tokens = pipe.tokenizer([*instructions, ""], padding="max_length", truncation=True, return_tensors="pt").input_ids
    unet, text_encoder, scheduler = pipe.unet.to(memory_format=torch.channels_last), pipe.text_encoder, pipe.scheduler
    pipe.vae.requires_grad_(False)
    predict = torch.compile(unet) if config.train.compile else unet

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        b = config.train.batch
        rows = torch.randint(len(source), (b,), generator=generator)
        times = torch.randint(scheduler.config.num_train_timesteps, (b,), generator=generator)
        noise = torch.randn(b, *edited.shape[1:], generator=generator)
        no_text, no_image = conditioning_dropout(torch.rand(b, generator=generator), config.dropout)
        words = torch.where(no_text[:, None], tokens[-1], tokens[rows])
        picture = source[rows] * (~no_image)[:, None, None, None]
        embeds = text_encoder(words).last_hidden_state
        return diffusion_loss(predict, scheduler, edited[rows] * scale, picture, embeds, noise, times).mean()

    fit(
        config.train,
        {"unet": unet, "text_encoder": text_encoder},
        loss_of,
        folder,
        resume,
        {"text_encoder": config.text_lr},
    )
    pipe.set_progress_bar_config(disable=True)
    editor = Editor(pipe, config.ask)
    _run.write_json(folder / "metrics.json", {"oracle": rating_by_kind(editor)})
    pipe.to(dtype=torch.float16)
    save_editor(dataclasses.replace(editor, pipe=pipe), folder / "pipeline")
    return folder / "pipeline"


@torch.no_grad()
def _latents(config: Config, pipe: Any) -> tuple[Tensor, Tensor, list[str]]:
    """Unscaled latents of sources and of their candidate edits, and the instructions."""
    world, source, edited, instructions = Shapes(backdrops=config.backdrops), [], [], []
    for first in range(0, config.samples, 2800):
        batch = world.batch(first, min(2800, config.samples - first))
        _, made = candidates(batch, config.shares, seed=first)
        for out, pictures in ((source, batch.source), (edited, made)):
            out += [encode_images(pipe, part) for part in pictures.split(256)]
        instructions += batch.instruction
    return torch.cat(source), torch.cat(edited), instructions


def rating_by_kind(editor: Editor, n: int = 560, split: str = "test") -> dict[str, dict[str, float]]:
    """The oracle's mean rating (0–10) by backdrop and kind of instruction."""
    out: dict[str, dict[str, float]] = {}
    for backdrop in ("plain", "textured", "photo"):
        samples = Shapes(split, backdrops=(backdrop,)).batch(0, n)
        with torch.autocast("cpu", torch.bfloat16):
            made = [
                editor(samples.source[i : i + 140], samples.instruction[i : i + 140], range(i, min(i + 140, n)))
                for i in range(0, n, 140)
            ]
        score = ShapesOracle().rate(samples, torch.cat(made)).score
        rows = {kind: torch.tensor([k == kind for k in samples.kind]) for kind in KINDS}
        out[backdrop] = {"all": float(score.mean()), **{kind: float(score[r].mean()) for kind, r in rows.items()}}
    return out


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and says where the pipeline is."""
    print(f"editor: {train(config, folder, resume)}")
