"""Pictures that are hard to judge, each with the range of ratings that a person would give it (0–10).

The ranges were written down before the oracle rated any of the pictures. They follow one line of thought: a
person rates what is seen at a glance beside the source. What has to be searched for costs a point or two,
what is seen at once but leaves the edit standing costs half, and an edit that was not carried out rates near
0.
"""

import functools
import io
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from rewardedit.shapes import Shapes, ShapesBatch
from rewardedit.shapes.render import OBJECT_RGB, object_masks, paint, render, render_backgrounds
from rewardedit.shapes.scenes import CELLS, CENTRES, Scenes, without_edited
from rewardedit.shapes.vocabulary import CELL, RADII, SIZE

Make = Callable[[ShapesBatch], Tensor]  # one sample → one image (1, 3, 64, 64)


@dataclass(frozen=True)
class Picture:
    name: str
    edit_type: str
    make: Make
    low: float
    high: float
    objects: int = 3  # of the source
    missed: str = ""  # why the oracle does not rate it so


def fade(share: float) -> Make:
    """`share` of the target over the source."""
    return lambda s: s.source.lerp(s.target, share)


def jpeg(quality: int) -> Make:
    def make(s: ShapesBatch) -> Tensor:
        file = io.BytesIO()
        array = (s.target[0].permute(1, 2, 0) * 255).round().byte().numpy()
        Image.fromarray(array).save(file, "JPEG", quality=quality)
        read = np.asarray(Image.open(file).convert("RGB"), dtype=np.float32) / 255
        return torch.from_numpy(read).permute(2, 0, 1)[None]

    return make


def noise(sigma: float) -> Make:
    generator = torch.Generator().manual_seed(0)
    return lambda s: (s.target + sigma * torch.randn(s.target.shape, generator=generator)).clamp(0, 1)


def blur(sigma: float) -> Make:
    def make(s: ShapesBatch) -> Tensor:
        k = int(4 * sigma) + 1
        line = torch.exp(-(torch.arange(-k, k + 1.0) ** 2) / (2 * sigma**2))
        line = (line / line.sum()).expand(3, 1, -1)
        image = F.conv2d(F.pad(s.target, (k, k, 0, 0), "replicate"), line[:, :, None], groups=3)
        return F.conv2d(F.pad(image, (0, 0, k, k), "replicate"), line[..., None], groups=3)

    return make


def shifted(pixels: int) -> Make:
    """The whole picture drifts to the right."""
    return lambda s: F.pad(s.target, (pixels, 0, 0, 0), "replicate")[..., :SIZE]


def resampled(size: int) -> Make:
    """Made smaller and large again."""

    def make(s: ShapesBatch) -> Tensor:
        small = F.interpolate(s.target, size=(size, size), mode="bilinear", antialias=True)
        return F.interpolate(small, size=(SIZE, SIZE), mode="bilinear")

    return make


def salt_and_pepper(share: float) -> Make:
    def make(s: ShapesBatch) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        hit = torch.rand(1, 1, SIZE, SIZE, generator=generator) < share
        value = (torch.rand(1, 1, SIZE, SIZE, generator=generator) < 0.5).float()
        return torch.where(hit, value, s.target)

    return make


def specks(n: int, side: int) -> Make:
    """n black squares where nothing stands."""

    def make(s: ShapesBatch) -> Tensor:
        image = s.target.clone()
        free = objects_mask(s.after)[0, 0] + objects_mask(s.before)[0, 0] == 0
        free = F.avg_pool2d(free[None, None].float(), side, 1)[0, 0] == 1
        places = free.nonzero()
        order = torch.randperm(len(places), generator=torch.Generator().manual_seed(2))[:n]
        for y, x in places[order].tolist():
            image[0, :, y : y + side, x : x + side] = 0.05
        return image

    return make


def objects_mask(scenes: Scenes) -> Tensor:
    masks = [object_masks(scenes, np.where(scenes.present[:, c], c, -1)) for c in range(CELLS)]
    return torch.stack(masks).amax(0)


def darker(share: float) -> Make:
    return lambda s: s.target * (1 - share)


def tinted(strength: float) -> Make:
    """The background towards red, the objects as they are."""

    def make(s: ShapesBatch) -> Tensor:
        ground = render_backgrounds(s.after)
        ground[:, 0] += strength
        ground[:, 2] -= strength
        return paint(ground.clamp(0, 1), s.after)

    return make


def other_cell(s: ShapesBatch) -> int:
    """Cell of an object that the instruction does not name."""
    return int(np.flatnonzero(without_edited(s.after, s.edits).present[0])[0])


def changed(field: str, change: Callable[[int], int]) -> Make:
    """One unnamed object is changed in one attribute."""

    def make(s: ShapesBatch) -> Tensor:
        scenes = s.after.copy()
        cell = other_cell(s)
        getattr(scenes, field)[0, cell] = change(int(getattr(scenes, field)[0, cell]))
        return render(scenes)

    return make


