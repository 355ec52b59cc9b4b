"""The shapes world as rows of a data set, each with a candidate edit of random quality."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor

from rewardedit.batch import EditSample
from rewardedit.shapes.corruptions import corrupt_targets
from rewardedit.shapes.vocabulary import EDIT_TYPES
from rewardedit.shapes.world import BLOCK, Shapes, ShapesBatch


class ShapesRows(Sequence):
    """n rows; `edited` is a candidate whose quality is drawn with `shares` and known only to this class.

    With `draws` > 1, so many consecutive rows are edits of one source.
    """

    def __init__(
        self,
        n: int,
        split: str = "train",
        seed: int = 0,
        backdrops: tuple[str, ...] = ("plain",),
        kinds: tuple[str, ...] = EDIT_TYPES,
        *,
        shares: dict[str, float],
        first: int = 0,
        draws: int = 1,
    ) -> None:
        self.worlds = [Shapes(split, seed, backdrops, kinds, draw) for draw in range(draws)]
        self.n = n
        self.first = first
        self.shares = shares
        self._block = lru_cache(maxsize=8)(self._make)

    def __getstate__(self) -> dict[str, Any]:
        """State without the rows in memory, which a copy in another process computes again."""
        state = vars(self).copy()
        state.pop("_block", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._block = lru_cache(maxsize=8)(self._make)

    def _make(self, draw: int, k: int) -> tuple[ShapesBatch, list[str], Tensor]:
        world = self.worlds[draw]
        samples = world.batch(k * BLOCK, BLOCK)
        qualities, edited = corrupt_targets(
            samples, self.shares, seed=world.seed * 1_000_003 + k + draw * 500_009
        )
        return samples, qualities, edited

    def _at(self, index: int) -> tuple[ShapesBatch, list[str], Tensor, int]:
        source, draw = divmod(self.first + index, len(self.worlds))
        block, at = divmod(source, BLOCK)
        return *self._block(draw, block), at

    def __len__(self) -> int:
        return self.n

    def quality(self, index: int) -> str:
        """The drawn quality of a row: for tests and reports, never for training."""
        _, qualities, _, at = self._at(index)
        return qualities[at]

    def source_ids(self) -> list[str]:
        """Identifiers of the scene of each row."""
        world = self.worlds[0]
        numbers = range(self.first, self.first + self.n)
        return [f"{world.split}-{world.seed}-{number // len(self.worlds)}" for number in numbers]

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < self.n:
            raise IndexError(index)
        samples, _, edited, i = self._at(index)
        return EditSample(
            id=samples.id[i],
            source=samples.source[i],
            instruction=samples.instruction[i],
            edited=edited[i],
            target=samples.target[i],
            mask=samples.mask[i],
            source_caption=samples.source_caption[i],
            target_caption=samples.target_caption[i],
            edit_type=samples.edit_type[i],
        )
