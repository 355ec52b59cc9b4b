"""Coarse maps of the colours and shapes in a scene, which a network can learn to predict."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from rewardedit.shapes.render import ORIGINS, PATCH, object_coverage
from rewardedit.shapes.scenes import Scenes
from rewardedit.shapes.vocabulary import COLOURS, SHAPES, SIZE

CHANNELS = len(COLOURS) + len(SHAPES)


def object_maps(scenes: Scenes, side: int) -> Float[Tensor, "b 14 side side"]:
    """Share of each of side × side squares that objects of each colour, then of each shape, cover."""
    maps = torch.zeros(len(scenes), CHANNELS, SIZE, SIZE)
    layers = [(scenes.colour, scenes.shape, object_coverage(scenes))]
    layers.append((scenes.inner_colour, scenes.inner_shape, object_coverage(scenes, inner=True)))
    for colours, shapes, objects in layers:
        for cell, rows, alpha in objects:
            x0, y0 = ORIGINS[cell]
            at = torch.from_numpy(rows)
            for channel in (colours[rows, cell], len(COLOURS) + shapes[rows, cell]):
                patch = maps[at, torch.from_numpy(channel), y0 : y0 + PATCH, x0 : x0 + PATCH]
                maps[at, torch.from_numpy(channel), y0 : y0 + PATCH, x0 : x0 + PATCH] = patch.maximum(alpha)
    return F.avg_pool2d(maps, SIZE // side)
