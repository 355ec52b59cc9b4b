"""The exact judge of the shapes world: it recovers the scene from an image and rates it by the instruction.

For evaluation only. It knows the truth, so no training signal may come from it, and it is not a `Scorer`.

How it looks at an image: every object that should be there is searched for in its place (an added or moved
one all over the image). The share of each pixel that shows the object's colour is measured between the known
background and that colour; its area and centre give the object's size and place; the six shapes, drawn at
that size and place, are compared with it. What no object explains is damage to the background.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.data.shapes.render import OBJECT_RGB, ORIGINS, PATCH, coverage, render_backgrounds
from rewardedit.data.shapes.scenes import CENTRES, Edits, Scenes
from rewardedit.data.shapes.vocabulary import CELL, EDIT_TYPES, RADII, SHAPES, SIZE
from rewardedit.data.shapes.world import ShapesBatch


@dataclass(frozen=True)
class Rating:
    """Four ratings of b edits, each (b,) in [0, 10], higher is better.

    score = alignment × (0.25 + 0.75 × consistency / 10 × quality / 10).
    """

    score: Float[Tensor, " b"]
    alignment: Float[Tensor, " b"]  # the asked change, seen in the image
    consistency: Float[Tensor, " b"]  # the rest of the scene survived
    quality: Float[Tensor, " b"]  # objects are clean and whole, the background is clean


@dataclass(frozen=True)
class _Objects:
    """n objects to look for, and what was found of each."""

    row: Tensor  # (n,) which image
    shape: Tensor  # (n,) the wanted shape
    alpha: Tensor  # (n, 24, 24) the wanted shape at the recovered size and place
    origin: Tensor  # (n, 2) where the patch lies, (x, y) pixels
    centre: Tensor  # (n, 2)
    radius: Tensor  # (n,)
    surely: Tensor  # (n,) its radius by the pixels that clearly show it
    perhaps: Tensor  # (n,) its radius by the pixels that show it at all
    fit: Tensor  # (n,) in [0, 1], the wanted shape and no other, sharp and whole
    clean: Tensor  # (n,) in [0, 1], sharp and whole, whatever its shape


def _ramp(value: Tensor, bad: float, good: float) -> Tensor:
    """0 at `bad` and beyond, 1 at `good` and beyond, straight between."""
    return ((value - bad) / (good - bad)).clamp(0, 1)


def _grid(origin: Tensor) -> tuple[Tensor, Tensor]:
    """Pixel indices (n, 24, 24) of the patches, x and y."""
    line = torch.arange(PATCH)
    return (origin[:, :1] + line)[:, None, :].expand(-1, PATCH, -1), (origin[:, 1:] + line)[
        :, :, None
    ].expand(-1, -1, PATCH)


def _patch(image: Tensor, row: Tensor, origin: Tensor) -> Tensor:
    """(n, c, 24, 24) cut out of image (b, c, 64, 64)."""
    x, y = _grid(origin)
    return image[row[:, None, None], :, y, x].permute(0, 3, 1, 2)


def _draw(shape: Tensor, centre: Tensor, radius: Tensor, origin: Tensor) -> Tensor:
    x, y = _grid(origin)
    return coverage(shape, x + 0.5 - centre[:, 0, None, None], y + 0.5 - centre[:, 1, None, None], radius)


def _share(image: Tensor, background: Tensor, colour: Tensor) -> tuple[Tensor, Tensor]:
    """How much of each pixel shows `colour` (n, 3) over `background`,
    and the same before off-colour pixels are discounted.
    """
    colour = colour[:, :, None, None]
    span = colour - background
    change = image - background
    raw = ((change * span).sum(1) / (span * span).sum(1).clamp_min(0.05)).clamp(0, 1)
    off = (change - raw[:, None] * span).norm(dim=1)
    return raw * _ramp(off, 0.27, 0.12), raw


@functools.cache
def _unit_shapes() -> tuple[Tensor, Tensor, Tensor]:
    """Of each shape with radius 1: area, mean offset of its pixels (x, y), length of its outline."""
    r = 60.0
    n = 160
    line = torch.arange(n) + 0.8 - n / 2  # off the pixel raster, so that straight outlines are counted too
    y, x = (v[None].expand(len(SHAPES), -1, -1) for v in torch.meshgrid(line, line, indexing="ij"))
    alpha = coverage(torch.arange(len(SHAPES)), x.contiguous(), y.contiguous(), torch.full((len(SHAPES),), r))
    area = alpha.sum((1, 2))
    mean = torch.stack([(alpha * x).sum((1, 2)), (alpha * y).sum((1, 2))], dim=1) / area[:, None]
    outline = ((alpha > 0) & (alpha < 1)).float().sum((1, 2))
    return area / r**2, mean / r, outline / r


def _recover(
    image: Tensor,
    background: Tensor,
    row: Tensor,
    shape: Tensor,
    colour: Tensor,
    origin: Tensor,
    window: Tensor,
) -> _Objects:
    """Size, place, shape and cleanness of the object of the given colour that shows inside each `window`
    (n, 24, 24).
    """
    share, raw = _share(_patch(image, row, origin), _patch(background, row, origin), OBJECT_RGB[colour])
    share = share * window
    raw = raw * window
    x, y = (v + 0.5 for v in _grid(origin))
    area = share.sum((1, 2))
    weight = share**2  # faint far pixels must not pull the centre
    total = weight.sum((1, 2)).clamp_min(1e-6)
    centroid = torch.stack([(weight * x).sum((1, 2)), (weight * y).sum((1, 2))], dim=1) / total[:, None]
    unit_area, unit_mean, outline = _unit_shapes()
    overlaps = []
    for candidate in range(len(SHAPES)):
        radius = (area / unit_area[candidate]).sqrt().clamp(3.5, 11.5)
        kind = torch.full_like(row, candidate)
        alpha = _draw(kind, centroid - unit_mean[candidate] * radius[:, None], radius, origin) * window
        overlaps.append(
            torch.minimum(share, alpha).sum((1, 2)) / torch.maximum(share, alpha).sum((1, 2)).clamp_min(1e-6)
        )
    overlap = torch.stack(overlaps, dim=1)
    wanted = overlap.gather(1, shape[:, None])[:, 0]
    best = overlap.amax(1)
    radius = (area / unit_area[shape]).sqrt().clamp(3.5, 11.5)
    centre = centroid - unit_mean[shape] * radius[:, None]
    soft = ((raw > 0.2) & (raw < 0.8)).float().sum((1, 2)) / (outline[shape] * radius)
    sharp = _ramp(soft, 2.4, 1.5)
    return _Objects(
        row=row,
        shape=shape,
        alpha=_draw(shape, centre, radius, origin),
        origin=origin,
        centre=centre,
        radius=radius,
        surely=((share > 0.62).float().sum((1, 2)) / unit_area[shape]).sqrt(),
        perhaps=((raw > 0.38).float().sum((1, 2)) / unit_area[shape]).sqrt(),
        fit=_ramp(wanted - 2 * (best - wanted), 0.72, 0.85) * sharp,
        clean=_ramp(best, 0.72, 0.85) * sharp,
    )


def _seen_background(image: Tensor, wanted: Tensor) -> Tensor:
    """What the objects stand on: the wanted background,
    or one even colour where most of the image has that instead.
    """
    even = image.flatten(2).median(dim=2).values[:, :, None, None].expand_as(image)
    off = (image - even).norm(dim=1).flatten(1)
    plain = wanted.flatten(2).std(2).amax(1) < 0.01
    alike = torch.where(plain, (off < 0.08).float().mean(1) > 0.5, (off < 0.04).float().mean(1) > 0.75)
    return torch.where(alike[:, None, None, None], even, wanted)


def _cover(objects: _Objects, b: int, grow: float, only: Tensor | None = None) -> Tensor:
    """(b, 64, 64): 1 where any of the objects (those in `only`), grown by `grow` pixels, touches a pixel."""
    canvas = torch.zeros(b, SIZE, SIZE)
    x, y = _grid(objects.origin)
    alpha = _draw(objects.shape, objects.centre, objects.radius + grow, objects.origin)
    alpha = alpha if only is None else alpha * only[:, None, None]
    canvas.index_put_((objects.row[:, None, None].expand_as(x), y, x), alpha, accumulate=True)
    return (canvas > 0).float()


def _search(
    image: Tensor, background: Tensor, taken: Tensor, row: Tensor, colour: Tensor
) -> tuple[Tensor, Tensor]:
    """Where the most of a colour lies that the objects in `taken` do not account for: patch origins,
    and their windows.
    """
    free = 1 - taken[row]
    share = _ramp(_share(image[row], background[row], OBJECT_RGB[colour])[0], 0.35, 0.75) * free
    heaped = torch.nn.functional.avg_pool2d(share[:, None], 17, 1, 8)[:, 0].flatten(1).argmax(1)
    centre = torch.stack([heaped % SIZE, heaped // SIZE], dim=1).float() + 0.5
    for _ in range(2):
        origin = (centre.round().long() - PATCH // 2).clamp(0, SIZE - PATCH)
        weight = _patch(share[:, None], torch.arange(len(row)), origin)[:, 0]
        x, y = (v + 0.5 for v in _grid(origin))
        total = weight.sum((1, 2))[:, None]
        moved = torch.stack([(weight * x).sum((1, 2)), (weight * y).sum((1, 2))], dim=1) / total.clamp_min(
            1e-6
        )
        centre = torch.where(total > 1, moved, centre)
    origin = (centre.round().long() - PATCH // 2).clamp(0, SIZE - PATCH)
    return origin, _patch(free[:, None], torch.arange(len(row)), origin)[:, 0]


def _in_place(after: Scenes, keep: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The objects of the cells in `keep` (b, 9): row, cell, centre, patch origin and window."""
    row, cell = (torch.from_numpy(v) for v in np.nonzero(keep))
    middle = torch.from_numpy(CENTRES)[cell]
    origin = torch.tensor(ORIGINS)[cell]
    x, y = (v + 0.5 for v in _grid(origin))
    reach = CELL / 2 + 0.75
    window = ((x - middle[:, :1, None]).abs() < reach) & ((y - middle[:, 1:, None]).abs() < reach)
    centre = middle + torch.from_numpy(after.offset)[row, cell]
    return row, cell, centre, origin, window.float()


