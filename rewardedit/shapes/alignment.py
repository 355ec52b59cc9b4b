"""The oracle's alignment: how fully the requested change was made, at the requested place and size."""

import numpy as np
import torch
from torch import Tensor

from rewardedit.shapes.perception import Percept, old_objects
from rewardedit.shapes.recover import Objects, colour_share, cover, draw, patch, ramp
from rewardedit.shapes.render import OBJECT_RGB, render_backgrounds
from rewardedit.shapes.scenes import CENTRES, EMPTY, Edits, Scenes
from rewardedit.shapes.vocabulary import CELL, RADII


def alignment_of(percept: Percept, before: Scenes, edits: Edits) -> Tensor:
    """Alignment (b,) in [0, 1]: how far the requested change was made."""
    asked = percept.asked
    alignment = torch.zeros(len(edits))
    alignment[asked.row] = (
        asked.fit
        * _wanted_size(asked, before, edits)
        * _wanted_place(asked, before, edits)
        * _reshaped(percept.image, percept.background, before, edits, asked)
    )
    alignment[edits.is_type("remove")] = 1.0
    alignment *= _gone(percept.image, percept.background, before, edits, asked)
    repainted = _repainted(percept.image, percept.wanted, before, percept.kept)
    return torch.where(torch.from_numpy(edits.is_type("background")), repainted, alignment)


def _wanted_size(asked: Objects, before: Scenes, edits: Edits) -> Tensor:
    """(n,) 1 where the object has the requested size, or its old one if none was requested."""
    row = asked.row.numpy()
    edits = edits[row]
    radii = np.array(RADII, dtype=np.float32)
    old_size = before.size[row, edits.cell]
    same = torch.from_numpy(radii[np.where(edits.is_type("add"), edits.size, old_size)])
    ratio = asked.radius / same
    fits = ramp((ratio - 1).abs(), 0.27, 0.16)

    grows = torch.from_numpy(edits.size > old_size)
    bigger = ramp(asked.surely / same, 1.13, 1.22) * ramp(ratio, 2.2, 1.9)
    smaller = ramp(asked.perhaps / same, 0.89, 0.84) * ramp(ratio, 0.3, 0.5)
    resized = torch.where(grows, bigger, smaller)

    inside = torch.from_numpy(edits.inside)
    visible = torch.where(inside, ramp(asked.radius, 2.8, 3.6), ramp(asked.radius, 3.6, 4.6))
    free = torch.from_numpy(edits.is_type("add") & ~edits.says_size)
    resizes = torch.from_numpy(edits.is_type("resize"))
    return torch.where(resizes, resized, torch.where(free, visible, fits))


def _wanted_place(asked: Objects, before: Scenes, edits: Edits) -> Tensor:
    """(n,) 1 where the object is at the requested place, or its old one if none was requested."""
    row = asked.row.numpy()
    edits = edits[row]
    outside = (
        ((asked.centre - torch.from_numpy(CENTRES[edits.to_cell])).abs() - CELL / 2).clamp_min(0).amax(1)
    )
    shift = (asked.centre - torch.from_numpy(CENTRES[edits.cell] + before.offset[row, edits.cell])).norm(
        dim=1
    )
    relates = torch.from_numpy(edits.relation >= 0)
    anywhere = torch.from_numpy(edits.is_type("add") & ~edits.says_place) & ~relates
    goes = torch.from_numpy(edits.is_type("add", "move"))
    placed = torch.where(goes, ramp(outside, 6, 2.5), ramp(shift, 6, 3))
    placed = torch.where(relates, _related(asked, before, edits), placed)
    return torch.where(anywhere, torch.ones_like(placed), placed)


