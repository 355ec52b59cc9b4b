"""Samples of the shapes world: `Shapes(split).batch(start, n)`, determined by split,
seed and index.
"""

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rewardedit.instructions import ParsedEdit
from rewardedit.shapes import language
from rewardedit.shapes.render import object_interiors, object_masks, render
from rewardedit.shapes.scenes import (
    Edits,
    Scenes,
    apply_edits,
    concatenate,
    edit_types,
    sample_edits,
    sample_scenes,
)
from rewardedit.shapes.vocabulary import BACKDROPS, EDIT_TYPES

BLOCK = 280  # samples that share one random generator; a multiple of 7 kinds × 5 object counts
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class ShapesBatch:
    """b samples with their truth. Images are RGB in [0, 1]."""

    id: list[str]
    source: Float[Tensor, "b 3 64 64"]
    instruction: list[str]
    target: Float[Tensor, "b 3 64 64"]
    mask: Float[Tensor, "b 1 64 64"]  # 1 where the edit may change the image
    # xyxy in pixels of the edited object before and after; zeros if there is none
    boxes: Int[Tensor, "b 2 4"]
    source_caption: list[str]
    target_caption: list[str]
    parsed: list[ParsedEdit]
    before: Scenes
    after: Scenes
    edits: Edits

    def __len__(self) -> int:
        return len(self.id)

    def __getitem__(self, index: slice) -> "ShapesBatch":
        return ShapesBatch(*(values[index] for values in vars(self).values()))

    @property
    def world(self) -> str:
        return "shapes"

    @property
    def edit_type(self) -> list[str]:
        return [parsed.edit_type for parsed in self.parsed]


def join(batches: list[ShapesBatch]) -> ShapesBatch:
    """Joins the batches into one."""

    def both(values):
        if isinstance(values[0], Tensor):
            return torch.cat(values)
        if isinstance(values[0], Scenes | Edits):
            return concatenate(values)
        return list(chain.from_iterable(values))

    columns = zip(*(vars(batch).values() for batch in batches), strict=True)
    return ShapesBatch(*map(both, columns))


def mask_boxes(mask: Float[Tensor, "b 1 h w"]) -> Int[Tensor, "b 4"]:
    """Boxes (xyxy) of the non-zero pixels, right and bottom exclusive; zeros if there are none."""
    columns = mask.flatten(1, 2).amax(1) > 0
    rows = mask[:, 0].amax(2) > 0

    def span(line: Tensor) -> tuple[Tensor, Tensor]:
        line = line.int()
        return line.argmax(1), torch.where(line.any(1), line.shape[1] - line.flip(1).argmax(1), 0)

    (x0, x1), (y0, y1) = span(columns), span(rows)
    return torch.stack([x0, y0, x1, y1], dim=1)


def make_batch(
    rng: np.random.Generator,
    ids: list[str],
    before: Scenes,
    kind: np.ndarray,
    wordings: str = "usual",
    blocked: np.ndarray | None = None,
) -> ShapesBatch:
    """Draws an edit of the given kind for each scene, and renders source, target and mask.

    Args:
        blocked: (b, 9), True for cells that the edit may neither change nor refer to.
    """
    edits = sample_edits(rng, before, kind, blocked)
    after = apply_edits(before, edits)
    described = [language.describe(rng, before, edits, row, wordings) for row in range(len(before))]
    texts, parsed = zip(*described, strict=True)

    is_background = kind == EDIT_TYPES.index("background")
    inside = edits.inside
    old = object_masks(before, np.where(is_background | inside, -1, edits.cell))
    new = object_masks(after, np.where(is_background | inside, -1, edits.to_cell))
    if inside.any():
        new += object_masks(after, np.where(inside, edits.to_cell, -1), inner=True)
    mask = torch.maximum(old, new)
    mask[is_background] = 1 - object_interiors(before)[is_background]

    return ShapesBatch(
        id=ids,
        source=render(before),
        instruction=list(texts),
        target=render(after),
        mask=mask,
        boxes=torch.stack([mask_boxes(old), mask_boxes(new)], dim=1),
        source_caption=[language.caption(before, row) for row in range(len(before))],
        target_caption=[language.caption(after, row) for row in range(len(after))],
        parsed=list(parsed),
        before=before,
        after=after,
        edits=edits,
    )


@dataclass(frozen=True)
class Shapes:
    """An endless, deterministic data set: sample i of a split and seed is always the same.

    Kinds of edit and numbers of objects (1–5) alternate, so any 35 consecutive samples hold each pair once.
    Worlds that differ only in `draw` have the same sources, each with another kind of edit. Instructions in
    "reserved" wordings are for evaluation only: the train split has none.
    """

    split: str = "train"
    seed: int = 0
    backdrops: tuple[str, ...] = ("plain",)
    kinds: tuple[str, ...] = EDIT_TYPES
    draw: int = 0
    wordings: str = "usual"

    def __post_init__(self) -> None:
        for name, values, allowed in (
            ("split", (self.split,), SPLITS),
            ("wordings", (self.wordings,), tuple(language.WORDINGS)),
            ("backdrops", self.backdrops, BACKDROPS),
            ("kinds", self.kinds, EDIT_TYPES),
        ):
            if not values or not set(values) <= set(allowed):
                raise ValueError(f"{name}: expected some of {', '.join(allowed)}; got {values!r}")
        if self.split == "train" and self.wordings == "reserved":
            raise ValueError('wordings: "reserved" ones are for the splits val and test; got split "train"')

    def batch(self, start: int, n: int) -> ShapesBatch:
        """Samples start … start + n - 1."""
        if n < 1 or start < 0:
            raise ValueError(f"expected start >= 0 and n >= 1; got start={start}, n={n}")
        first = start // BLOCK
        last = (start + n - 1) // BLOCK
        blocks = join(list(map(self._block, range(first, last + 1))))
        return blocks[start - first * BLOCK : start - first * BLOCK + n]

    def rng(self, *key: int) -> np.random.Generator:
        """The random generator of this split, seed and `key`."""
        return np.random.default_rng([SPLITS.index(self.split), self.seed, *key])

    def _block(self, k: int) -> ShapesBatch:
        index = np.arange(k * BLOCK, (k + 1) * BLOCK)
        rng = self.rng(k)
        kinds = edit_types(self.kinds)
        before = self.scenes(rng, 1 + index // len(kinds) % 5)
        suffix = f"-{self.draw}" if self.draw else ""
        ids = [f"{self.split}-{self.seed}-{i}{suffix}" for i in index]
        edits = self.rng(k, self.draw, 0, 2) if self.draw else rng
        return make_batch(edits, ids, before, kinds[(index + self.draw) % len(kinds)], self.wordings)

    def scenes(self, rng: np.random.Generator, count: np.ndarray) -> Scenes:
        """Scenes of this world's backdrops with `count` (b,) objects each."""
        return sample_scenes(rng, count, self.backdrops)


__all__ = ["Shapes", "ShapesBatch", "join"]