def drifted(pixels: float) -> Make:
    """One unnamed object, small enough to stay whole, lies further to one side."""

    def make(s: ShapesBatch) -> Tensor:
        scenes = s.after.copy()
        cell = other_cell(s)
        scenes.offset[0, cell, 0] -= pixels * (1 if scenes.offset[0, cell, 0] > 0 else -1)
        return render(scenes)

    return make


def extra(n: int, size: int) -> Make:
    """n more objects that nobody asked for."""

    def make(s: ShapesBatch) -> Tensor:
        scenes = s.after.copy()
        free = np.flatnonzero(~scenes.present[0] & ~s.before.present[0])[:n]
        scenes.shape[0, free] = 2
        scenes.colour[0, free] = 5
        scenes.size[0, free] = size
        scenes.offset[0, free] = 0
        return render(scenes)

    return make


def asked_mask(s: ShapesBatch, where: str = "after") -> Tensor:
    scenes, cell = (s.after, s.edits.to_cell) if where == "after" else (s.before, s.edits.cell)
    return object_masks(scenes, cell)


def hole(radius: float, of_other: bool = False) -> Make:
    """The ground shows through a round hole in the asked object, or in another."""

    def make(s: ShapesBatch) -> Tensor:
        cell = other_cell(s) if of_other else int(s.edits.to_cell[0])
        x, y = CENTRES[cell] + s.after.offset[0, cell]
        line = torch.arange(SIZE) + 0.5
        inside = (line[None] - float(x)) ** 2 + (line[:, None] - float(y)) ** 2 < radius**2
        return torch.where(inside, render_backgrounds(s.after), s.target)

    return make


def drawn_part(share: float) -> Make:
    """Only the left `share` of what the edit changes is carried out."""

    def make(s: ShapesBatch) -> Tensor:
        columns = (s.target - s.source).abs().sum((0, 1, 2)).cumsum(0)
        return torch.where(columns / columns[-1] <= share, s.target, s.source)

    return make


def remains(opacity: float) -> Make:
    """The old object still shows through, all of it."""
    return lambda s: s.target.lerp(s.source, opacity * asked_mask(s, "before"))


def outline(width: int, opacity: float = 1.0) -> Make:
    """The old object's outline is left behind."""

    def make(s: ShapesBatch) -> Tensor:
        mask = asked_mask(s, "before")
        inner = 1 - F.max_pool2d(1 - mask, 2 * width + 1, 1, width)
        return s.target.lerp(s.source, (mask - inner) * opacity)

    return make


def quarter_left(s: ShapesBatch) -> Tensor:
    """A quarter of the old object is left."""
    cell = int(s.edits.cell[0])
    x, y = CENTRES[cell] + s.before.offset[0, cell]
    line = torch.arange(SIZE) + 0.5
    return torch.where((line[None] > float(x)) & (line[:, None] > float(y)), s.source, s.target)


def half_left(s: ShapesBatch) -> Tensor:
    cell = int(s.edits.cell[0])
    x = float(CENTRES[cell][0] + s.before.offset[0, cell, 0])
    return torch.where(torch.arange(SIZE) + 0.5 > x, s.source, s.target)


def smudge(strength: float) -> Make:
    """Darkens the background a little where the old object was."""
    return lambda s: s.target * (1 - strength * asked_mask(s, "before"))


def scaled(factor: float) -> Make:
    """The object that was to be resized has `factor` times its old radius."""

    def make(s: ShapesBatch) -> Tensor:
        from rewardedit.shapes.render import coverage

        cell = int(s.edits.cell[0])
        centre = CENTRES[cell] + s.before.offset[0, cell]
        radius = torch.tensor([RADII[s.before.size[0, cell]] * factor])
        line = torch.arange(SIZE) + 0.5
        x = (line[None, None] - float(centre[0])).expand(1, SIZE, SIZE).contiguous()
        y = (line[None, :, None] - float(centre[1])).expand(1, SIZE, SIZE).contiguous()
        alpha = coverage(torch.from_numpy(s.before.shape[:, cell]), x, y, radius)
        rest = render(without_edited(s.after, s.edits))
        return rest.lerp(
            OBJECT_RGB[s.before.colour[:, cell]][:, :, None, None].expand_as(rest), alpha[:, None]
        )

    return make


def off_shade(share: float) -> Make:
    """The asked colour, mixed with gray."""

    def make(s: ShapesBatch) -> Tensor:
        gray = torch.full_like(s.target, 0.5)
        return s.target.lerp(gray, share * asked_mask(s))

    return make


