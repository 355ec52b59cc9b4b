"""Single objects of scenes with their names, and the names of backgrounds, which a detector and a segmenter
learn to find.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rewardedit.shapes.render import ORIGINS, PATCH, object_coverage
from rewardedit.shapes.scenes import Scenes
from rewardedit.shapes.vocabulary import BACKDROPS, BACKGROUNDS, COLOURS, SHAPES, SIZE, SIZES
from rewardedit.shapes.world import mask_boxes

ANY = -1
# Parts of names, as indices into SIZES, COLOURS and SHAPES: all three, colour and shape, or shape alone. An
# object inside another has no size.
PARTS = [
    *product(range(len(SIZES)), range(len(COLOURS)), range(len(SHAPES))),
    *product([ANY], range(len(COLOURS)), range(len(SHAPES))),
    *product([ANY], [ANY], range(len(SHAPES))),
]


def _name(parts: tuple[int, int, int]) -> str:
    words = []
    for choices, index in zip((SIZES, tuple(COLOURS), SHAPES), parts, strict=True):
        if index != ANY:
            words.append(choices[index])
    return " ".join(words)


NAMES = list(map(_name, PARTS))
BACKGROUND_NAMES = ["background", *(f"{colour} background" for colour in BACKGROUNDS)]


def background_names(
    scenes: Scenes,
) -> tuple[Bool[Tensor, "b backgrounds"], Bool[Tensor, "b backgrounds"]]:
    """True for the BACKGROUND_NAMES that fit each scene's background, and True for those that can be judged:
    textures and photographs have no colour of their own.
    """
    plain = torch.from_numpy(scenes.backdrop == BACKDROPS.index("plain"))[:, None]
    matches = torch.from_numpy(scenes.background)[:, None] == torch.arange(len(BACKGROUNDS))
    any_ground = torch.ones_like(plain)
    return torch.cat([any_ground, matches & plain], 1), torch.cat([any_ground, plain.expand_as(matches)], 1)


@dataclass(frozen=True)
class SceneObjects:
    """n objects of some scenes."""

    row: Int[Tensor, " n"]  # index of each object's scene, rising
    coverage: Float[Tensor, "n 24 24"]  # coverage of the pixels of a patch
    origin: Int[Tensor, "n 2"]  # corner of the patch, (x, y) in pixels
    names: Bool[Tensor, "n names"]  # True for the NAMES that fit

    def masks(self, index: Int[Tensor, " k"]) -> Bool[Tensor, "k 64 64"]:
        """Masks of the pixels that each of these objects touches."""
        masks = torch.zeros(len(index), SIZE, SIZE, dtype=torch.bool)
        line = torch.arange(PATCH)
        x = (self.origin[index, 0, None] + line)[:, None, :].expand(-1, PATCH, -1)
        y = (self.origin[index, 1, None] + line)[:, :, None].expand(-1, -1, PATCH)
        masks[torch.arange(len(index))[:, None, None], y, x] = self.coverage[index] > 0
        return masks

    @property
    def boxes(self) -> Float[Tensor, "n 4"]:
        """Boxes, xyxy in pixels, around the pixels that each object touches."""
        return mask_boxes(self.coverage[:, None]).float() + self.origin.float().repeat(1, 2)


def scene_objects(scenes: Scenes) -> SceneObjects:
    """All objects of the scenes, including those inside others."""
    rows: list[Tensor] = []
    coverage: list[Tensor] = []
    origins: list[Tensor] = []
    attributes: list[Tensor] = []
    for inner in (False, True):
        shapes = scenes.inner_shape if inner else scenes.shape
        colours = scenes.inner_colour if inner else scenes.colour
        for cell, indices, alpha in object_coverage(scenes, inner):
            size = np.full(len(indices), len(SIZES)) if inner else scenes.size[indices, cell]
            rows.append(torch.from_numpy(indices))
            coverage.append(alpha)
            origins.append(torch.tensor(ORIGINS[cell]).expand(len(indices), 2))
            parts = np.stack([size, colours[indices, cell], shapes[indices, cell]], axis=1)
            attributes.append(torch.from_numpy(parts))

    row = torch.cat(rows)
    order = row.argsort(stable=True)
    said = torch.tensor(PARTS)
    has = torch.cat(attributes)[order]
    names = ((said[None] == ANY) | (said[None] == has[:, None])).all(2)
    return SceneObjects(row[order], torch.cat(coverage)[order], torch.cat(origins)[order], names)
