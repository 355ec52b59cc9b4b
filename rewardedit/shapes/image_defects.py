"""Defects that edited images have and clean renderings do not: those that models must tolerate (`spoil`), and
those that make an object unrecognisable (`damage`).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from rewardedit.images import gaussian_blur

BLUR = (0.5, 1.0)  # standard deviations in pixels, each for a quarter of the images
NOISE = 0.2  # the largest standard deviation of noise; a quarter of the images has any
SHIFT = 0.06  # the largest shift of a colour channel
BEND = 0.15  # standard deviation of a displacement, in halves of an image's side


def add_artifacts(images: Float[Tensor, "b 3 h w"], generator: torch.Generator) -> Float[Tensor, "b 3 h w"]:
    """Adds random blur, noise and colour shifts to images in [0, 1]."""
    b = len(images)
    kind = torch.randint(0, 4, (b,), generator=generator)
    blurred = images
    for number, sigma in enumerate(BLUR, 1):
        blurred = torch.where((kind == number)[:, None, None, None], gaussian_blur(images, sigma), blurred)
    strength = NOISE * torch.rand(b, generator=generator) * (torch.rand(b, generator=generator) < 0.25)
    noise = torch.randn(images.shape, generator=generator) * strength[:, None, None, None]
    shift = SHIFT * (2 * torch.rand(b, 3, 1, 1, generator=generator) - 1)
    return (blurred + noise + shift).clamp(0, 1)


def damage(crops: Float[Tensor, "k 3 s s"], generator: torch.Generator) -> Float[Tensor, "k 3 s s"]:
    """Makes crops of objects unrecognisable, each at random by one of four defects: bent out of shape, faded
    into the next crop, faded into their background, or half erased.
    """
    k = len(crops)
    border = torch.cat([crops[:, :, 0], crops[:, :, -1], crops[:, :, :, 0], crops[:, :, :, -1]], 2)
    ground = border.median(2).values[:, :, None, None]
    share = (0.4 + 0.2 * torch.rand(k, generator=generator))[:, None, None, None]
    kinds = torch.stack(
        [
            bent(crops, generator),
            crops.lerp(crops.roll(1, 0), share),
            crops.lerp(ground.expand_as(crops), share),
            torch.where(_half(k, crops.shape[-1], generator)[:, None], ground, crops),
        ]
    )
    kind = torch.randint(len(kinds), (k,), generator=generator)
    return kinds[kind, torch.arange(k)]


def bent(crops: Float[Tensor, "k 3 s s"], generator: torch.Generator) -> Float[Tensor, "k 3 s s"]:
    """Warps crops by a smooth random displacement of about an eighth of their side."""
    k, _, s, _ = crops.shape
    shift = BEND * torch.randn(k, 2, 5, 5, generator=generator)
    shift = F.interpolate(shift, (s, s), mode="bicubic", align_corners=True)
    identity = torch.eye(2, 3).expand(k, 2, 3)
    grid = F.affine_grid(identity, [k, 3, s, s], align_corners=False) + shift.permute(0, 2, 3, 1)
    return F.grid_sample(crops, grid, padding_mode="border", align_corners=False)


def _half(k: int, size: int, generator: torch.Generator) -> Bool[Tensor, "k s s"]:
    """Random half planes whose edges pass near the centre."""
    angle = 2 * torch.pi * torch.rand(k, 1, 1, generator=generator)
    offset = 0.2 * torch.rand(k, 1, 1, generator=generator) - 0.1
    place = torch.linspace(-1, 1, size)
    return angle.cos() * place[None, None] + angle.sin() * place[None, :, None] > offset
