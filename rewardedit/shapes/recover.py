"""Finds objects in an image of the shapes world, for the oracle."""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rewardedit.shapes.render import (
    OBJECT_RGB,
    ORIGINS,
    PATCH,
    coverage,
    object_masks,
)
from rewardedit.shapes.scenes import CELLS, CENTRES, Scenes
from rewardedit.shapes.vocabulary import CELL, SHAPES, SIZE

RADIUS_LIMITS = (2.5, 11.5)  # least and largest radius of an object, in pixels
CONTRAST = 1.5  # factor by which the share of a colour is spread around a half


@dataclass(frozen=True)
class Objects:
    """n objects to search for, and the measurements of each."""

    row: Tensor  # (n,) index of the image
    shape: Tensor  # (n,) the expected shape
    alpha: Tensor  # (n, 24, 24) the expected shape at the recovered size and place
    origin: Tensor  # (n, 2) corner of the patch, (x, y) in pixels
    centre: Tensor  # (n, 2)
    radius: Tensor  # (n,)
    surely: Tensor  # (n,) its radius by the pixels that clearly show it
    perhaps: Tensor  # (n,) its radius by the pixels that show it at all
    fit: Tensor  # (n,) in [0, 1], 1 for the expected shape and no other, sharp and whole
    kept: Tensor  # (n,) in [0, 1], as `fit`, but lenient: a damaged object is still an object
    clean: Tensor  # (n,) in [0, 1], 1 for a sharp and whole object of any shape


def ramp(value: Tensor, bad: float, good: float) -> Tensor:
    """Linear ramp: 0 at `bad` and beyond, 1 at `good` and beyond."""
    return ((value - bad) / (good - bad)).clamp(0, 1)


def grid(origin: Tensor) -> tuple[Tensor, Tensor]:
    """Pixel indices (n, 24, 24) of the patches, x and y."""
    line = torch.arange(PATCH)
    return (origin[:, :1] + line)[:, None, :].expand(-1, PATCH, -1), (origin[:, 1:] + line)[
        :, :, None
    ].expand(-1, -1, PATCH)


def pixel_centres(origin: Tensor) -> tuple[Tensor, Tensor]:
    """Centres (n, 24, 24) of the patches' pixels, x and y."""
    x, y = grid(origin)
    return x + 0.5, y + 0.5


def patch(image: Tensor, row: Tensor, origin: Tensor) -> Tensor:
    """Patches (n, c, 24, 24) cut out of images (b, c, 64, 64)."""
    x, y = grid(origin)
    return image[row[:, None, None], :, y, x].permute(0, 3, 1, 2)


def draw(shape: Tensor, centre: Tensor, radius: Tensor, origin: Tensor) -> Tensor:
    x, y = grid(origin)
    return coverage(shape, x + 0.5 - centre[:, 0, None, None], y + 0.5 - centre[:, 1, None, None], radius)


def colour_share(image: Tensor, background: Tensor, colour: Tensor) -> tuple[Tensor, Tensor]:
    """Share of each pixel that shows `colour` (n, 3) over `background`: as perceived, with shares near 0 or 1
    taken for 0 or 1 and off-colour pixels discounted; and as measured.
    """
    colour = colour[:, :, None, None]
    span = colour - background
    change = image - background
    raw = ((change * span).sum(1) / (span * span).sum(1).clamp_min(0.05)).clamp(0, 1)
    off = (change - raw[:, None] * span).norm(dim=1)
    seen = ((raw - 0.5) * CONTRAST + 0.5).clamp(0, 1)
    return seen * ramp(off, 0.32, 0.15), raw


@functools.cache
def _unit_shapes() -> tuple[Tensor, Tensor, Tensor]:
    """Area, mean offset of the pixels (x, y) and length of the outline of each shape at radius 1."""
    r = 60.0
    n = 160
    line = torch.arange(n) + 0.8 - n / 2  # off the pixel raster, so that straight outlines are counted too
    y, x = torch.stack(torch.meshgrid(line, line, indexing="ij"))[:, None].repeat(1, len(SHAPES), 1, 1)
    alpha = coverage(torch.arange(len(SHAPES)), x, y, torch.full((len(SHAPES),), r))
    area = alpha.sum((1, 2))
    mean = torch.stack([(alpha * x).sum((1, 2)), (alpha * y).sum((1, 2))], dim=1) / area[:, None]
    outline = ((alpha > 0) & (alpha < 1)).float().sum((1, 2))
    return area / r**2, mean / r, outline / r


