"""Targets with a known damage: typical flaws of editors, on a scale from hardly visible to failed.

Training needs edits of all degrees between right and failed (ADIEE has them from methods' outputs and
sequences alone). Here the damage is made, so that its strength is known: the source shines through where the
edit is, its shape is bent or its colour stained, the object to be moved stays or vanishes, the drawn object
has another colour, another part of the image is bent, stained or faded, or the colours of the image drift.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from rewardedit.images import gaussian_blur
from rewardedit.regions.change_map import change_mask
from rewardedit.synthesis.places import drawn, edited_places, moved

Image = Float[Tensor, "3 h w"]
Mask = Float[Tensor, "1 h w"]
SPOT = 0.14  # standard deviation of a spot, as a share of the longer side
NO_CHANGE = 0.05  # spots outside the edit avoid places where the edit's mask is above this
VISIBLE = 0.06  # least visible change of a place, averaged over SPECK of the longer side
SPECK = 0.02
DETAIL = 0.1  # an edit with less detail everywhere drew nothing that could be bent
UNLIKE = 0.5  # least RGB distance of a stain's colour from the edit's own
DRAWN = 0.25  # RGB distance from the surrounding colour at which a pixel counts fully as drawn
MAX_TRIES = 20
BUMPS = 8  # bumps per side of the noise that displaces pixels; half as many of the noise that tints them


@dataclass(frozen=True)
class Damage:
    """A kind of damage, its strengths, and the label of a damaged target at each strength."""

    apply: Callable[[Image, Image, Mask, float, torch.Generator], Image]
    strengths: tuple[float, ...]
    labels: tuple[float, ...]


def damage_target(
    source: Image, target: Image, generator: torch.Generator, kinds: Sequence[str] = ()
) -> tuple[Image, str, float] | None:
    """The target with one visible damage, the damage's name and the label; None if `TRIES` tries made none
    visible. RGB in [0, 1].

    Args:
        kinds: names of `DAMAGES`; none for all.
    """
    mask = change_mask(source[None], target[None])[0]
    names = list(kinds or DAMAGES)
    for _ in range(MAX_TRIES):
        name = names[_below(len(names), generator)]
        kind = DAMAGES[name]
        level = _below(len(kind.strengths), generator)
        image = kind.apply(source, target, mask, kind.strengths[level], generator).clamp(0, 1)
        change = (image - target).abs().amax(0)[None, None]
        if float(gaussian_blur(change, SPECK * max(image.shape[-2:])).max()) > VISIBLE:
            return image, name, kind.labels[level]
    return None


def ghost(source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator) -> Image:
    """Lets a share of the source shine through where the edit is."""
    return target + strength * mask * (source - target)


def bent(source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator) -> Image:
    """Bends what the edit drew by `strength` of the longer side; returns the target if it drew nothing."""
    if float((mask * _detail(target)).max()) < DETAIL:
        return target
    return target + mask * (_bend(target, strength, generator) - target)


def stained(source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator) -> Image:
    """Covers what the edit drew with a clearly different colour, with opacity `strength`."""
    where = mask * (target - source).abs().amax(0, keepdim=True).mul(10).clamp(0, 1)
    drawn_colour = (where * target).sum((1, 2), keepdim=True) / where.sum().clamp_min(1e-6)
    colour = _unlike([drawn_colour], generator)
    return target if colour is None else target + strength * where * (colour - target)


def moved_in_part(
    source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator
) -> Image:
    """Moves an object only in part: it stays in its old place besides its copy, or vanishes altogether."""
    places = edited_places(mask)
    if moved(source, target, places) is None:
        return target
    unchanged = places[_below(len(places), generator)]
    return target + strength * unchanged * mask * (source - target)


def recoloured(
    source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator
) -> Image:
    """Draws the edit in another colour, clearly unlike its own and that of the source there."""
    places = edited_places(mask)
    move = moved(source, target, places)
    if move is None and len(places) != 1:
        return target
    place = places[0] if move is None else move[1]
    shape = mask * drawn(target, place)[None].div(DRAWN).clamp(0, 1)
    if float(shape.max()) < 1:
        return target
    weight = shape.sum().clamp_min(1e-6)
    drawn_colour = (shape * target).sum((1, 2), keepdim=True) / weight
    source_colour = (shape * source).sum((1, 2), keepdim=True) / weight
    colour = _unlike([drawn_colour, source_colour], generator)
    return target if colour is None else target + strength * shape * (colour - target)


def bent_elsewhere(
    source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator
) -> Image:
    """Bends a part of the image that the edit should not change."""
    return target + _elsewhere(target, mask, generator) * (_bend(target, strength, generator) - target)


def stained_elsewhere(
    source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator
) -> Image:
    """Puts a spot of another colour where the edit should not change the image."""
    return target + strength * _elsewhere(target, mask, generator) * (_colour(generator) - target)


def faded_elsewhere(
    source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator
) -> Image:
    """Fades a part that the edit should not change into the median colour of the image."""
    most = target.flatten(1).median(1).values[:, None, None]
    return target + strength * _elsewhere(target, mask, generator) * (most - target)


def drifted(source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator) -> Image:
    """Shifts the colours of the whole image, in different directions in different places."""
    return target + strength * _waves(3, *target.shape[-2:], generator, BUMPS // 2)


# Labels as a person would give them when looking at examples of each strength.
DAMAGES = {
    "ghost": Damage(ghost, (0.15, 0.3, 0.5, 0.75), (7.5, 5.0, 2.5, 0.0)),
    "bent": Damage(bent, (0.012, 0.02, 0.03, 0.05), (9.0, 7.5, 5.0, 1.0)),
    "stained": Damage(stained, (0.2, 0.35, 0.55, 0.85), (7.5, 5.0, 2.5, 0.0)),
    "moved_in_part": Damage(moved_in_part, (1.0,), (0.0,)),
    "recoloured": Damage(recoloured, (1.0,), (0.0,)),
    "bent_elsewhere": Damage(bent_elsewhere, (0.02, 0.035, 0.06), (9.0, 7.5, 5.0)),
    "stained_elsewhere": Damage(stained_elsewhere, (0.2, 0.4, 0.8), (9.0, 7.5, 5.0)),
    "faded_elsewhere": Damage(faded_elsewhere, (0.25, 0.5, 1.0), (9.0, 7.5, 5.0)),
    "drifted": Damage(drifted, (0.02, 0.04, 0.08), (9.0, 7.5, 5.0)),
}


def _bend(image: Image, strength: float, generator: torch.Generator) -> Image:
    """The image as if seen through uneven glass, displaced by about `strength` of its longer side."""
    h, w = image.shape[-2:]
    side = max(h, w)
    shift = _waves(2, h, w, generator, BUMPS) * strength * side
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    x = (columns + shift[0] + 0.5) * 2 / w - 1
    y = (rows + shift[1] + 0.5) * 2 / h - 1
    grid = torch.stack([x, y], -1)[None]
    return F.grid_sample(image[None], grid, padding_mode="border", align_corners=False)[0]


def _waves(channels: int, h: int, w: int, generator: torch.Generator, bumps: int) -> Float[Tensor, "c h w"]:
    """Smooth noise around 0, with a standard deviation below 1."""
    grain = torch.randn(1, channels, bumps, bumps, generator=generator)
    return F.interpolate(grain, (h, w), mode="bicubic", align_corners=False)[0]


def _unlike(colours: Sequence[Tensor], generator: torch.Generator) -> Float[Tensor, "3 1 1"] | None:
    """A random colour clearly unlike all of these; None if none of a few is."""
    tried = [_colour(generator) for _ in range(MAX_TRIES)]
    for colour in tried:
        if min(float((colour - other).norm()) for other in colours) > UNLIKE:
            return colour
    return None


def _colour(generator: torch.Generator) -> Float[Tensor, "3 1 1"]:
    """A random colour; the extremes of a channel are more frequent."""
    return torch.rand(3, 1, 1, generator=generator).sub(0.5).mul(1.6).add(0.5).clamp(0, 1)


def _spot(mask: Mask, generator: torch.Generator) -> Mask:
    """A soft spot at a random place, drawn in proportion to the brightness of the mask."""
    h, w = mask.shape[-2:]
    chances = mask.flatten() + 1e-6
    place = int(torch.multinomial(chances, 1, generator=generator))
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    far = (rows - place // w) ** 2 + (columns - place % w) ** 2
    return torch.exp(-far / (2 * (SPOT * max(h, w)) ** 2))[None]


def _elsewhere(target: Image, mask: Mask, generator: torch.Generator) -> Mask:
    """A spot outside the edit, on image content rather than plain background."""
    side = max(mask.shape[-2:])
    away = 1 - gaussian_blur(mask[None], 0.05 * side)[0]
    away = away * (mask < NO_CHANGE)
    return _spot(away * _detail(target), generator) * away


def _detail(image: Image) -> Mask:
    """Difference of each pixel from its surroundings."""
    around = gaussian_blur(image[None], 0.05 * max(image.shape[-2:]))[0]
    return (image - around).abs().amax(0, keepdim=True)


def _below(n: int, generator: torch.Generator) -> int:
    return int(torch.randint(n, (), generator=generator))
