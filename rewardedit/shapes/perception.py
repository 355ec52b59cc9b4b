"""Perception of the oracle: recovers the objects and the background of an image before it is judged."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rewardedit.shapes.recover import (
    Objects,
    better,
    brightness,
    cover,
    draw,
    fill_hosts,
    fine_noise,
    grid,
    in_place,
    patch,
    recover,
    search,
    seen_background,
)
from rewardedit.shapes.render import ORIGINS, object_masks, paint, render_backgrounds
from rewardedit.shapes.scenes import CENTRES, EMPTY, Edits, Scenes
from rewardedit.shapes.vocabulary import RADII, SIZE

WITHOUT_OBJECT = ("remove", "background")  # edit types that draw no object


@dataclass(frozen=True)
class Percept:
    """Contents recovered from b images."""

    image: Tensor  # (b, 3, 64, 64) the image with its brightness corrected
    light: Tensor  # (b,) brightness of the image relative to the expected one
    grain: Tensor  # (b,) strength of fine noise
    wanted: Tensor  # (b, 3, 64, 64) the expected background
    background: Tensor  # (b, 3, 64, 64) the background as it is
    kept: Objects  # objects that no edit touches
    asked: Objects  # objects that the instruction draws or changes


def perceive(edited: Tensor, before: Scenes, after: Scenes, edits: Edits, keep: np.ndarray) -> Percept:
    """Recovers the contents of the images; `keep` (b, 9) is True for cells whose objects no edit touches."""
    image = edited.detach().float().cpu().clamp(0, 1)
    wanted = render_backgrounds(after)
    # A person sees through a change of light and through grain; both cost quality, but hide nothing.
    light = brightness(image, wanted)
    image = image / light[:, None, None, None]
    smooth, grain = fine_noise(image - wanted)
    calm = torch.where((grain > 0.06)[:, None, None, None], smooth + wanted, image)
    background = seen_background(image, wanted)

    row, cell, _, origin, window = in_place(after, keep)
    shape = torch.from_numpy(after.shape)[row, cell].long()
    colour = torch.from_numpy(after.colour)[row, cell].long()
    filled = fill_hosts(image, after, after.has_inner)
    kept = recover(filled, background, row, shape, colour, origin, window)
    taken = cover(kept, len(image), 1.5)
    asked = better(
        asked_objects(image, background, before, after, edits, taken),
        asked_objects(calm, background, before, after, edits, taken),
    )

    # Pixels that the requested object explains belong neither to its neighbours nor to a hole in its host.
    is_drawn = asked.fit > 0.3
    claimed = cover(asked, len(image), 1.0, is_drawn & ~torch.from_numpy(edits.inside)[asked.row])
    window = window * (1 - patch(claimed[:, None], row, origin)[:, 0])
    hidden = after.has_inner.copy()
    lost = asked.row[~is_drawn].numpy()
    hidden[lost[edits.inside[lost]], edits.to_cell[lost[edits.inside[lost]]]] = False
    kept = better(
        recover(fill_hosts(image, after, hidden), background, row, shape, colour, origin, window),
        recover(fill_hosts(calm, after, hidden), background, row, shape, colour, origin, window),
    )
    return Percept(image, light, grain, wanted, background, kept, asked)


def asked_objects(
    image: Tensor, background: Tensor, before: Scenes, after: Scenes, edits: Edits, taken: Tensor
) -> Objects:
    """Finds the object that the instruction draws or changes, in rows that have one; `taken` (b, 64, 64)
    marks pixels that other objects cover.
    """
    drawn = draws(edits)
    row = torch.from_numpy(np.flatnonzero(drawn))
    shape = torch.from_numpy(edits.shape)[row].long()
    colour = torch.from_numpy(edits.colour)[row].long()
    cells = np.zeros((len(edits), 9), dtype=bool)
    cells[np.arange(len(edits)), edits.to_cell] = drawn
    _, _, _, origin, window = in_place(after, cells)
    inside = torch.from_numpy(edits.inside)[row]
    if inside.any():
        # The background of an object inside another is its host.
        hosts = after.copy()
        hosts.shape[~(cells & edits.inside[:, None])] = EMPTY
        hosts.inner_shape[:] = EMPTY
        background = paint(background.clone(), hosts)
        window = window.clone()
        within = object_masks(hosts, edits.to_cell)
        window[inside] = patch(within, row[inside], origin[inside])[:, 0]

    objects = recover(image, background, row, shape, colour, origin, window)

    free = torch.from_numpy(edits.is_type("add", "move"))[row] & ~inside
    if not free.any():
        return objects

    origin = origin.clone()
    window = window.clone()
    origin[free], window[free] = search(image, background, taken, row[free], colour[free])
    # Its own place is tried first: the largest patch of its colour may be another object.
    return better(objects, recover(image, background, row, shape, colour, origin, window))


def old_objects(before: Scenes, edits: Edits) -> Tensor:
    """Coverage (b, 64, 64) of the object that was removed, moved, replaced, recoloured or resized; 0 for all
    other kinds of edit.
    """
    old = torch.zeros(len(edits), SIZE, SIZE)
    row = np.flatnonzero(~edits.is_type("add", "background"))
    cell = edits.cell[row]
    centre = torch.from_numpy(CENTRES[cell] + before.offset[row, cell])
    origin = torch.tensor(ORIGINS)[cell]
    radius = torch.tensor(RADII)[before.size[row, cell]]
    alpha = draw(torch.from_numpy(before.shape[row, cell]), centre, radius, origin)
    x, y = grid(origin)
    old.index_put_((torch.from_numpy(row)[:, None, None].expand_as(x), y, x), alpha)
    return old


def draws(edits: Edits) -> np.ndarray:
    """(b,), True for edits that draw or change an object."""
    return ~edits.is_type(*WITHOUT_OBJECT)