def recover(
    image: Tensor,
    background: Tensor,
    row: Tensor,
    shape: Tensor,
    colour: Tensor,
    origin: Tensor,
    window: Tensor,
) -> Objects:
    """Recovers size, place, shape and cleanness of the object of the given colour in each `window`
    (n, 24, 24).
    """
    image_patch = patch(image, row, origin)
    ground = patch(background, row, origin)
    share, raw = colour_share(image_patch, ground, OBJECT_RGB[colour])
    target = OBJECT_RGB[colour][:, :, None, None]
    share = share * window
    raw = raw * window
    x, y = pixel_centres(origin)
    area = share.sum((1, 2))
    weight = share**2  # faint far pixels must not pull the centre
    total = weight.sum((1, 2)).clamp_min(1e-6)
    centroid = torch.stack([(weight * x).sum((1, 2)), (weight * y).sum((1, 2))], dim=1) / total[:, None]
    unit_area, unit_mean, outline = _unit_shapes()

    overlaps = []
    for candidate in range(len(SHAPES)):
        radius = (area / unit_area[candidate]).sqrt().clamp(*RADIUS_LIMITS)
        kind = torch.full_like(row, candidate)
        alpha = draw(kind, centroid - unit_mean[candidate] * radius[:, None], radius, origin) * window
        overlaps.append(
            torch.minimum(share, alpha).sum((1, 2)) / torch.maximum(share, alpha).sum((1, 2)).clamp_min(1e-6)
        )

    overlap = torch.stack(overlaps, dim=1)
    wanted = overlap.gather(1, shape[:, None])[:, 0]
    best = overlap.amax(1)
    radius = (area / unit_area[shape]).sqrt().clamp(*RADIUS_LIMITS)
    centre = centroid - unit_mean[shape] * radius[:, None]
    alpha = draw(shape, centre, radius, origin)

    # Soft edges: pixels between the two colours, on and around the object, relative to its outline. A person
    # sees edges by their lightness; colour that bleeds over them, as in JPEG, hardly shows.
    around = (draw(shape, centre, radius + 2, origin) > 0) & (window > 0)
    light = torch.tensor([0.3, 0.59, 0.11])[:, None, None]
    span = ((target - ground) * light).sum(1)
    lightness = ((image_patch - ground) * light).sum(1) / torch.where(span.abs() < 0.1, torch.nan, span)
    values = torch.stack([raw, lightness.nan_to_num(0.5)])
    between = ((values > 0.2) & (values < 0.8) & around).float().sum((2, 3))
    soft = between.amin(0) / (outline[shape] * radius)
    sharp = ramp(soft, 2.5, 1.3)

    # Opacity and holes: distance from the object's colour to the mean of the pixels that it fully covers.
    inside = (alpha == 1).float() * window
    off = ((image_patch - target) * inside[:, None]).sum((2, 3)) / inside.sum((1, 2)).clamp_min(1)[:, None]
    contrast = ((target - ground) * inside[:, None]).sum((2, 3)) / inside.sum((1, 2)).clamp_min(1)[:, None]
    off = off.norm(dim=1) / contrast.norm(dim=1).clamp_min(0.35)
    solid = ramp(off, 0.5, 0.04)
    whole = wanted - 2 * (best - wanted)
    return Objects(
        row=row,
        shape=shape,
        alpha=alpha,
        origin=origin,
        centre=centre,
        radius=radius,
        surely=((share > 0.68).float().sum((1, 2)) / unit_area[shape]).sqrt(),
        perhaps=((raw > 0.38).float().sum((1, 2)) / unit_area[shape]).sqrt(),
        fit=_least(ramp(whole, 0.66, 0.82), sharp, solid),
        kept=_least(ramp(whole, 0.3, 0.66), ramp(soft, 3.2, 1.7), ramp(off, 0.6, 0.33)),
        clean=_least(ramp(best, 0.66, 0.82), sharp, solid),
    )


def _least(*parts: Tensor) -> Tensor:
    """Least of several values: an object is as good as its worst defect."""
    return torch.stack(parts).amin(0)


def seen_background(image: Tensor, wanted: Tensor) -> Tensor:
    """The background behind the objects: the expected one,
    or one even colour if most of the image has that instead.
    """
    even = even_colour(image).expand_as(image)
    off = (image - even).norm(dim=1).flatten(1)
    plain = is_plain(wanted)
    alike = torch.where(plain, (off < 0.08).float().mean(1) > 0.5, (off < 0.04).float().mean(1) > 0.75)
    return torch.where(alike[:, None, None, None], even, wanted)


def even_colour(image: Tensor) -> Tensor:
    """Median (b, 3, 1, 1) of each channel."""
    return image.flatten(2).median(dim=2).values[:, :, None, None]


def is_plain(background: Tensor) -> Tensor:
    """(b,) True for backgrounds of a single colour."""
    return background.flatten(2).std(2).amax(1) < 0.01


def fine_noise(error: Tensor) -> tuple[Tensor, Tensor]:
    """`error` (b, 3, h, w) averaged over 3 × 3 pixels, and the standard deviation (b,) of the normal noise
    that this removes; its estimate by a median ignores objects, edges and specks.
    """
    smooth = torch.nn.functional.avg_pool2d(error, 3, 1, 1, count_include_pad=False)
    return smooth, (error - smooth).abs().flatten(1).median(dim=1).values / 0.63