class ShapesOracle:
    """Rates edits of the shapes world as an exact person would; the module's docstring says how."""

    @torch.no_grad()
    def rate(self, samples: ShapesBatch, edited: Float[Tensor, "b 3 64 64"]) -> Rating:
        """Ratings of `edited` (RGB in [0, 1]) as edits of `samples`, 0–10 each.

        Raises:
            ValueError: if `edited` does not hold one 64×64 image for each sample.
        """
        if edited.shape != samples.source.shape:
            raise ValueError(
                f"edited: expected {tuple(samples.source.shape)}, one image a sample; got "
                f"{tuple(edited.shape)}"
            )
        parts = [
            self._rate(
                samples.before[i : i + 256],
                samples.after[i : i + 256],
                samples.edits[i : i + 256],
                edited[i : i + 256],
            )
            for i in range(0, len(samples), 256)
        ]
        return Rating(*(torch.cat(values) * 10 for values in zip(*parts, strict=True)))

    def _rate(
        self, before: Scenes, after: Scenes, edits: Edits, edited: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        image = edited.detach().float().cpu().clamp(0, 1)
        b = len(image)
        rows = np.arange(len(image))
        wanted = render_backgrounds(after)
        background = _seen_background(image, wanted)
        kind = {name: torch.from_numpy(edits.edit_type == i) for i, name in enumerate(EDIT_TYPES)}
        drawn = ~(kind["remove"] | kind["background"])
        keep = after.present.copy()
        keep[rows[drawn.numpy()], edits.to_cell[drawn.numpy()]] = False

        row, cell, place, origin, window = _in_place(after, keep)
        shape, colour = (torch.from_numpy(v)[row, cell].long() for v in (after.shape, after.colour))
        kept = _recover(image, background, row, shape, colour, origin, window)
        asked = self._asked(image, background, before, after, edits, _cover(kept, b, 1.5))
        # What the asked object accounts for is no part of its neighbours.
        claimed = _cover(asked, b, 1.0, asked.fit > 0.3)
        window = window * (1 - _patch(claimed[:, None], row, origin)[:, 0])
        kept = _recover(image, background, row, shape, colour, origin, window)
        nominal = torch.tensor(RADII)[torch.from_numpy(after.size)[row, cell]]
        near = _ramp((kept.centre - place).norm(dim=1), 4, 1.5)
        survived = kept.fit * near * _ramp((kept.radius / nominal - 1).abs(), 0.3, 0.14)

        alignment = torch.zeros(b)
        alignment[asked.row] = (
            asked.fit
            * self._wanted_size(asked, before, edits)
            * self._wanted_place(asked, before, edits)
            * self._reshaped(image, background, before, edits, asked)
        )
        alignment[kind["remove"]] = 1.0
        alignment *= self._gone(image, background, before, edits, asked)
        alignment = torch.where(kind["background"], self._repainted(image, wanted, before, kept), alignment)

        spare = 1 - torch.maximum(_cover(kept, b, 1.5), _cover(asked, b, 1.5))
        damage = (_ramp((image - wanted).norm(dim=1), 0.1, 0.25) * spare).sum((1, 2))
        ones = torch.ones(b)
        n_kept = torch.from_numpy(keep.sum(1))
        mean_survived = torch.where(
            n_kept > 0, torch.zeros(b).index_add_(0, kept.row, survived) / n_kept.clamp_min(1), ones
        )
        intact = torch.where(kind["background"], ones, 1 / (1 + (damage - 8).clamp_min(0) / 200))
        n_all = n_kept + drawn
        clean = torch.zeros(b).index_add_(0, kept.row, kept.clean).index_add_(0, asked.row, asked.clean)
        quality = torch.where(n_all > 0, clean / n_all.clamp_min(1), ones) / (
            1 + (damage - 8).clamp_min(0) / 800
        )
        consistency = mean_survived**3 * intact
        return alignment * (0.25 + 0.75 * consistency * quality), alignment, consistency, quality

    def _asked(
        self, image: Tensor, background: Tensor, before: Scenes, after: Scenes, edits: Edits, taken: Tensor
    ) -> _Objects:
        """The object that the instruction draws or changes, for the rows that have one."""
        anywhere = np.isin(edits.edit_type, [EDIT_TYPES.index("add"), EDIT_TYPES.index("move")])
        drawn = ~np.isin(edits.edit_type, [EDIT_TYPES.index("remove"), EDIT_TYPES.index("background")])
        row = torch.from_numpy(np.flatnonzero(drawn))
        shape, colour = (torch.from_numpy(v)[row].long() for v in (edits.shape, edits.colour))
        cells = np.zeros((len(edits), 9), dtype=bool)
        cells[np.arange(len(edits)), edits.to_cell] = drawn
        _, _, _, origin, window = _in_place(after, cells)
        free = torch.from_numpy(anywhere)[row]
        if free.any():
            origin = origin.clone()
            window = window.clone()
            origin[free], window[free] = _search(image, background, taken, row[free], colour[free])
        return _recover(image, background, row, shape, colour, origin, window)

    def _wanted_size(self, asked: _Objects, before: Scenes, edits: Edits) -> Tensor:
        """(n,) 1 where the object's size is what was asked, or what it was."""
        row = asked.row.numpy()
        edits = edits[row]
        radii = np.array(RADII, dtype=np.float32)
        is_kind = {name: torch.from_numpy(edits.edit_type == i) for i, name in enumerate(EDIT_TYPES)}
        old_size = before.size[row, edits.cell]
        same = torch.from_numpy(
            radii[np.where(edits.edit_type == EDIT_TYPES.index("add"), edits.size, old_size)]
        )
        ratio = asked.radius / same
        fits = _ramp((ratio - 1).abs(), 0.27, 0.16)
        grows = torch.from_numpy(edits.size > old_size)
        bigger = _ramp(asked.surely / same, 1.18, 1.215) * _ramp(ratio, 2.2, 1.9)
        resized = torch.where(grows, bigger, _ramp(asked.perhaps / same, 0.86, 0.83))
        free = is_kind["add"] & torch.from_numpy(~edits.says_size)
        return torch.where(is_kind["resize"], resized, torch.where(free, _ramp(asked.radius, 3.6, 4.6), fits))

    def _wanted_place(self, asked: _Objects, before: Scenes, edits: Edits) -> Tensor:
        """(n,) 1 where the object is where it was asked to be, or where it was."""
        row = asked.row.numpy()
        edits = edits[row]
        is_kind = {name: torch.from_numpy(edits.edit_type == i) for i, name in enumerate(EDIT_TYPES)}
        outside = (
            ((asked.centre - torch.from_numpy(CENTRES[edits.to_cell])).abs() - CELL / 2).clamp_min(0).amax(1)
        )
        shift = (asked.centre - torch.from_numpy(CENTRES[edits.cell] + before.offset[row, edits.cell])).norm(
            dim=1
        )
        anywhere = is_kind["add"] & torch.from_numpy(~edits.says_place)
        placed = torch.where(is_kind["move"] | is_kind["add"], _ramp(outside, 6, 2.5), _ramp(shift, 6, 3))
        return torch.where(anywhere, torch.ones_like(placed), placed)

    def _reshaped(
        self, image: Tensor, background: Tensor, before: Scenes, edits: Edits, asked: _Objects
    ) -> Tensor:
        """(n,) 1 where a same-coloured new shape has wholly taken the place of the old one;
        1 for the rest.
        """
        row = asked.row.numpy()
        edits = edits[row]
        centre = torch.from_numpy(CENTRES[edits.cell] + before.offset[row, edits.cell])
        old_shape, old_size = (torch.from_numpy(v[row, edits.cell]) for v in (before.shape, before.size))
        old = _draw(old_shape, centre, torch.tensor(RADII)[old_size], asked.origin)
        colour = OBJECT_RGB[edits.colour]
        share = _share(
            _patch(image, asked.row, asked.origin), _patch(background, asked.row, asked.origin), colour
        )[0]
        change = asked.alpha - old
        progress = ((share - old) * change).sum((1, 2)) / change.square().sum((1, 2)).clamp_min(1)
        same = (edits.edit_type == EDIT_TYPES.index("replace")) & (
            edits.colour == before.colour[row, edits.cell]
        )
        return torch.where(torch.from_numpy(same), _ramp(progress, 0.75, 0.9), torch.ones_like(progress))

    def _gone(
        self, image: Tensor, background: Tensor, before: Scenes, edits: Edits, asked: _Objects
    ) -> Tensor:
        """(b,) 1 where nothing is left of the object that was removed, moved, replaced or resized;
        1 for the other kinds.
        """
        b = len(edits)
        row = torch.from_numpy(
            np.flatnonzero(
                ~np.isin(edits.edit_type, [EDIT_TYPES.index("add"), EDIT_TYPES.index("background")])
            )
        )
        cell = torch.from_numpy(edits.cell)[row]
        pick = row.numpy(), edits.cell[row.numpy()]
        centre = torch.from_numpy(CENTRES[pick[1]] + before.offset[pick])
        origin = torch.tensor(ORIGINS)[cell]
        radius = torch.tensor(RADII)[before.size[pick]]
        old = _draw(torch.from_numpy(before.shape[pick]), centre, radius, origin)
        new = _patch(_cover(asked, b, 1.0)[:, None], row, origin)[:, 0]
        region = old * (1 - new)
        there = _patch(background, row, origin)
        contrast = (OBJECT_RGB[before.colour[pick]][:, :, None, None] - there).norm(dim=1).clamp_min(0.2)
        off = (_patch(image, row, origin) - there).norm(dim=1)
        left = torch.maximum(off / contrast, off / 0.3).clamp(0, 1) * region
        area = region.sum((1, 2))
        share = torch.where(area > 6, left.sum((1, 2)) / area.clamp_min(1), torch.zeros_like(area))
        gone = torch.ones(b)
        gone[row] = _ramp(share, 0.4, 0.2)
        return gone

    def _repainted(self, image: Tensor, background: Tensor, before: Scenes, kept: _Objects) -> Tensor:
        """(b,) 1 where the whole background has its new colour."""
        old = render_backgrounds(before)
        spare = 1 - _cover(kept, len(image), 1.5)
        off = (image - background).norm(dim=1)
        distance = off / (old - background).norm(dim=1).clamp_min(0.15)
        done = _ramp(distance, 0.6, 0.35) * _ramp(off, 0.16, 0.1) * spare
        done = done.sum((1, 2)) / spare.sum((1, 2)).clamp_min(1)
        return _ramp(done, 0.6, 0.95)
