"""Rows that every scorer scores: edits in both wordings, edits with others' instructions, images of the
ground-truth test.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardedit.batch import EditSample
from rewardedit.shapes.bench.edits import PICTURED, Key, World

WORDINGS = ("usual", "reserved")
SIGMA = 15 / 255  # of the noise on the source in the ground-truth test
TARGET = "ground truth"
NOISE = "noise"
KINDS = (TARGET, NOISE, PICTURED)  # images of the ground-truth test (Li et al. 2025, Sec. 4.1)


@dataclass(frozen=True)
class Item:
    """A row: an image as an edit of source `row` by the instruction of source `told`."""

    image: Key  # an editor's edit, or a kind of the ground-truth test
    row: int
    told: int
    wordings: str

    @property
    def id(self) -> str:
        name, seed = self.image
        return f"{self.wordings} / {name} {seed} / {self.row} by {self.told}"


def all_items(keys: Sequence[Key], n: int, candidates: int) -> list[Item]:
    """Every row once: all edits, and all images of the ground-truth test with their own and, for the ground
    truth, with `candidates` − 1 others' instructions.
    """
    items = []
    for wordings in WORDINGS:
        for key in [*keys, *((kind, 0) for kind in KINDS)]:
            items += [Item(key, row, row, wordings) for row in range(n)]
        for row in range(n):
            others = other_rows(row, n, candidates)
            items += [Item((TARGET, 0), row, other, wordings) for other in others]
    return items


def other_rows(row: int, n: int, candidates: int) -> list[int]:
    """Numbers of the rows whose instructions compete with a row's own: those that follow, around the end."""
    return [(row + step) % n for step in range(1, candidates)]


class BenchRows(Sequence):
    """The rows of items; a scorer sees source, instruction and edited image alone."""

    def __init__(self, items: Sequence[Item], world: World, edits: Mapping[Key, Tensor]) -> None:
        self.items = items
        self.world = world
        self.edits = edits

    def __len__(self) -> int:
        return len(self.items)

    def id_of(self, index: int) -> str:
        return self.items[index].id

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        item = self.items[index]
        texts = (self.world.usual if item.wordings == "usual" else self.world.reserved).instruction
        return EditSample(item.id, self.world.usual.source[item.row], texts[item.told], self._image(item))

    def _image(self, item: Item) -> Tensor:
        samples = self.world.usual
        kind = item.image[0]
        if kind == TARGET:
            return samples.target[item.row]
        if kind == NOISE:
            noise = torch.randn(samples.source.shape[1:], generator=torch.Generator().manual_seed(item.row))
            return (samples.source[item.row] + SIGMA * noise).clamp(0, 1)
        return self.edits[item.image][item.row]