def misplaced(cells: float) -> Make:
    """The asked object lies off its place, towards the middle of the picture, by so many cells."""

    def make(s: ShapesBatch) -> Tensor:
        scenes = s.after.copy()
        cell = int(s.edits.to_cell[0])
        towards = np.sign(SIZE / 2 - CENTRES[cell]) * CELL * cells
        rest = render(without_edited(s.after, s.edits))
        alone = replace(scenes, shape=np.where(np.arange(CELLS)[None] == cell, scenes.shape, -1))
        mask = object_masks(alone, np.array([cell]))
        dx, dy = (round(float(v)) for v in towards)
        object_only = torch.where(mask > 0, s.target, torch.zeros(()))
        moved = torch.roll(object_only, (dy, dx), (2, 3))
        return torch.where(torch.roll(mask, (dy, dx), (2, 3)) > 0, moved, rest)

    return make


def rim(width: int) -> Make:
    """The background is repainted but for a rim of its old colour at the picture's border."""

    def make(s: ShapesBatch) -> Tensor:
        middle = torch.zeros(SIZE, SIZE)
        middle[width : SIZE - width, width : SIZE - width] = 1
        return s.source.lerp(s.target, middle.expand_as(s.target))

    return make


def halo(width: int) -> Make:
    """The background is repainted but for a rim of its old colour around the objects."""

    def make(s: ShapesBatch) -> Tensor:
        near = F.max_pool2d(objects_mask(s.before), 2 * width + 1, 1, width)
        return torch.where(near > 0, s.source, s.target)

    return make


