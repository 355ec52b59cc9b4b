"""Targets with a known damage: what editors draw badly, on a scale from hardly seen to failed.

An edit is wanted in degrees between right and failed (ADIEE has them from methods' outputs and sequences
alone). Here the damage is made, so that its strength is known: the old image shines through where the edit
is, its shape is bent or its colour stained, what was to move stays or is gone, what is drawn has another
colour, something else of the image is bent, stained or faded, or the colours of the whole image drift.
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
SPOT = 0.14  # of the longer side: standard deviation of a spot
NO_CHANGE = 0.05  # a spot that is to lie elsewhere keeps away from where the mask of the edit is above this
VISIBLE = 0.06  # a damage that changes no place by more, over SPECK of the longer side, is none
SPECK = 0.02
DETAIL = 0.1  # an edit with less of it anywhere drew nothing that could be bent
UNLIKE = 0.5  # the least distance, in RGB, of a stain's colour from the edit's own
DRAWN = 0.25  # what is so far, in RGB, from the colour around it is drawn in full
TRIES = 20
BUMPS = 8  # a side, of what displaces pixels; the half of it of what tints them


@dataclass(frozen=True)
class Damage:
    """A kind of damage, and the label of a target with it at each of its strengths."""

    apply: Callable[[Image, Image, Mask, float, torch.Generator], Image]
    strengths: tuple[float, ...]
    labels: tuple[float, ...]


def damaged(
    source: Image, target: Image, generator: torch.Generator, kinds: Sequence[str] = ()
) -> tuple[Image, str, float] | None:
    """The target with one damage that is seen, its name and label; None where twenty tries made none. RGB in
    [0, 1].

    Args:
        kinds: names of `DAMAGES`; none for all.
    """
    mask = change_mask(source[None], target[None])[0]
    names = list(kinds or DAMAGES)
    for _ in range(TRIES):
        name = names[_below(len(names), generator)]
        kind = DAMAGES[name]
        level = _below(len(kind.strengths), generator)
        image = kind.apply(source, target, mask, kind.strengths[level], generator).clamp(0, 1)
        change = (image - target).abs().amax(0)[None, None]
        if float(gaussian_blur(change, SPECK * max(image.shape[-2:])).max()) > VISIBLE:
            return image, name, kind.labels[level]
    return None


def ghost(source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator) -> Image:
    """A share of the source shines through where the edit is."""
    return target + strength * mask * (source - target)


def bent(source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator) -> Image:
    """What the edit drew is bent, by `strength` of the longer side; where it drew nothing, all stays."""
    if float((mask * _detail(target)).max()) < DETAIL:
        return target
    return target + mask * (_bend(target, strength, generator) - target)


def stained(source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator) -> Image:
    """Another colour, clearly unlike its own, covers what the edit drew, by the share `strength`."""
    where = mask * (target - source).abs().amax(0, keepdim=True).mul(10).clamp(0, 1)
    own = (where * target).sum((1, 2), keepdim=True) / where.sum().clamp_min(1e-6)
    colours = [_colour(generator) for _ in range(TRIES)]
    unlike = [colour for colour in colours if float((colour - own).norm()) > UNLIKE]
    return target + strength * where * (unlike[0] - target) if unlike else target


def moved_in_part(
    source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator
) -> Image:
    """What was to move stays where it was beside its copy, or is gone and drawn nowhere."""
    places = edited_places(mask)
    if moved(source, target, places) is None:
        return target
    unchanged = places[_below(len(places), generator)]
    return target + strength * unchanged * mask * (source - target)


def recoloured(
    source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator
) -> Image:
    """What the edit drew has another colour, clearly unlike its own and that of the source there."""
    places = edited_places(mask)
    found = moved(source, target, places)
    if found is None and len(places) != 1:
        return target
    place = places[0] if found is None else found[1]
    shape = mask * drawn(target, place)[None].div(DRAWN).clamp(0, 1)
    if float(shape.max()) < 1:
        return target
    weight = shape.sum().clamp_min(1e-6)
    own, old = ((shape * image).sum((1, 2), keepdim=True) / weight for image in (target, source))
    colours = [_colour(generator) for _ in range(TRIES)]
    unlike = [c for c in colours if min(float((c - own).norm()), float((c - old).norm())) > UNLIKE]
    return target + strength * shape * (unlike[0] - target) if unlike else target


def bent_elsewhere(
    source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator
) -> Image:
    """Something that nobody asked for is bent."""
    return target + _elsewhere(target, mask, generator) * (_bend(target, strength, generator) - target)


def stained_elsewhere(
    source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator
) -> Image:
    """A spot of another colour lies where nobody asked for a change."""
    return target + strength * _elsewhere(target, mask, generator) * (_colour(generator) - target)


def faded_elsewhere(
    source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator
) -> Image:
    """Something that nobody asked for fades into the median colour of the image."""
    most = target.flatten(1).median(1).values[:, None, None]
    return target + strength * _elsewhere(target, mask, generator) * (most - target)


def drifted(source: Image, target: Image, mask: Mask, strength: float, generator: torch.Generator) -> Image:
    """The colours of the whole image drift, here one way, there another."""
    return target + strength * _waves(3, *target.shape[-2:], generator, BUMPS // 2)


# Labels as a person would give them who looks at a sheet of each strength.
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
    """The image seen through uneven glass, displaced by about `strength` of its longer side."""
    h, w = image.shape[-2:]
    side = max(h, w)
    shift = _waves(2, h, w, generator, BUMPS) * strength * side
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    x = (columns + shift[0] + 0.5) * 2 / w - 1
    y = (rows + shift[1] + 0.5) * 2 / h - 1
    grid = torch.stack([x, y], -1)[None]
    return F.grid_sample(image[None], grid, padding_mode="border", align_corners=False)[0]


def _waves(channels: int, h: int, w: int, generator: torch.Generator, bumps: int) -> Float[Tensor, "c h w"]:
    """Smooth noise around 0, of standard deviation below 1."""
    grain = torch.randn(1, channels, bumps, bumps, generator=generator)
    return F.interpolate(grain, (h, w), mode="bicubic", align_corners=False)[0]


def _colour(generator: torch.Generator) -> Float[Tensor, "3 1 1"]:
    """Any colour, those at the ends of a channel more often."""
    return torch.rand(3, 1, 1, generator=generator).sub(0.5).mul(1.6).add(0.5).clamp(0, 1)


def _spot(mask: Mask, generator: torch.Generator) -> Mask:
    """A soft spot around a place that the mask allows, as likely as it is bright there."""
    h, w = mask.shape[-2:]
    chances = mask.flatten() + 1e-6
    place = int(torch.multinomial(chances, 1, generator=generator))
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    far = (rows - place // w) ** 2 + (columns - place % w) ** 2
    return torch.exp(-far / (2 * (SPOT * max(h, w)) ** 2))[None]


def _elsewhere(target: Image, mask: Mask, generator: torch.Generator) -> Mask:
    """A spot that keeps off the edit, where there is something to see rather than plain background."""
    side = max(mask.shape[-2:])
    away = 1 - gaussian_blur(mask[None], 0.05 * side)[0]
    away = away * (mask < NO_CHANGE)
    return _spot(away * _detail(target), generator) * away


def _detail(image: Image) -> Mask:
    """How much a place differs from what is around it."""
    around = gaussian_blur(image[None], 0.05 * max(image.shape[-2:]))[0]
    return (image - around).abs().amax(0, keepdim=True)


def _below(n: int, generator: torch.Generator) -> int:
    return int(torch.randint(n, (), generator=generator))
