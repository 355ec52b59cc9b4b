"""The shapes world as rows of a data set: a candidate edit of drawn quality on each."""

from collections.abc import Sequence
from functools import lru_cache

from torch import Tensor

from rewardedit.batch import EditSample
from rewardedit.data.shapes.candidates import candidates
from rewardedit.data.shapes.vocabulary import KINDS
from rewardedit.data.shapes.world import BLOCK, Shapes, ShapesBatch


class ShapesRows(Sequence):
    """n rows; `edited` is a candidate whose quality is drawn with `shares` and known to nobody but this class."""

    def __init__(
        self,
        n: int,
        split: str = "train",
        seed: int = 0,
        backdrops: tuple[str, ...] = ("plain",),
        kinds: tuple[str, ...] = KINDS,
        *,
        shares: dict[str, float],
        first: int = 0,
    ) -> None:
        self.world = Shapes(split, seed, backdrops, kinds)
        self.n, self.first, self.shares = n, first, shares
        self._block = lru_cache(maxsize=8)(self._make)

    def _make(self, k: int) -> tuple[ShapesBatch, list[str], Tensor]:
        samples = self.world.batch(k * BLOCK, BLOCK)
        qualities, edited = candidates(samples, self.shares, seed=self.world.seed * 1_000_003 + k)
        return samples, qualities, edited

    def __len__(self) -> int:
        return self.n

    def quality(self, index: int) -> str:
        """The drawn quality of a row: for tests and reports, never for training."""
        block, at = divmod(self.first + index, BLOCK)
        return self._block(block)[1][at]

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < self.n:
            raise IndexError(index)
        block, i = divmod(self.first + index, BLOCK)
        samples, _, edited = self._block(block)
        return EditSample(
            id=samples.id[i],
            source=samples.source[i],
            instruction=samples.instruction[i],
            edited=edited[i],
            target=samples.target[i],
            mask=samples.mask[i],
            source_caption=samples.source_caption[i],
            target_caption=samples.target_caption[i],
        )
