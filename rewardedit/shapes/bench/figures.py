"""Figures of a scorer from its scores and the exact ratings."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rewardedit.evaluation.preferences import agreement
from rewardedit.evaluation.protocols.protocol import Cell, ItemScores
from rewardedit.evaluation.statistics import clustered_mean, correlation_by_group, spearman
from rewardedit.shapes.bench.edits import Key
from rewardedit.shapes.bench.rows import KINDS, TARGET, Item, other_rows
from rewardedit.shapes.bench.settings import EDITOR, ShapesBench

WITHIN = "ρ within an editor"
SEEDS = "better of two seeds"
RETRIEVED = "own instruction first"
TRUTH = "ground truth best"
ACROSS = "ρ across editors"


@dataclass(frozen=True)
class Edits:
    """Ratings of all edits, in the order of the keys and the sources."""

    keys: list[Key]
    sources: list[str]
    ratings: dict[Key, np.ndarray]

    @property
    def first(self) -> list[Key]:
        """One key of each editor."""
        return [key for key in self.keys if key[1] == 0]

    def of_first(self, values: Mapping[Key, np.ndarray]) -> np.ndarray:
        """Values of the first edits by all editors, one editor after another."""
        return np.concatenate([values[key] for key in self.first])

    @property
    def cluster(self) -> list[str]:
        """The source of each value of `of_first`."""
        return self.sources * len(self.first)


def lowest_if_not_scored(scores: np.ndarray) -> np.ndarray:
    """Scores with one below all others for an edit without a score."""
    known = scores[np.isfinite(scores)]
    lowest = known.min() - 1 if len(known) else 0.0
    return np.where(np.isfinite(scores), scores, lowest)


def scores_by_key(
    scores: ItemScores, scorer: str, keys: Sequence[Key], n: int, wordings: str
) -> dict[Key, np.ndarray]:
    """Scores (n,) of the images of each key with their own instructions."""
    by_key = {}
    for key in keys:
        ids = [Item(key, row, row, wordings).id for row in range(n)]
        by_key[key] = scores.array(scorer, ids)
    return by_key


def measure_scorer(
    scores: ItemScores, scorer: str, wordings: str, edits: Edits, bench: ShapesBench
) -> dict[str, Cell]:
    """All figures of a scorer under one kind of wordings."""
    values = scores_by_key(scores, scorer, edits.keys, bench.n, wordings)
    images = scores_by_key(scores, scorer, [(kind, 0) for kind in KINDS], bench.n, wordings)
    retrieved = retrieval(scores, scorer, wordings, bench)
    best = favoured_rows(images)
    every = np.concatenate(list(values.values()))
    return {
        **measure_values(values, edits, bench),
        RETRIEVED: Cell.of(clustered_mean(retrieved, edits.sources)),
        TRUTH: Cell.of(clustered_mean(best, edits.sources)),
        "not scored": Cell(float(1 - np.isfinite(every).mean())),
    }


def measure_values(values: Mapping[Key, np.ndarray], edits: Edits, bench: ShapesBench) -> dict[str, Cell]:
    """The figures that follow from scores of the edits alone."""
    scores = lowest_if_not_scored(edits.of_first(values))
    ratings = edits.of_first(edits.ratings)
    groups = np.repeat([name for name, _ in edits.first], bench.n).tolist()
    within = correlation_by_group(scores, ratings, groups, edits.cluster)
    return {
        WITHIN: Cell.of(within.average),
        SEEDS: Cell.of(clustered_mean(*seed_pairs(values, edits, bench.least))),
        ACROSS: Cell.of(spearman(scores, ratings, edits.cluster)),
    }


def seed_pairs(values: Mapping[Key, np.ndarray], edits: Edits, least: float) -> tuple[np.ndarray, list[str]]:
    """1 where the better of two edits of one source by the packaged editor has the higher score, ½ for equal
    scores, NaN where the ratings differ by less than `least`; and the pairs' sources.
    """
    keys = [key for key in edits.keys if key[0] == EDITOR]
    right = []
    sources: list[str] = []
    for a, b in itertools.combinations(keys, 2):
        right.append(agreement(values[a], values[b], edits.ratings[a], edits.ratings[b], least, ties="half"))
        sources += edits.sources
    return np.concatenate(right), sources


def retrieval(scores: ItemScores, scorer: str, wordings: str, bench: ShapesBench) -> np.ndarray:
    """(n,) 1 where the ground truth has its highest score with its own instruction; of k equal ones 1 / k."""
    key = (TARGET, 0)
    shares = []
    for row in range(bench.n):
        instruction_rows = [row, *other_rows(row, bench.n, bench.candidates)]
        candidate_scores = scores.array(
            scorer, [Item(key, row, other, wordings).id for other in instruction_rows]
        )
        shares.append(_share_of_first(candidate_scores))
    return np.array(shares)


def favoured_rows(images: Mapping[Key, np.ndarray]) -> np.ndarray:
    """(n,) 1 where the ground truth has a higher score than noise and an image of its caption; of k equal
    ones 1 / k.
    """
    table = np.stack([images[kind, 0] for kind in KINDS], axis=1)
    return np.array(list(map(_share_of_first, table)))


def _share_of_first(scores: np.ndarray) -> float:
    """1 where the first score is the highest, 1 / k of k highest, else 0."""
    ranked = np.nan_to_num(scores, nan=-np.inf)
    highest = ranked == ranked.max()
    return float(highest[0] / highest.sum())


def editor_means(edits: Edits) -> dict[Key, np.ndarray]:
    """As a score that sees no image: the mean rating of all edits by the same editor."""
    means = {}
    for key in edits.keys:
        ratings = edits.ratings[key[0], 0]
        means[key] = np.full(len(ratings), ratings.mean())
    return means


def chance(bench: ShapesBench) -> dict[str, Cell]:
    """Expected figures of a random score, exactly."""
    return {
        WITHIN: Cell(0.0),
        SEEDS: Cell(0.5),
        ACROSS: Cell(0.0),
        RETRIEVED: Cell(1 / bench.candidates),
        TRUTH: Cell(1 / len(KINDS)),
    }
