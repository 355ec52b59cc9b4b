"""Renders scenes: anti-aliased shapes over plain, textured or photographic backgrounds,
a whole batch at a time.
"""

import functools
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from rewardedit.shapes.scenes import CELLS, CENTRES, Scenes
from rewardedit.shapes.vocabulary import (
    BACKDROPS,
    BACKGROUNDS,
    COLOURS,
    INSIDE_RADIUS,
    RADII,
    SHAPES,
    SIZE,
)

PHOTOGRAPHS = ("astronaut", "coffee", "chelsea", "rocket", "immunohistochemistry", "motorcycle")
PHOTOGRAPHS_FOLDER = Path(__file__).parent / "assets" / "photographs"
FADED = (0.28, 0.5)  # lowest value of a photographic backdrop, and the span above it
LEVELS = 2**15 - 1  # largest value in the photographs' files
PATCH = 24  # pixels a side: holds the largest object anywhere in its cell
# Corner of each cell's patch, (x, y): around the cell's centre, and inside the image.
ORIGINS = (CENTRES.round() - PATCH // 2).clip(0, SIZE - PATCH).astype(int).tolist()
OBJECT_RGB = torch.tensor(list(COLOURS.values())) / 255
BACKGROUND_RGB = torch.tensor(list(BACKGROUNDS.values())) / 255


def _half_planes(
    x: Tensor, y: Tensor, r: Tensor, edges: list[tuple[float, float]], distance: float
) -> Tensor:
    return functools.reduce(torch.maximum, (nx * x + ny * y - distance * r for nx, ny in edges))


def _star(x: Tensor, y: Tensor, r: Tensor) -> Tensor:
    # Fold the plane into one tenth, where a star is a half-plane through an outer tip (1, 0) and an inner
    # corner.
    sector = np.pi / 5
    angle = torch.remainder(torch.atan2(x, -y) + sector, 2 * sector) - sector
    rho = torch.sqrt(x * x + y * y + 1e-9)
    px = rho * angle.abs().cos()
    py = rho * angle.abs().sin()
    tip = (1.1, 0.0)
    inner = (0.55 * np.cos(sector), 0.55 * np.sin(sector))
    nx = inner[1] - tip[1]
    ny = tip[0] - inner[0]
    length = float(np.hypot(nx, ny))
    return ((px - tip[0] * r) * nx + py * ny) / length


def _signed_distance(shape: str, x: Tensor, y: Tensor, r: Tensor) -> Tensor:
    """Signed distance in pixels, negative inside, exact except at corners. y grows downwards."""
    if shape == "circle":
        return torch.sqrt(x * x + y * y + 1e-9) - 0.97 * r
    if shape == "square":
        return torch.maximum(x.abs(), y.abs()) - 0.85 * r
    if shape == "triangle":
        up = [(0.0, 1.0), (0.894, -0.447), (-0.894, -0.447)]
        return _half_planes(x, y, r, up[1:], 0.45).maximum(y - 0.86 * r)
    if shape == "diamond":
        return (x.abs() + y.abs()) * 0.7071 - 0.76 * r
    if shape == "cross":
        wide = torch.maximum(x.abs() - 0.97 * r, y.abs() - 0.36 * r)
        return torch.minimum(wide, torch.maximum(x.abs() - 0.36 * r, y.abs() - 0.97 * r))
    return _star(x, y, r)


def coverage(shape: Tensor, x: Tensor, y: Tensor, radius: Tensor) -> Tensor:
    """Share (n, h, w) of each pixel that an object covers.

    `shape` (n,) indexes SHAPES; `x`, `y` (n, h, w) are pixel centres relative to the object's,
    `radius` (n,) in pixels.
    """
    distance = torch.empty_like(x)
    for i, name in enumerate(SHAPES):
        rows = shape == i
        if rows.any():
            distance[rows] = _signed_distance(name, x[rows], y[rows], radius[rows][:, None, None])
    return (0.5 - distance).clamp(0, 1)


@functools.cache
def photographs() -> tuple[Tensor, ...]:
    """Colour photographs, (3, h, w), shorter side 160 pixels;
    LICENSES.txt next to their files names their sources.

    Their contrast is lowered to [0.28, 0.78], so that every colour of an object stands out against them.
    """
    low, span = FADED
    out = []
    for name in PHOTOGRAPHS:
        with Image.open(PHOTOGRAPHS_FOLDER / f"{name}.png") as file:
            levels = np.asarray(file, dtype=np.float32) / LEVELS  # red, green and blue, one below the other
        out.append(torch.from_numpy(low + span * levels.reshape(3, -1, levels.shape[1])))
    return tuple(out)


def _photo(seed: int) -> Tensor:
    image = photographs()[seed % len(photographs())]
    seed //= len(photographs())
    top = seed % (image.shape[1] - SIZE)
    left = seed // (image.shape[1] - SIZE) % (image.shape[2] - SIZE)
    return image[:, top : top + SIZE, left : left + SIZE]


def _texture(kind: int, seed: int) -> Tensor:
    """Texture (64, 64) in {0, 1}: 1 for the darker of the two tones."""
    period = 6 + seed % 5
    phase = seed // 5 % 16
    y, x = torch.meshgrid(torch.arange(SIZE) + phase, torch.arange(SIZE) + phase // 2, indexing="ij")
    if kind == 0:
        return ((x + y) % period < period // 2).float()
    if kind == 1:
        return ((x // period + y // period) % 2).float()
    return (((x % period - period / 2) ** 2 + (y % period - period / 2) ** 2) < (period / 3.2) ** 2).float()


def render_backgrounds(scenes: Scenes) -> Float[Tensor, "b 3 64 64"]:
    """Renders the scenes without their objects."""
    image = BACKGROUND_RGB[scenes.background][:, :, None, None].expand(-1, -1, SIZE, SIZE).contiguous()
    for i in np.flatnonzero(scenes.backdrop == BACKDROPS.index("textured")):
        image[i] *= 1 - 0.14 * _texture(int(scenes.texture[i]), int(scenes.backdrop_seed[i]))
    for i in np.flatnonzero(scenes.backdrop == BACKDROPS.index("photo")):
        image[i] = _photo(int(scenes.backdrop_seed[i]))
    return image


def object_coverage(scenes: Scenes, inner: bool = False) -> list[tuple[int, np.ndarray, Tensor]]:
    """For each cell: (cell, rows that hold an object there, their coverage (n, PATCH,
    PATCH) at ORIGINS[cell]); with `inner`, those of the objects inside others.
    """
    row, cell = np.nonzero(scenes.has_inner if inner else scenes.present)
    centre = torch.from_numpy(CENTRES[cell] + scenes.offset[row, cell])
    origin = torch.tensor(ORIGINS, dtype=torch.float32)[cell]
    grid = torch.arange(PATCH, dtype=torch.float32) + 0.5
    x = (grid + (origin - centre)[:, :1])[:, None, :].expand(-1, PATCH, PATCH)
    y = (grid + (origin - centre)[:, 1:])[:, :, None].expand(-1, PATCH, PATCH)
    shape = (scenes.inner_shape if inner else scenes.shape)[row, cell]
    radius = torch.full((len(row),), INSIDE_RADIUS) if inner else torch.tensor(RADII)[scenes.size[row, cell]]
    alpha = coverage(torch.from_numpy(shape), x, y, radius)
    return [(c, row[cell == c], alpha[torch.from_numpy(cell == c)]) for c in range(CELLS)]


def paint(image: Tensor, scenes: Scenes) -> Tensor:
    """Draws the objects of `scenes` over `image` (b, 3, 64, 64), in place, and returns it."""
    layers = [(scenes.colour, object_coverage(scenes))]
    if scenes.has_inner.any():
        layers.append((scenes.inner_colour, object_coverage(scenes, inner=True)))
    for colours, objects in layers:
        for cell, rows, alpha in objects:
            if len(rows):
                x0, y0 = ORIGINS[cell]
                patch = image[rows, :, y0 : y0 + PATCH, x0 : x0 + PATCH]
                colour = OBJECT_RGB[colours[rows, cell]][:, :, None, None]
                image[rows, :, y0 : y0 + PATCH, x0 : x0 + PATCH] = patch.lerp(
                    colour.expand_as(patch), alpha[:, None].expand_as(patch)
                )
    return image


def render(scenes: Scenes) -> Float[Tensor, "b 3 64 64"]:
    """Renders the scenes: RGB in [0, 1], rounded to the 256 levels of a file."""
    return paint(render_backgrounds(scenes), scenes).mul_(255).round_().div_(255)


def object_masks(scenes: Scenes, cells: np.ndarray, inner: bool = False) -> Float[Tensor, "b 1 64 64"]:
    """Masks of the pixels that the object in `cells` (b,) of each scene touches; with `inner`, the object
    inside it; 0 everywhere if there is none or the cell is -1.
    """
    mask = torch.zeros(len(scenes), 1, SIZE, SIZE)
    for cell, rows, alpha in object_coverage(scenes, inner):
        chosen = cells[rows] == cell
        x0, y0 = ORIGINS[cell]
        mask[rows[chosen], 0, y0 : y0 + PATCH, x0 : x0 + PATCH] = (
            alpha[torch.from_numpy(chosen)] > 0
        ).float()
    return mask


def object_interiors(scenes: Scenes) -> Float[Tensor, "b 1 64 64"]:
    """Masks of the pixels that an object covers fully, so that no background shows through."""
    inside = torch.zeros(len(scenes), 1, SIZE, SIZE)
    for cell, rows, alpha in object_coverage(scenes):
        x0, y0 = ORIGINS[cell]
        patch = inside[rows, 0, y0 : y0 + PATCH, x0 : x0 + PATCH]
        inside[rows, 0, y0 : y0 + PATCH, x0 : x0 + PATCH] = patch.maximum((alpha == 1).float())
    return inside
