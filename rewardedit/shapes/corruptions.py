"""Candidate edits of known quality: right ones, and deliberate examples of editors' typical errors."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.shapes.render import object_masks, render
from rewardedit.shapes.scenes import (
    CELLS,
    LOOSELY_RELATED_CELLS,
    OBJECT_FIELDS,
    Scenes,
    apply_edits,
    choose,
    edit_types,
    pick,
    sample_edits,
    without_edited,
)
from rewardedit.shapes.vocabulary import BACKGROUNDS, COLOURS, EDIT_TYPES, JITTER
from rewardedit.shapes.world import ShapesBatch

CORRUPTION_KINDS = (
    "right",
    "untouched",
    "half_done",
    "over_done",
    "wrong_object",
    "wrong_colour",
    "wrong_place",
    "damaged",
)
# Default mix for the small editor's training, as InstructPix2Pix learned from pairs that were not all good.
DEFAULT_MIX = {"right": 0.70, "untouched": 0.08, "half_done": 0.07, "over_done": 0.10, "wrong_object": 0.05}


@dataclass(frozen=True)
class Candidates:
    """Edited images of b samples, and the scenes that they show."""

    images: Float[Tensor, "b 3 64 64"]
    scenes: Scenes | None  # None: cross-fades and halves, which show no scene

    @classmethod
    def drawn(cls, scenes: Scenes) -> "Candidates":
        return cls(render(scenes), scenes)


def corrupt_targets(
    samples: ShapesBatch, shares: dict[str, float], seed: int
) -> tuple[list[str], Float[Tensor, "b 3 64 64"]]:
    """One candidate edit for each sample, its quality drawn with the given shares.

    Returns:
        The quality of each (names of QUALITIES) and the images, RGB in [0, 1].

    Raises:
        ValueError: if a share is negative or names no quality, or the shares do not sum to 1.
    """
    if (
        not set(shares) <= set(CORRUPTION_KINDS)
        or min(shares.values()) < 0
        or abs(sum(shares.values()) - 1) > 1e-6
    ):
        raise ValueError(
            f"shares: expected shares of {', '.join(CORRUPTION_KINDS)} that sum to 1; got {shares}"
        )
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(shares), size=len(samples), p=list(shares.values()))
    edited = samples.target.clone()
    for i, name in enumerate(shares):
        rows = np.flatnonzero(chosen == i)
        if len(rows):
            edited[rows] = MAKERS[name](rows_of(samples, rows), rng).images
    names = list(shares)
    return [names[i] for i in chosen], edited


def rows_of(samples: ShapesBatch, rows: np.ndarray) -> ShapesBatch:
    """The samples in the given rows."""

    def take(value):
        return [value[i] for i in rows] if isinstance(value, list) else value[rows]

    return ShapesBatch(*map(take, vars(samples).values()))


def right(samples: ShapesBatch, rng: np.random.Generator) -> Candidates:
    return Candidates(samples.target, samples.after)


def untouched(samples: ShapesBatch, rng: np.random.Generator) -> Candidates:
    return Candidates(samples.source, samples.before)


def half_done(samples: ShapesBatch, rng: np.random.Generator) -> Candidates:
    """Half-done edits: half are cross-fades of source and target, half draw only one side of the change."""
    b = len(samples)
    fade = torch.from_numpy(rng.uniform(0.3, 0.7, b)).float()[:, None, None, None].expand(-1, 1, 64, 64)
    box = torch.where(samples.boxes.sum(2, keepdim=True) > 0, samples.boxes, torch.tensor([0, 0, 64, 64]))
    box = torch.where((samples.boxes[:, 1].sum(1) > 0)[:, None], box[:, 1], box[:, 0])
    middle = (box[:, :2] + box[:, 2:])[:, :, None, None] / 2
    line = torch.arange(64) + 0.5
    axis = torch.from_numpy(rng.random(b) < 0.5)
    flip = torch.from_numpy(rng.random(b) < 0.5)
    first = torch.where(axis[:, None, None], (line < middle[:, 0]), (line[:, None] < middle[:, 1]))
    side = (first ^ flip[:, None, None]).float()[:, None]
    weight = torch.where(torch.from_numpy(rng.random(b) < 0.5)[:, None, None, None], fade, side)
    return Candidates(samples.source.lerp(samples.target, weight.expand_as(samples.target)), None)


def over_done(samples: ShapesBatch, rng: np.random.Generator) -> Candidates:
    """The right edit, and one more change that was not requested."""
    others = without_edited(samples.after, samples.edits)
    names = ("remove", "replace", "recolour", "resize", "background")
    kind = edit_types(names)[rng.integers(len(names), size=len(samples))]
    is_background = samples.edits.is_type("background")
    kind = np.where(is_background, EDIT_TYPES.index("recolour"), kind)
    # The edited object's own cell, which holds its host if it lies inside another object, is not changed.
    edited_cell = (np.arange(CELLS)[None] == samples.edits.to_cell[:, None]) & ~is_background[:, None]
    kind = np.where((others.present & ~edited_cell).any(1), kind, EDIT_TYPES.index("background"))
    spoiled = apply_edits(others, sample_edits(rng, others, kind, edited_cell))
    rows = np.flatnonzero(~is_background)
    at = rows, samples.edits.to_cell[rows]
    for name in OBJECT_FIELDS:
        getattr(spoiled, name)[at] = getattr(samples.after, name)[at]
    return Candidates.drawn(spoiled)


def wrong_object(samples: ShapesBatch, rng: np.random.Generator) -> Candidates:
    """The same edit applied to another object; the source itself if there is no other."""
    edits = samples.edits
    b = np.arange(len(samples))
    allowed = samples.before.present.copy()
    allowed[b, edits.cell] = False
    able = allowed.any(1) & ~edits.is_type("add", "background")
    cell = np.where(able, pick(rng, allowed), edits.cell)
    keeps_shape = edits.is_type("recolour", "resize", "move")
    keeps_colour = edits.is_type("resize", "move")
    size = samples.before.size[b, cell]
    resized = np.where(size == 0, 1, np.where(size == 2, 1, edits.size))
    other = replace(
        edits,
        cell=cell,
        to_cell=np.where(edits.is_type("move"), edits.to_cell, cell),
        shape=np.where(keeps_shape, samples.before.shape[b, cell], edits.shape),
        colour=np.where(keeps_colour, samples.before.colour[b, cell], edits.colour),
        size=np.where(edits.is_type("resize"), resized, size),
    )
    return Candidates.drawn(choose(able, apply_edits(samples.before, other), samples.before))


def wrong_colour(samples: ShapesBatch, rng: np.random.Generator) -> Candidates:
    """The right edit in a colour that is neither the requested one nor the old one;
    a removed object is recoloured instead.
    """
    after = samples.after
    edits = samples.edits
    b = np.arange(len(samples))
    removed = edits.is_type("remove")
    scenes = after.copy()
    allowed = np.ones((len(b), len(COLOURS)), dtype=bool)
    allowed[b, edits.colour] = False
    allowed[b, samples.before.colour[b, edits.cell]] = False

    painted = ~edits.is_type("background") & ~edits.inside
    new = pick(rng, allowed)
    scenes.colour[b[painted], edits.to_cell[painted]] = new[painted]
    scenes.inner_colour[b[edits.inside], edits.to_cell[edits.inside]] = new[edits.inside]
    scenes.shape[b[removed], edits.cell[removed]] = samples.before.shape[b[removed], edits.cell[removed]]

    grounds = np.ones((len(b), len(BACKGROUNDS)), dtype=bool)
    grounds[b, after.background], grounds[b, samples.before.background] = False, False
    is_background = edits.is_type("background")
    scenes.background[is_background] = pick(rng, grounds)[is_background]
    return Candidates.drawn(scenes)


def wrong_place(samples: ShapesBatch, rng: np.random.Generator) -> Candidates:
    """The added or moved object in a free cell that was not requested; `wrong_object` for other edits."""
    after = samples.after
    edits = samples.edits
    b = np.arange(len(samples))
    placed = edits.is_type("add", "move")
    free = ~after.present & ~_right_cells(samples)
    free[b, edits.cell] = False
    placed &= free.any(1)
    to = pick(rng, free)
    scenes = without_edited(after, edits)
    wrong = b[placed], to[placed]
    scenes.shape[wrong] = edits.shape[placed]
    scenes.colour[wrong] = edits.colour[placed]
    scenes.size[wrong] = np.where(edits.inside, 0, edits.size)[placed]
    offset = after.offset[b, edits.to_cell]
    limit = np.array(JITTER)[scenes.size[b, to]][:, None]
    scenes.offset[wrong] = np.clip(offset, -limit, limit)[placed]
    other = wrong_object(samples, rng).scenes
    assert other is not None
    return Candidates.drawn(choose(placed, scenes, other))


def _right_cells(samples: ShapesBatch) -> np.ndarray:
    """(b, 9) True for cells in which an added or moved object would have the requested relation."""
    edits = samples.edits
    anchor = np.where(edits.reference < 0, edits.cell, edits.reference)
    return LOOSELY_RELATED_CELLS[edits.relation, anchor] & (edits.relation >= 0)[:, None]


def damaged(samples: ShapesBatch, rng: np.random.Generator) -> Candidates:
    """The right edit, with noise on the background in a random square of 16 to 40 pixels a side."""
    edited = samples.target.clone()
    objects = torch.zeros(len(samples), 1, 64, 64)
    for cell in range(CELLS):
        objects += object_masks(samples.after, np.where(samples.after.present[:, cell], cell, -1))
    for i in range(len(samples)):
        side = int(rng.integers(16, 41))
        x, y = rng.integers(0, 64 - side + 1, 2)
        noise = torch.from_numpy(rng.normal(0, 0.25, (3, side, side))).float()
        edited[i, :, y : y + side, x : x + side] += noise * (objects[i, :, y : y + side, x : x + side] == 0)
    return Candidates(edited.clamp_(0, 1), samples.after)


MAKERS = dict(
    zip(
        CORRUPTION_KINDS,
        (right, untouched, half_done, over_done, wrong_object, wrong_colour, wrong_place, damaged),
        strict=True,
    )
)
