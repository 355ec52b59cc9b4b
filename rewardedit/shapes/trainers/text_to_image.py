"""The small text-to-image model of the shapes world: a stock `StableDiffusionPipeline` with the editor's
autoencoder and text encoder.

Its UNet learns, with the editor's objective and schedule, to draw the scenes of captions: sources and targets
of the world. It makes the candidates of SDEdit and DiffEdit (ADIEE Sec. 3.1) and over-modified images (BPM
Sec. 4.2).

Command: rewardedit train shapes/text-to-image
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline
from torch import Tensor

from rewardedit import devices
from rewardedit.diffusion.editors import load_editor
from rewardedit.diffusion.families import family_of
from rewardedit.diffusion.noising import noising
from rewardedit.diffusion.text_to_image import save_text_to_image
from rewardedit.shapes import Shapes
from rewardedit.shapes.maps import CHANNELS, object_maps
from rewardedit.shapes.maps_head import ObjectMapHead
from rewardedit.shapes.trainers.unet import make_unet
from rewardedit.training import run
from rewardedit.training.fit import SmallTrainConfig, count, fit

MAP_SIDE = 8  # squares a side of the maps that the head predicts


@dataclass(frozen=True)
class Config:
    """Architecture, data and training of the text-to-image model."""

    name: str  # name of the run and of its folder in runs/
    editor: str = "shapes/editor"  # editor whose autoencoder, text encoder and schedule the model uses
    channels: tuple[int, ...] = (48, 96)  # channels of each level of the UNet
    samples: int = 42_000  # training samples of the shapes world, each with two images: source and target
    backdrops: tuple[str, ...] = ("plain",) * 8 + ("textured", "photo")  # backdrops of successive samples
    conditioning_dropout: float = 0.1  # share of rows whose caption is dropped
    train: SmallTrainConfig = field(default_factory=SmallTrainConfig)  # the optimizer and the loop


def make_pipeline(config: Config) -> Any:
    """The pipeline with a fresh UNet."""
    editor = load_editor(config.editor, device="cpu", dtype=torch.float32).pipe
    unet = make_unet(4, config.channels, editor.text_encoder.config.hidden_size)
    return StableDiffusionPipeline(
        vae=editor.vae,
        text_encoder=editor.text_encoder,
        tokenizer=editor.tokenizer,
        unet=unet,
        scheduler=DDIMScheduler.from_config(editor.scheduler.config),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def plan(config: Config) -> list[str]:
    unet = make_pipeline(config).unet
    return [f"text-to-image: unet {count(unet)}; {2 * config.samples} images, {config.train.max_steps} steps"]


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains and saves the UNet in fp16 to `folder/pipeline`."""
    run.start(folder, config, resume, alone=True)
    torch.manual_seed(config.train.seed)
    pipe = make_pipeline(config).to(devices.default_device())
    for module in (pipe.vae, pipe.text_encoder):
        module.requires_grad_(False).eval()
    images, tokens, maps = _images(config, pipe)
    scale = pipe.vae.config.scaling_factor
    unet = pipe.unet.to(memory_format=torch.channels_last)
    head = ObjectMapHead(unet, CHANNELS)
    noiser = noising(pipe.scheduler)
    no_words = tokens[-1]

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        b = config.train.batch_size
        rows = torch.randint(len(images), (b,), generator=generator)
        t = torch.randint(noiser.config.num_train_timesteps, (b,), generator=generator)
        noise = torch.randn(b, *images.shape[1:], generator=generator)
        dropped = torch.rand(b, generator=generator) < config.conditioning_dropout
        words = torch.where(dropped[:, None], no_words, tokens[rows])
        noisy = noiser.add_noise(images[rows] * scale, noise, t)
        inputs = (images[rows] * scale, noisy, t, words, maps[rows], ~dropped)
        latents, noisy, t, words, maps_of, known = (tensor.to(unet.device) for tensor in inputs)
        with torch.no_grad():
            embeds = pipe.text_encoder(words).last_hidden_state
        model_pred = unet(noisy, t, embeds, return_dict=False)[0]
        loss = (model_pred.float() - latents).square().mean()
        return loss + head.loss(maps_of, known)

    fit(config.train, {"unet": unet, "head": head}, loss_of, folder, resume)
    head.remove()
    save_text_to_image(pipe, folder / "pipeline", config.editor)
    return folder / "pipeline"


@torch.no_grad()
def _images(config: Config, pipe: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Unscaled latents (2n, 4, 16, 16), tokens of captions (2n + 1, 77), the last an empty text, and maps
    (2n, 14, 8, 8) of the scenes.
    """
    editing = family_of(load_editor(config.editor).pipe)
    images: list[Tensor] = []
    captions: list[str] = []
    maps: list[Tensor] = []
    for first in range(0, config.samples, 2800):
        batch = Shapes(backdrops=config.backdrops).batch(first, min(2800, config.samples - first))
        for image, scenes in ((batch.source, batch.before), (batch.target, batch.after)):
            images += [editing.encode_images(pipe, chunk).cpu() for chunk in image.split(140)]
            maps.append(object_maps(scenes, MAP_SIDE).half())
        captions += batch.source_caption + batch.target_caption
    return torch.cat(images), editing.tokenize(pipe, [*captions, ""]).input_ids, torch.cat(maps)


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints the path of the pipeline."""
    print(f"text-to-image: {train(config, folder, resume)}")
