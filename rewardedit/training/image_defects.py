"""Defects that edited images have and clean renderings have not, for models that are to see past them."""

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.images import gaussian_blur

BLUR = (0.5, 1.0)  # standard deviations in pixels, each of a quarter of the images
NOISE = 0.2  # the largest standard deviation of noise; a quarter of the images has any
SHIFT = 0.06  # the largest shift of a colour channel


def spoil(images: Float[Tensor, "b 3 h w"], generator: torch.Generator) -> Float[Tensor, "b 3 h w"]:
    """Images in [0, 1] with random blur, noise and shifts of colour."""
    b = len(images)
    kind = torch.randint(0, 4, (b,), generator=generator)
    blurred = images
    for number, sigma in enumerate(BLUR, 1):
        blurred = torch.where((kind == number)[:, None, None, None], gaussian_blur(images, sigma), blurred)
    strength = NOISE * torch.rand(b, generator=generator) * (torch.rand(b, generator=generator) < 0.25)
    noise = torch.randn(images.shape, generator=generator) * strength[:, None, None, None]
    shift = SHIFT * (2 * torch.rand(b, 3, 1, 1, generator=generator) - 1)
    return (blurred + noise + shift).clamp(0, 1)