def _related(asked: Objects, before: Scenes, edits: Edits) -> Tensor:
    """(n,) 1 where the object has the requested relation to its reference, or to its own old place.

    "Left of" means further to the left than up or down, and by more than a mere drift.
    """
    row = asked.row.numpy()
    anchor = np.where(edits.reference < 0, edits.cell, edits.reference)
    anchor_centre = torch.from_numpy(CENTRES[anchor] + before.offset[row, anchor])
    right, down = (asked.centre - anchor_centre).unbind(1)
    along = torch.stack([-right, right, -down, down])
    across = torch.stack([down, down, right, right]).abs()
    directed = ramp(along, 5, 8) * ramp(across - along, 5, 2)
    distance = (asked.centre - anchor_centre).norm(dim=1)
    near = ramp(distance, 39, 36)
    inside = ramp(distance, 7, 4)
    relation = torch.cat([directed, near[None], inside[None]])
    chosen = torch.from_numpy(edits.relation).clamp_min(0)
    return relation.gather(0, chosen[None])[0]


def _reshaped(image: Tensor, background: Tensor, before: Scenes, edits: Edits, asked: Objects) -> Tensor:
    """(n,) 1 where a new shape of the same colour, or a new colour, has fully replaced the old one; 1 for all
    other edits.
    """
    row = asked.row.numpy()
    edits = edits[row]
    centre = torch.from_numpy(CENTRES[edits.cell] + before.offset[row, edits.cell])
    old_shape = torch.from_numpy(before.shape[row, edits.cell])
    old_radius = torch.tensor(RADII)[before.size[row, edits.cell]]
    old = draw(old_shape, centre, old_radius, asked.origin)
    colour = OBJECT_RGB[edits.colour]
    share = colour_share(
        patch(image, asked.row, asked.origin), patch(background, asked.row, asked.origin), colour
    )[0]
    change = asked.alpha - old
    progress = ((share - old) * change).sum((1, 2)) / change.square().sum((1, 2)).clamp_min(1)
    same = edits.is_type("replace") & (edits.colour == before.colour[row, edits.cell])
    reshaped = torch.where(torch.from_numpy(same), ramp(progress, 0.75, 0.9), torch.ones_like(progress))

    # A colour between the old and the new one counts as neither.
    old_colour = OBJECT_RGB[before.colour[row, edits.cell]]
    inside = (asked.alpha == 1).float()
    seen = (patch(image, asked.row, asked.origin) * inside[:, None]).sum((2, 3))
    seen = seen / inside.sum((1, 2)).clamp_min(1)[:, None]
    span = colour - old_colour
    progress = ((seen - old_colour) * span).sum(1) / span.square().sum(1).clamp_min(1e-3)
    recoloured = torch.from_numpy(edits.is_type("replace", "recolour")) & (span.norm(dim=1) > 0)
    return reshaped * torch.where(recoloured, ramp(progress, 0.6, 0.85), torch.ones_like(progress))


def _gone(image: Tensor, background: Tensor, before: Scenes, edits: Edits, asked: Objects) -> Tensor:
    """(b,) 1 where nothing is left of the object that was removed, moved, replaced or resized;
    1 for all other kinds of edit.
    """
    b = len(edits)
    old = old_objects(before, edits)
    region = old * (1 - cover(asked, b, 1.0))
    cell = np.where(before.shape[np.arange(b), edits.cell] == EMPTY, 0, edits.cell)
    colour = OBJECT_RGB[before.colour[np.arange(b), cell]][:, :, None, None]
    contrast = (colour - background).norm(dim=1).clamp_min(0.2)
    off = (image - background).norm(dim=1)
    # Squared, so that a remaining quarter counts more than the whole at a quarter of its strength.
    left = torch.maximum(off / contrast, off / 0.7).clamp(0, 1).square() * region
    area = region.sum((1, 2))
    share = torch.where(area > 6, (left.sum((1, 2)) / area.clamp_min(1)).sqrt(), torch.zeros(b))
    return ramp(share, 0.6, 0.04)


def _repainted(image: Tensor, background: Tensor, before: Scenes, kept: Objects) -> Tensor:
    """(b,) 1 where the whole background has its new colour."""
    old = render_backgrounds(before)
    spare = 1 - cover(kept, len(image), 0.75)
    off = (image - background).norm(dim=1)
    distance = off / (old - background).norm(dim=1).clamp_min(0.15)
    done = ramp(distance, 0.6, 0.35) * ramp(off, 0.16, 0.1) * spare
    done = done.sum((1, 2)) / spare.sum((1, 2)).clamp_min(1)
    return ramp(done, 0.6, 0.98)
