"""The preferred edits of a data set of pairs, as rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rewardedit.batch import EditPair, EditSample
from rewardedit.data.hub import HubPairs


class PreferredRows(Sequence):
    """The preferred edit of each pair; pairs of which neither edit is preferred are left out."""

    def __init__(
        self, kind: type[HubPairs], path: str, split: str = "train", root: str | None = None
    ) -> None:
        self.pairs: Any = kind(path, split, root=root)
        ties = set(self.pairs.ties())
        self.numbers = [number for number in range(len(self.pairs)) if number not in ties]
        if not self.numbers:
            raise ValueError(
                f"{path}: expected pairs of which one edit is preferred; all {len(ties)} are ties"
            )

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        return self.pair_of(index).left

    def has_pairs(self) -> bool:
        """Always true: rows hold a rejected edit beside the preferred one."""
        return True

    def pair_of(self, index: int) -> EditPair:
        """A row's two edits; the left one is preferred.

        Raises:
            ValueError: if one cannot be read.
        """
        pair = self.pairs[self.numbers[index]]
        if pair.preferred == "left":
            return pair
        return replace(pair, left=pair.right, right=pair.left, preferred="left")

    def source_ids(self) -> list[str]:
        """The source image of each row, by the content of its file."""
        sources = self.pairs.source_ids()
        return [sources[number] for number in self.numbers]

    def id_of(self, index: int) -> str:
        """The pair's number in the data set, also if it cannot be read."""
        return str(self.numbers[index])