def brightness(image: Tensor, wanted: Tensor) -> Tensor:
    """Brightness (b,) of the image relative to a plain expected background; 1 if it differs otherwise."""
    even = even_colour(image)
    ground = wanted[:, :, :1, :1]
    factor = (even * ground).sum(1, keepdim=True) / (ground * ground).sum(1, keepdim=True)
    same_hue = (even - factor * ground).norm(dim=1).flatten() < 0.04
    factor = factor.flatten()
    applies = is_plain(wanted) & same_hue & (factor > 0.5) & (factor < 1.2)
    return torch.where(applies, factor, torch.ones_like(factor))


def cover(objects: Objects, b: int, grow: float, only: Tensor | None = None) -> Tensor:
    """(b, 64, 64): 1 where any of the objects (those in `only`), grown by `grow` pixels, touches a pixel."""
    canvas = torch.zeros(b, SIZE, SIZE)
    x, y = grid(objects.origin)
    alpha = draw(objects.shape, objects.centre, objects.radius + grow, objects.origin)
    alpha = alpha if only is None else alpha * only[:, None, None]
    canvas.index_put_((objects.row[:, None, None].expand_as(x), y, x), alpha, accumulate=True)
    return (canvas > 0).float()


def search(
    image: Tensor, background: Tensor, taken: Tensor, row: Tensor, colour: Tensor
) -> tuple[Tensor, Tensor]:
    """Finds the largest amount of a colour outside the objects in `taken`: patch origins,
    and their windows.
    """
    free = 1 - taken[row]
    share = ramp(colour_share(image[row], background[row], OBJECT_RGB[colour])[0], 0.35, 0.75) * free
    heaped = torch.nn.functional.avg_pool2d(share[:, None], 17, 1, 8)[:, 0].flatten(1).argmax(1)
    centre = torch.stack([heaped % SIZE, heaped // SIZE], dim=1).float() + 0.5
    for _ in range(2):
        origin = (centre.round().long() - PATCH // 2).clamp(0, SIZE - PATCH)
        weight = patch(share[:, None], torch.arange(len(row)), origin)[:, 0]
        x, y = pixel_centres(origin)
        total = weight.sum((1, 2))[:, None]
        moved = torch.stack([(weight * x).sum((1, 2)), (weight * y).sum((1, 2))], dim=1) / total.clamp_min(
            1e-6
        )
        centre = torch.where(total > 1, moved, centre)
    origin = (centre.round().long() - PATCH // 2).clamp(0, SIZE - PATCH)
    return origin, patch(free[:, None], torch.arange(len(row)), origin)[:, 0]


def in_place(after: Scenes, keep: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The objects of the cells in `keep` (b, 9): row, cell, centre, patch origin and window."""
    row, cell = map(torch.from_numpy, np.nonzero(keep))
    middle = torch.from_numpy(CENTRES)[cell]
    origin = torch.tensor(ORIGINS)[cell]
    x, y = pixel_centres(origin)
    reach = CELL / 2 + 0.75
    window = ((x - middle[:, :1, None]).abs() < reach) & ((y - middle[:, 1:, None]).abs() < reach)
    centre = middle + torch.from_numpy(after.offset)[row, cell]
    return row, cell, centre, origin, window.float()


def better(one: Objects, other: Objects) -> Objects:
    """Picks for each object the result with the better fit."""
    first = one.fit >= other.fit
    fields = {}
    for name, value in vars(one).items():
        fields[name] = torch.where(first.view(-1, *(1,) * (value.ndim - 1)), value, getattr(other, name))
    return Objects(**fields)


def fill_hosts(image: Tensor, scenes: Scenes, inner: np.ndarray) -> Tensor:
    """The image with the objects inside others (those of the cells in `inner`, (b, 9)) painted over in their
    hosts' colours, so that a host is not judged by the object on it.
    """
    if not inner.any():
        return image
    image = image.clone()
    for cell in range(CELLS):
        region = object_masks(scenes, np.where(inner[:, cell], cell, -1), inner=True)
        region = torch.nn.functional.max_pool2d(region, 3, 1, 1)
        colour = OBJECT_RGB[scenes.colour[:, cell]][:, :, None, None]
        image = torch.where(region > 0, colour, image)
    return image


def background_damage(error: Tensor, spare: Tensor) -> tuple[Tensor, Tensor]:
    """Damage to the background: `error` (b, 3, 64, 64) against the expected background, on the pixels of
    `spare` (b, 64, 64), where no object is.

    Returns:
        The area in pixels that stands out, less three, and the error of the overall colour, each (b,).
    """
    free = spare[:, None] > 0
    colour = torch.where(free, error, torch.nan).flatten(2).nanmedian(dim=2).values.nan_to_num()
    error = torch.where(free, error - colour[:, :, None, None], torch.zeros(()))
    smooth, _ = fine_noise(error)
    seen = ramp(smooth.norm(dim=1), 0.08, 0.25)
    return ((seen * spare).sum((1, 2)) - 3).clamp_min(0), colour.norm(dim=1)
