"""Preferred edits beside rejected ones, of one source by one instruction: from data sets and tables of pairs,
or the best and the worst of several scored edits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import Subset

from rewardedit.batch import EditPair, EditSample
from rewardedit.data.pairs import Pairs
from rewardedit.data.sources import Rows, source_ids
from rewardedit.images import view_pixels
from rewardedit.untrusted import CONTENT_ERRORS, is_system_error

PAIRED = (
    "give a table with columns source, instruction, winner and loser, or one with a row for each edit and a "
    "score, or name a scorer that ranks the edits"
)


@dataclass(frozen=True)
class Preferences:
    """Pairs whose left edit is preferred, and the groups of rows that give none."""

    pairs: Pairs
    groups: int  # sources with their instructions among the rows
    tied: int  # those whose best and worst scores are equal, or differ by less than was asked for
    alone: int  # those with fewer than two edits with a score

    def __len__(self) -> int:
        return len(self.pairs)

    def __str__(self) -> str:
        """The line of a plan."""
        left_out = []
        if self.tied:
            left_out.append(f"{self.tied} without spread")
        if self.alone:
            left_out.append(f"{self.alone} with fewer than two scored edits")
        without = f"; left out: {', '.join(left_out)}" if left_out else ""
        return f"pairs: {len(self)} of {self.groups} sources with their instructions{without}"


class StoredPairs(Sequence):
    """The pairs that rows hold, rows being the preferred edits."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> EditPair:  # type: ignore[override]
        rows: Any = self.rows
        while isinstance(rows, Subset):
            index = rows.indices[index]
            rows = rows.dataset
        return rows.pair_of(index)


class RankedPairs(Sequence):
    """Pairs of rows by their numbers, of the better and of the worse edit."""

    def __init__(self, rows: Rows, numbers: Sequence[tuple[int, int]]) -> None:
        self.rows = rows
        self.numbers = list(numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> EditPair:  # type: ignore[override]
        winner, loser = (_with_edit(self.rows[number]) for number in self.numbers[index])
        return EditPair(f"{winner.id}>{loser.id}", winner, loser, "left")


def _with_edit(sample: EditSample) -> EditSample:
    return sample if sample.edited is not None else replace(sample, edited=sample.target)


def holds_pairs(rows: Any) -> bool:
    """True if rows hold a rejected edit beside the preferred one."""
    while isinstance(rows, Subset):
        rows = rows.dataset
    return hasattr(rows, "has_pairs") and rows.has_pairs()


def stored_scores(rows: Any) -> list[float] | None:
    """The score of each row, NaN where it has none; None if the data set has no scores."""
    return _column(rows, "scores")


def has_preferences(rows: Any) -> bool:
    """True if rows hold pairs, or edits with scores."""
    return holds_pairs(rows) or stored_scores(rows) is not None


def refuse_candidates(rows: Any) -> None:
    """Raises ValueError if rows hold preferences, which a scorer's ranking of candidates would replace."""
    if has_preferences(rows):
        raise ValueError(
            "candidates: the data has pairs or scores of its own, which would be ignored; leave candidates "
            "out, or take data without them"
        )


def instructions_of(rows: Any) -> list[str | None]:
    """The instruction of each row; None for one that has none, or cannot be read."""
    texts = _column(rows, "instructions")
    return list(map(partial(_instruction, rows), range(len(rows)))) if texts is None else texts


def _instruction(rows: Any, index: int) -> str | None:
    try:
        return rows[index].instruction
    except CONTENT_ERRORS as error:
        if is_system_error(error):
            raise
        return None


def _column(rows: Any, name: str) -> list[Any] | None:
    """A column of a data set for the rows chosen of it; None if it has none."""
    if isinstance(rows, Subset):
        values = _column(rows.dataset, name)
        return None if values is None else [values[i] for i in rows.indices]
    return getattr(rows, name)() if hasattr(rows, name) else None


def preferences(rows: Rows, scores: Sequence[float] | None = None, min_gap: float = 0.0) -> Preferences:
    """The pairs that rows hold; of others the best and the worst edit of each source and instruction.

    Args:
        scores: of each row, NaN where it has none; None: those that the data set has.
        min_gap: groups whose best and worst scores differ by less give no pair, nor do those of equal scores.

    Raises:
        ValueError: if the rows hold no pairs and no scores, or no group gives a pair; for a gap beside pairs
            that rows hold.
    """
    if holds_pairs(rows):
        if min_gap:
            raise ValueError(
                "preference.min_gap: has no effect on pairs that the data holds, which have no scores; leave "
                "it out"
            )
        return Preferences(StoredPairs(rows), len(rows), 0, 0)
    scores = stored_scores(rows) if scores is None else scores
    if scores is None:
        raise ValueError(f"data: expected preferences or scores; the rows have neither; {PAIRED}")
    return best_against_worst(rows, scores, instructions_of(rows), min_gap)


def best_against_worst(
    rows: Rows, scores: Sequence[float], instructions: Sequence[str | None], min_gap: float = 0.0
) -> Preferences:
    """The best and the worst edit of each source and instruction; of equal scores, the first.

    Raises:
        ValueError: if no group gives a pair.
    """
    groups: dict[tuple[str, str | None], list[int]] = {}
    for number, key in enumerate(zip(source_ids(rows), instructions, strict=True)):
        groups.setdefault(key, []).append(number)

    numbers = []
    tied = 0
    for members in groups.values():
        scored = [number for number in members if math.isfinite(scores[number])]
        if len(scored) < 2:
            continue
        best = max(scored, key=scores.__getitem__)
        worst = min(scored, key=scores.__getitem__)
        gap = scores[best] - scores[worst]
        if gap > 0 and gap >= min_gap:
            numbers.append((best, worst))
        else:
            tied += 1
    alone = len(groups) - len(numbers) - tied
    if not numbers:
        gap = f" by at least {min_gap:g}" if min_gap else ""
        raise ValueError(
            f"data: none of {len(groups)} sources with their instructions has two edits whose scores "
            f"differ{gap} ({tied} without spread, {alone} with fewer than two scored edits); {PAIRED}"
        )
    return Preferences(RankedPairs(rows, numbers), len(groups), tied, alone)


class PairRows(Sequence):
    """Pairs as rows: the preferred edit as the edited image, and the rejected one in the place of the
    target, so that one pass reads all images of a pair.

    Reading a pair raises ValueError if its edits are the same image, or are edits of two sources.
    """

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        pair = self.pairs[index]
        winner, loser = (pair.right, pair.left) if pair.preferred == "right" else (pair.left, pair.right)
        if pair.preferred == "tie":
            raise ValueError(f"pair {pair.id}: expected one of the edits to be preferred; got a tie")
        if winner.source is not loser.source and not _same_image(winner.source, loser.source):
            raise ValueError(f"pair {pair.id}: expected two edits of one source image; got two sources")
        if _same_image(winner.edited, loser.edited):
            raise ValueError(f"pair {pair.id}: expected two different edits; both are the same image")
        return replace(winner, id=pair.id, target=loser.edited)


def _same_image(one: Any, other: Any) -> bool:
    pixels, others = view_pixels(one, 3), view_pixels(other, 3)
    return pixels.shape == others.shape and pixels.dtype == others.dtype and torch.equal(pixels, others)
