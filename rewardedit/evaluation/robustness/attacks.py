"""Changes of an edited image that carry out no more of an instruction, and by which a score should not rise.

Each takes edited image, source and a random generator, and returns an image of the same size; strengths are
such that a person sees the change at a glance and would call the edit no better. Lengths are shares of the
image's shorter side, so that photographs and small images are changed alike.
"""

import io
import zlib
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.images import gaussian_blur, load_image, to_pil

Pixels = Float[Tensor, "3 h w"]  # RGB in [0, 1]
Attack = Callable[[Pixels, Pixels, torch.Generator], Tensor]

SATURATION = 1.6  # factor of each pixel's distance from its own gray
SHARPNESS = 1.5  # share of the difference from the blurred image that is added
CONTRAST = 1.4  # factor of each pixel's distance from the image's mean gray
CAST = (1.12, 1.0, 0.88)  # factors of red, green and blue: a warm light
NOISE = 0.04  # standard deviation of each value
BLUR = 0.01  # standard deviation, as a share of the shorter side
JPEG_QUALITY = 25
FADE = 0.5  # share of the source in a cross-fade
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R BT.601)


def gray(image: Pixels) -> Float[Tensor, "1 h w"]:
    """Luminance of each pixel, 0 to 1."""
    weights = image.new_tensor(LUMINANCE)[:, None, None]
    return (image * weights).sum(0, keepdim=True)


def saturate(edited: Pixels, source: Pixels, generator: torch.Generator) -> Tensor:
    """More vivid colours; a gray image stays as it is."""
    grays = gray(edited)
    return grays + SATURATION * (edited - grays)


def sharpen(edited: Pixels, source: Pixels, generator: torch.Generator) -> Tensor:
    """Sharper edges, by an unsharp mask; an image of one colour stays as it is."""
    return edited + SHARPNESS * (edited - blur(edited, source, generator))


def raise_contrast(edited: Pixels, source: Pixels, generator: torch.Generator) -> Tensor:
    """More contrast around the image's mean luminance."""
    mean = gray(edited).mean()
    return mean + CONTRAST * (edited - mean)


def cast_colour(edited: Pixels, source: Pixels, generator: torch.Generator) -> Tensor:
    """A warm colour cast."""
    return edited * edited.new_tensor(CAST)[:, None, None]


def add_noise(edited: Pixels, source: Pixels, generator: torch.Generator) -> Tensor:
    """Gaussian noise, other in each value."""
    return edited + NOISE * torch.randn(edited.shape, generator=generator)


def blur(edited: Pixels, source: Pixels, generator: torch.Generator) -> Tensor:
    """A Gaussian blur."""
    return gaussian_blur(edited[None], BLUR * min(edited.shape[-2:]))[0]


def compress(edited: Pixels, source: Pixels, generator: torch.Generator) -> Tensor:
    """Strong JPEG compression."""
    file = io.BytesIO()
    to_pil(edited).save(file, "JPEG", quality=JPEG_QUALITY)
    return load_image(file)


def cross_fade(edited: Pixels, source: Pixels, generator: torch.Generator) -> Tensor:
    """Half edit, half source: closer to the source everywhere."""
    return edited.lerp(source, FADE)


def paste_source(edited: Pixels, source: Pixels, generator: torch.Generator) -> Tensor:
    """The source's left half in the place of the edit's."""
    half = edited.shape[-1] // 2
    return torch.cat([source[..., :half], edited[..., half:]], dim=-1)


ATTACKS: dict[str, Attack] = {
    "saturation": saturate,
    "sharpening": sharpen,
    "contrast": raise_contrast,
    "colour cast": cast_colour,
    "noise": add_noise,
    "blur": blur,
    "JPEG": compress,
    "cross-fade": cross_fade,
    "pasted source": paste_source,
}


def attack_image(name: str, row: str, edited: Pixels, source: Pixels) -> Pixels:
    """The edited image of a row after an attack, clamped and rounded to 256 levels as a file holds it.

    Args:
        row: the row's id, by which random numbers are drawn: a row is always attacked alike.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {row}".encode()))
    attacked = ATTACKS[name](edited, source, generator)
    return (attacked.clamp(0, 1) * 255).round() / 255
