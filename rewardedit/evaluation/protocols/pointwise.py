"""Benchmarks of single edits: rank correlation of scores with people's ratings, within groups and pooled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rewardedit.evaluation.protocols.protocol import Cell, ItemScores, Options
from rewardedit.evaluation.statistics import GroupedCorrelation, correlation_by_group, spearman
from rewardedit.evaluation.statistics.groups import Compat

LEAST = 3  # items of a correlation


@dataclass(frozen=True)
class Rated:
    """An edit and people's rating of it."""

    id: str
    rating: float  # NaN if nobody rated it
    group: str  # such as its editor
    source: str  # name of the source image


@dataclass(frozen=True)
class Scored:
    """Rated edits that a scorer gave a score."""

    items: Sequence[Rated]
    scores: np.ndarray  # (n,)

    @classmethod
    def of(cls, items: Sequence[Rated], scores: ItemScores, scorer: str) -> "Scored":
        values = scores.array(scorer, [item.id for item in items])
        ratings = np.array([item.rating for item in items])
        usable = np.isfinite(values) & np.isfinite(ratings)
        return cls([item for item, keep in zip(items, usable, strict=True) if keep], values[usable])

    def column(self, get: Callable[[Rated], str]) -> list[str]:
        return list(map(get, self.items))

    @property
    def ratings(self) -> np.ndarray:
        return np.array([item.rating for item in self.items])

    @property
    def sources(self) -> list[str]:
        return [item.source for item in self.items]


def by_group(
    scored: Scored,
    options: Options,
    compat: Compat | None = None,
    get: Callable[[Rated], str] = lambda item: item.group,
) -> dict[str, Cell]:
    """Correlations within each group and their average, "average"; {} for fewer than three edits."""
    if len(scored.items) < LEAST:
        n = len(scored.items)
        return {"average": Cell(n=n, reason=f"undefined: {n} of {LEAST} items")}
    grouped = correlation_by_group(
        scored.scores,
        scored.ratings,
        scored.column(get),
        scored.sources,
        compat=compat,
        resamples=options.resamples,
        seed=options.seed,
    )
    cells = cells_of(grouped)
    return {name: replace(cell, reason=_in_words(cell.reason)) for name, cell in cells.items()}


def _in_words(reason: str) -> str:
    """The reason of a correlation without value, whose first values are scores and second ones ratings."""
    both = reason.replace("all first and all second values", "all scores and all ratings")
    return both.replace("all first values", "all scores").replace("all second values", "all ratings")


def cells_of(grouped: GroupedCorrelation) -> dict[str, Cell]:
    """The average and each group's correlation."""
    cells = {"average": Cell.of(grouped.average)}
    for name, one in grouped.groups.items():
        cells[name] = Cell.of(one)
    return cells


def pooled(scored: Scored, options: Options) -> Cell:
    """Spearman's ρ over all edits."""
    if len(scored.items) < LEAST:
        return Cell(n=len(scored.items), reason=f"undefined: {len(scored.items)} of {LEAST} items")
    return Cell.of(spearman(scored.scores, scored.ratings, scored.sources, options.resamples, options.seed))


def group_mean(items: Sequence[Rated]) -> np.ndarray:
    """Mean rating of each edit's group (n,): the score of a rule that knows only the group."""
    ratings: dict[str, list[float]] = {}
    for item in items:
        if np.isfinite(item.rating):
            ratings.setdefault(item.group, []).append(item.rating)
    return np.array([np.mean(ratings[item.group]) if item.group in ratings else np.nan for item in items])
