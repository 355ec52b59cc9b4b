"""The small autoencoder of the shapes world: a diffusers `AutoencoderKL`,
four latent channels at a quarter of the size.

Loss: mean absolute error (edges count five times), squared error, absolute error of the image's gradients,
and a small KL term. A tenth of the images are cross-fades of source and target,
so that half-done edits have distinct latents.

Command: rewardedit train shapes/autoencoder
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from torch import Tensor

from rewardedit.files import write_json
from rewardedit.shapes import Shapes, ShapesOracle
from rewardedit.training import run
from rewardedit.training.fit import SmallTrainConfig, count, fit

KL_WEIGHT = 1e-4  # weight of the KL divergence in the loss
EDGE_WEIGHT = 4.0  # extra weight of errors at edges


@dataclass(frozen=True)
class Config:
    """Architecture, data and training of the autoencoder."""

    name: str  # name of the run and of its folder in runs/
    channels: tuple[int, ...] = (16, 32, 64)  # channels of each level, from the image inwards
    samples: int = 18_200  # training samples, each with two images: source and target
    offset: int = 0  # index of the first training sample in the shapes world
    backdrops: tuple[str, ...] = ("plain", "plain", "textured", "photo")  # backdrops of successive samples
    evaluate_n: int = 280  # held-out images per backdrop
    train: SmallTrainConfig = field(default_factory=SmallTrainConfig)  # the optimizer and the loop


def make_model(config: Config) -> AutoencoderKL:
    """The autoencoder, with fresh weights."""
    n = len(config.channels)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * n,
        up_block_types=("UpDecoderBlock2D",) * n,
        block_out_channels=config.channels,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=64,
        mid_block_add_attention=False,
    )


def plan(config: Config) -> list[str]:
    return [
        f"autoencoder: {count(make_model(config))}, {2 * config.samples} images, {config.train.max_steps} "
        "steps"
    ]


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Trains and saves in fp16 to `folder/vae`; metrics.json holds the oracle's rating of reconstructed true
    targets.
    """
    run.start(folder, config, resume, alone=True)
    torch.manual_seed(config.train.seed)
    images = _pictures(config)
    model = make_model(config).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    n = len(images)

    def loss_of(step: int, generator: torch.Generator) -> Tensor:
        rows = torch.randint(n, (config.train.batch_size,), generator=generator)
        batch = images[rows].float() / 255
        k = config.train.batch_size // 10
        other = images[(rows[:k] + n // 2) % n].float() / 255  # a source's target, and the other way round
        batch[:k] = batch[:k].lerp(other, torch.rand(k, 1, 1, 1, generator=generator))
        batch = (batch if step % 2 else batch.flip(-1)) * 2 - 1
        return reconstruction_loss(
            model, batch.to(model.device).contiguous(memory_format=torch.channels_last), config
        )

    fit(config.train, {"vae": model}, loss_of, folder, resume)
    write_json(
        folder / "metrics.json",
        {"oracle_of_reconstructed_targets": reconstruction_rating(model, config.evaluate_n)},
    )
    # In fp16, as shipped: models trained on its latents are then the same with this one and the package's.
    model.half().save_pretrained(folder / "vae")
    return folder / "vae"


def _pictures(config: Config) -> Tensor:
    """Images (2 × samples, 3, 64, 64) as bytes: sources, then targets."""
    world = Shapes(backdrops=config.backdrops)
    both: list[list[Tensor]] = [[], []]
    for first in range(config.offset, config.offset + config.samples, 2800):
        batch = world.batch(first, min(2800, config.offset + config.samples - first))
        for out, image in zip(both, (batch.source, batch.target), strict=True):
            out.append((image * 255).round().byte())
    return torch.cat(both[0] + both[1])


def _gradients(image: Tensor) -> Tensor:
    return torch.cat([image.diff(dim=-2).flatten(1), image.diff(dim=-1).flatten(1)], dim=1)


def reconstruction_loss(model: AutoencoderKL, image: Tensor, config: Config) -> Tensor:
    """Loss of the reconstruction of images (b, 3, h, w) in [−1, 1]."""
    posterior = model.encode(image).latent_dist
    made = model.decode(posterior.sample()).sample.float()
    steps = torch.maximum(
        F.pad(image.diff(dim=-1), (0, 1)).abs(), F.pad(image.diff(dim=-2), (0, 0, 0, 1)).abs()
    )
    edges = F.max_pool2d((steps.amax(1, keepdim=True) > 0.3).float(), 3, 1, 1)
    absolute = ((made - image).abs() * (1 + EDGE_WEIGHT * edges)).mean()
    gradients = (_gradients(made) - _gradients(image)).abs().mean()
    kl = (posterior.mean.float() ** 2 + posterior.var.float() - 1 - posterior.logvar.float()).mean() / 2
    return absolute + 2 * F.mse_loss(made, image) + gradients + KL_WEIGHT * kl


@torch.no_grad()
def reconstruction_rating(model: AutoencoderKL, n: int = 280) -> dict[str, float]:
    """The oracle's mean rating (0–10) of the true targets of val after encoding and decoding, by backdrop."""
    out = {}
    for backdrop in ("plain", "textured", "photo"):
        samples = Shapes("val", backdrops=(backdrop,)).batch(0, n)
        targets = [chunk.to(model.device) * 2 - 1 for chunk in samples.target.split(70)]
        made = torch.cat([model.decode(model.encode(x).latent_dist.mode()).sample for x in targets]).cpu()
        out[backdrop] = float(ShapesOracle().rate(samples, (made / 2 + 0.5).clamp(0, 1)).score.mean())
    return out


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints the path of the weights."""
    print(f"autoencoder: {train(config, folder, resume)}")