def half_painted(s: ShapesBatch) -> Tensor:
    return torch.where(torch.arange(SIZE) < SIZE // 2, s.source, s.target)


def right(s: ShapesBatch) -> Tensor:
    return s.target


SMALL_AND_DULL = "a small object in a colour near the ground's loses a fifth of it, which a person overlooks"
PICTURES = (
    Picture("the target", "add", right, 9, 10),
    Picture("the object at 85 % opacity", "add", fade(0.85), 5.5, 9.5),
    Picture("the object at 95 % opacity", "add", fade(0.95), 8, 10),
    Picture("half a cross-fade", "add", fade(0.5), 0, 3),
    Picture("half a cross-fade", "recolour", fade(0.5), 0, 3),
    Picture("half a cross-fade", "remove", fade(0.5), 0, 3),
    Picture("half a cross-fade", "move", fade(0.5), 0, 3),
    Picture("half a cross-fade", "background", fade(0.5), 0, 4),
    Picture("85 % of a cross-fade", "recolour", fade(0.85), 5, 9.5),
    Picture("85 % of a cross-fade", "background", fade(0.85), 6, 9.8),
    Picture("a third of a cross-fade", "replace", fade(0.33), 0, 2),
    Picture("a ghost of 30 %", "remove", remains(0.3), 1, 6),
    Picture("a ghost of 15 %", "remove", remains(0.15), 3.5, 8.5),
    Picture("a ghost of 15 %", "move", remains(0.15), 3.5, 8.5),
    Picture("a ghost of 50 %", "move", remains(0.5), 0, 4),
    Picture("the ground a little darker where the object was", "remove", smudge(0.06), 6, 9.8),
    Picture("the ground darker where the object was", "remove", smudge(0.2), 2, 7.5),
    Picture("the outline left behind", "remove", outline(1), 0, 4.5),
    Picture("the outline left behind", "move", outline(1), 0, 4.5),
    Picture("a faint outline left behind", "remove", outline(1, 0.3), 4, 9),
    Picture("a thick outline left behind", "remove", outline(2), 0, 3),
    Picture("a quarter left", "remove", quarter_left, 0, 5),
    Picture("a quarter left", "move", quarter_left, 0, 5),
    Picture("half left", "remove", half_left, 0, 2.5),
    Picture("JPEG, quality 85", "add", jpeg(85), 8, 10, missed=SMALL_AND_DULL),
    Picture("JPEG, quality 85", "recolour", jpeg(85), 8, 10, missed=SMALL_AND_DULL),
    Picture("JPEG, quality 85", "remove", jpeg(85), 8, 10, missed=SMALL_AND_DULL),
    Picture("JPEG, quality 50", "replace", jpeg(50), 6, 10, missed=SMALL_AND_DULL),
    Picture("JPEG, quality 20", "add", jpeg(20), 3, 8.5, missed=SMALL_AND_DULL),
    Picture("noise of 0.02", "add", noise(0.02), 8, 10),
    Picture("noise of 0.05", "recolour", noise(0.05), 5, 9),
    Picture("noise of 0.05", "remove", noise(0.05), 5, 9),
    Picture("noise of 0.1", "add", noise(0.1), 2, 7),
    Picture("noise of 0.25", "add", noise(0.25), 0, 3.5),
    Picture("blur of 0.5 pixels", "add", blur(0.5), 7.5, 10),
    Picture("blur of 1 pixel", "add", blur(1), 4, 8.5),
    Picture("blur of 1 pixel", "remove", blur(1), 4, 9),
    Picture("blur of 2.5 pixels", "add", blur(2.5), 0, 3),
    Picture("made smaller by a third and large again", "recolour", resampled(43), 4, 9.5),
    Picture("made four times smaller and large again", "recolour", resampled(16), 0, 3),
    Picture("all shifted by 1 pixel", "recolour", shifted(1), 8, 10),
    Picture("all shifted by 3 pixels", "recolour", shifted(3), 5, 9.5),
    Picture("all shifted by 7 pixels", "recolour", shifted(7), 0, 6),
    Picture("another object drifts by 1 pixel", "recolour", drifted(1), 8.5, 10),
    Picture("another object drifts by 5 pixels", "recolour", drifted(5), 3, 8.5),
    Picture("salt and pepper on 0.5 %", "add", salt_and_pepper(0.005), 3.5, 8),
    Picture("salt and pepper on 3 %", "add", salt_and_pepper(0.03), 0.5, 5),
    Picture("a speck", "remove", specks(1, 3), 6, 9.8),
    Picture("six specks", "remove", specks(6, 3), 3, 8),
    Picture("a small object that nobody asked for", "recolour", extra(1, 0), 3, 7),
    Picture("a large object that nobody asked for", "add", extra(1, 2), 2, 6.5),
    Picture("three objects that nobody asked for", "remove", extra(3, 1), 1, 5),
    Picture("another object gone", "recolour", changed("shape", lambda _: -1), 2, 7),
    Picture("another object in another colour", "add", changed("colour", lambda c: (c + 3) % 8), 2, 7),
    Picture("another object in another shape", "remove", changed("shape", lambda s: (s + 2) % 6), 2, 7.5),
    Picture("all 10 % darker", "add", darker(0.1), 6, 9.8),
    Picture("all 40 % darker", "add", darker(0.4), 0.5, 5.5),
    Picture("the background tinted by 0.08", "remove", tinted(0.08), 5, 9.5),
    Picture("the background tinted by 0.25", "recolour", tinted(0.25), 1.5, 6),
    Picture("a small hole in the object", "add", hole(1.6), 5.5, 9.5, 2),
    Picture("a large hole in the object", "add", hole(4.0), 0, 5.5),
    Picture(
        "a hole in another object",
        "recolour",
        hole(3.0, True),
        4,
        9,
        missed="the ring that is left is taken for another shape",
    ),
    Picture("half drawn", "add", drawn_part(0.5), 0, 3),
    Picture("three quarters drawn", "add", drawn_part(0.75), 0, 6),
    Picture("half drawn", "recolour", drawn_part(0.5), 0, 3),
    Picture("half drawn", "replace", drawn_part(0.5), 0, 3),
    Picture("the asked colour, 20 % grayer", "recolour", off_shade(0.2), 5, 9.8),
    Picture("the asked colour, 60 % grayer", "recolour", off_shade(0.6), 0, 5),
    Picture("half a cell off its place", "move", misplaced(0.4), 4, 10),
    Picture("a cell off its place", "move", misplaced(1.0), 0, 5),
    Picture("a rim of the old colour", "background", rim(2), 4, 9),
    Picture("halos of the old colour", "background", halo(2), 2.5, 8),
    Picture("half painted", "background", half_painted, 0, 3),
)
RESIZED = (  # of "bigger" and "smaller": the factor of the radius
    ("larger", 1.0, 0, 1),
    ("larger", 1.08, 0, 4.5),
    ("larger", 1.2, 4, 10),
    ("larger", 1.35, 8, 10),
    ("smaller", 0.95, 0, 4.5),
    ("smaller", 0.83, 4, 10),
    ("smaller", 0.7, 8, 10),
    ("smaller", 0.3, 0, 6),
)


@functools.cache
def samples_of(edit_type: str, objects: int, n: int = 3) -> tuple[ShapesBatch, ...]:
    """Samples of val with that type of edit and number of objects. Other objects that are not to leave their
    cells are small; adds and moves name a place.
    """
    batch = Shapes("val", kinds=(edit_type,)).batch(0, 280)
    found = []
    for i in range(len(batch)):
        sample = batch[i : i + 1]
        others = without_edited(sample.after, sample.edits)
        if sample.before.present.sum() != objects or not (others.present & (others.size == 0)).any():
            continue
        if edit_type in ("add", "move") and (not sample.edits.says_place[0] or sample.edits.to_cell[0] == 4):
            continue
        if others.size[0, np.flatnonzero(others.present[0])[0]] != 0:
            continue
        found.append(sample)
        if len(found) == n:
            break
    return tuple(found)
