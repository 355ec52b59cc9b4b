"""Comparison of editors by their edits' scores: which is better, by how much, and on which kinds of edit.

Requests (a source image and an instruction) are paired: a score that is invalid, or an edit that is missing,
takes its request out of what it would have a part in, and is counted. Means and ranks are over the requests
for which all editors have a valid score, differences and wins of two editors over those for which both have
one. Intervals are over source images.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, compress
from typing import Any

import numpy as np
from scipy.stats import rankdata

from rewardedit.evaluation.statistics import Estimate, bradley_terry, clustered_means
from rewardedit.evaluation.statistics.bootstrap import (
    NONE,
    cluster_index,
    cluster_names,
    drawn_counts,
    percentile_interval,
)

RESAMPLES = 1000  # of strengths and of the agreement of scorers
LEAST_RANKED = 3  # editors whose order by two scorers can be correlated


@dataclass(frozen=True)
class EditorScores:
    """Scores of k editors' edits of the same n requests, higher is better."""

    editors: Sequence[str]
    scores: Mapping[str, np.ndarray]  # (n, k) by scorer; NaN: no valid score
    made: np.ndarray  # (n, k) True where the editor has an edit, whether or not it could be scored
    source: Sequence[Hashable]  # (n,) source images
    kind: Sequence[str] = ()  # (n,) kinds of edit, "" for none; or empty

    def __post_init__(self) -> None:
        shape = (len(self.source), len(self.editors))
        shapes = {np.shape(self.made), *map(np.shape, self.scores.values())}
        if shapes != {shape} or len(self.kind) not in (0, shape[0]):
            raise ValueError(
                f"expected scores and edits of {shape[0]} requests and {shape[1]} editors; got {shapes}"
            )
        if not shape[1] or not self.scores:
            raise ValueError("expected at least one editor and one scorer")


@dataclass(frozen=True)
class Standing:
    """An editor by one scorer."""

    mean: Estimate  # over the requests for which all editors have a score
    win_rate: Estimate | None  # 0 to 1, against the others; None for a single editor
    strength: Estimate | None  # strength by Bradley and Terry, a natural logarithm; the editors' mean is 0
    valid: int  # scores
    invalid: int  # edits without a valid score
    missing: int  # requests without an edit


@dataclass(frozen=True)
class Pair:
    """Two editors by one scorer, over the requests for which both have a score."""

    a: str
    b: str
    difference: Estimate  # a − b
    win_rate: Estimate  # share of a's wins, 0 to 1; a tie is half a win
    wins: int  # number of a's wins
    ties: int
    losses: int
    # p-value of no difference, corrected by Holm for all pairs (or kinds of edit); None if there is none
    p: float | None = None

    @property
    def clear(self) -> int:
        """1 if a is better, −1 if b is, 0 if no difference can be told: p is above 0.05."""
        if self.p is None or self.p > 0.05:
            return 0
        return 1 if self.difference.value > 0 else -1

    @property
    def turned(self) -> "Pair":
        """The same comparison as b − a."""
        of = self.difference
        rate = self.win_rate
        difference = replace(of, value=-of.value, ci95=(-of.ci95[1], -of.ci95[0]))
        win_rate = replace(rate, value=1 - rate.value, ci95=(1 - rate.ci95[1], 1 - rate.ci95[0]))
        return Pair(self.b, self.a, difference, win_rate, self.losses, self.ties, self.wins, self.p)


@dataclass(frozen=True)
class ByScorer:
    """The editors by one scorer."""

    requests: int  # for which all editors have a score
    standings: dict[str, Standing]  # by editor
    pairs: list[Pair]
    kinds: dict[str, list[Pair]]  # by kind of edit, p corrected over the kinds

    @property
    def ranked(self) -> list[str]:
        """The editors, the highest mean first; by strength if no request has scores of all."""
        values = {}
        for name, one in self.standings.items():
            known = one.strength if one.strength is not None and not self.requests else one.mean
            values[name] = known.value
        return sorted(values, key=lambda name: (np.isnan(values[name]), -values[name]))

    @property
    def better_than_first(self) -> list[str]:
        """Editors that are better than the highest one where both have a score; means are over the requests
        for which all have one, and may say the opposite.
        """
        first, *others = self.ranked
        return [name for name in others if self.pair(first, name).clear < 0]

    def pair(self, a: str, b: str, kind: str | None = None) -> Pair:
        """The comparison a − b, in whichever order it was made."""
        for pair in self.pairs if kind is None else self.kinds[kind]:
            if (pair.a, pair.b) == (a, b):
                return pair
            if (pair.a, pair.b) == (b, a):
                return pair.turned
        raise KeyError((a, b))


@dataclass(frozen=True)
class Agreement:
    """Agreement of two scorers on the order of the editors, by their means over the same requests."""

    scorers: tuple[str, str]
    kendall: Estimate  # τ-b, −1 to 1; n is the number of editors, its interval is over source images
    spearman: Estimate  # ρ, −1 to 1


@dataclass(frozen=True)
class EditorComparison:
    """The comparison of all editors by all scorers."""

    editors: list[str]
    tie: float
    scorers: dict[str, ByScorer]
    agreement: list[Agreement]

    def as_dict(self) -> dict[str, Any]:
        """All numbers as JSON has them."""
        scorers = {}
        for name, one in self.scorers.items():
            kinds = {kind: list(map(_pair_dict, pairs)) for kind, pairs in one.kinds.items()}
            scorers[name] = {
                "requests": one.requests,
                "editors": {editor: _standing_dict(standing) for editor, standing in one.standings.items()},
                "pairs": list(map(_pair_dict, one.pairs)),
                "kinds": kinds,
            }
        agreement = []
        for one in self.agreement:
            both = {"kendall": one.kendall.as_dict(), "spearman": one.spearman.as_dict()}
            agreement.append({"scorers": list(one.scorers), **both})
        return {"editors": self.editors, "tie": self.tie, "scorers": scorers, "agreement": agreement}


def compare_editors(given: EditorScores, tie: float = 0.0, seed: int = 0) -> EditorComparison:
    """Compares editors by their scores (ADIEE's Tables 3 and 5, BPM's Table 10).

    Args:
        tie: scores that differ by no more than this are a tie, half a win for both.
        seed: of the resamples of source images.

    Returns:
        Statistics are NaN, with the reason, where there is too little to compute them from.
    """
    scorers = {name: _by_scorer(given, name, tie, seed) for name in given.scores}
    agreement = [_agreement(given, both, seed) for both in combinations(given.scores, 2)]
    return EditorComparison(list(given.editors), tie, scorers, agreement)


def _by_scorer(given: EditorScores, scorer: str, tie: float, seed: int) -> ByScorer:
    scores = np.asarray(given.scores[scorer], dtype=float)
    valid = np.isfinite(scores)
    complete = np.asarray(valid.all(axis=1))
    k = len(given.editors)
    means = clustered_means(np.where(complete[:, None], scores, np.nan), given.source, seed=seed)
    pairs = _pairs(given, scores, np.ones(len(scores), dtype=bool), tie, seed)
    kinds = {}
    for kind in sorted(set(given.kind) - {""}):
        kinds[kind] = _pairs(given, scores, np.array(given.kind) == kind, tie, seed)

    wins = _wins(scores, tie)
    rates: list[Estimate | None] = [None] * k
    strengths: list[Estimate | None] = [None] * k
    if k > 1:
        with np.errstate(invalid="ignore"):
            share = np.nansum(wins, 2) / (~np.isnan(wins)).sum(2)
        rates = [*clustered_means(share, given.source, seed=seed)]
        strengths = [*_strengths(wins, given.source, seed)]
    standings = {}
    for i, editor in enumerate(given.editors):
        made = given.made[:, i]
        counts = (valid[:, i].sum(), (made & ~valid[:, i]).sum(), (~made).sum())
        standings[editor] = Standing(means[i], rates[i], strengths[i], *map(int, counts))
    return ByScorer(
        int(complete.sum()), standings, _corrected(pairs), _corrected_over_kinds(kinds, len(pairs))
    )


def _wins(scores: np.ndarray, tie: float) -> np.ndarray:
    """Wins (n, k, k) of the first editor against the second: 1, 0, or half for a tie; NaN for an editor
    against itself, and where one of them has no score.
    """
    gap = scores[:, :, None] - scores[:, None, :]
    wins = np.where(np.abs(gap) <= tie, 0.5, gap > 0)
    none = np.isnan(gap) | np.eye(scores.shape[1], dtype=bool)
    return np.where(none, np.nan, wins)


def _pairs(given: EditorScores, scores: np.ndarray, kept: np.ndarray, tie: float, seed: int) -> list[Pair]:
    """All pairs of editors over the kept requests; p is not corrected."""
    both = list(combinations(range(len(given.editors)), 2))
    if not both:
        return []
    wins = _wins(scores, tie)
    columns = []
    for a, b in both:
        columns += [scores[:, a] - scores[:, b], wins[:, a, b]]
    values = np.where(kept[:, None], np.stack(columns, 1), np.nan)
    estimates = clustered_means(values, given.source, seed=seed)

    pairs = []
    for number, (a, b) in enumerate(both):
        difference, rate = estimates[2 * number : 2 * number + 2]
        won = values[:, 2 * number + 1]
        counts = (int((won == 1).sum()), int((won == 0.5).sum()), int((won == 0).sum()))
        names = (given.editors[a], given.editors[b])
        pairs.append(Pair(*names, difference, _without_p(rate), *counts, difference.p))
    return pairs


def _without_p(estimate: Estimate) -> Estimate:
    """The estimate without the p-value of 0, which says nothing of a mean score or a share."""
    return replace(estimate, p=None)


def holm(p: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for their number by Holm (1979); None stays, and does not count."""
    known = sorted((value, i) for i, value in enumerate(p) if value is not None)
    corrected: list[float | None] = [None] * len(p)
    highest = 0.0
    for rank, (value, i) in enumerate(known):
        highest = max(highest, min(1.0, value * (len(known) - rank)))
        corrected[i] = highest
    return corrected


def _corrected(pairs: Sequence[Pair]) -> list[Pair]:
    values = holm([pair.p for pair in pairs])
    return [replace(pair, p=p) for pair, p in zip(pairs, values, strict=True)]


def _corrected_over_kinds(kinds: Mapping[str, list[Pair]], n: int) -> dict[str, list[Pair]]:
    """The pairs of each kind, with p corrected for the number of kinds."""
    corrected: dict[str, list[Pair]] = {kind: [] for kind in kinds}
    for number in range(n):
        adjusted = _corrected([pairs[number] for pairs in kinds.values()])
        for kind, pair in zip(kinds, adjusted, strict=True):
            corrected[kind].append(pair)
    return corrected


def _strengths(wins: np.ndarray, source: Sequence[Hashable], seed: int) -> list[Estimate]:
    """Strengths by Bradley and Terry, with intervals from resamples of source images. One tie is added to
    every two editors, so that they are finite where one always wins.
    """
    index, clusters = cluster_index(cluster_names(source, len(source)))
    k = wins.shape[1]
    by_source = np.zeros((clusters, k * k))
    np.add.at(by_source, index, np.nan_to_num(wins).reshape(len(wins), -1))
    values = bradley_terry(by_source.sum(0).reshape(k, k))
    drawn = np.stack(list(drawn_counts(clusters, RESAMPLES, seed))) @ by_source
    resampled = bradley_terry(drawn.reshape(-1, k, k))

    n = int((~np.isnan(wins)).any((1, 2)).sum())
    with_wins = len(set(index[(~np.isnan(wins)).any((1, 2))]))
    strengths = []
    for i, value in enumerate(values):
        if not np.isfinite(wins[:, i]).any():
            reason = "undefined: no request has a score of it and of another editor"
            strengths.append(Estimate(float("nan"), NONE, 0, 0, reason=reason))
        elif with_wins < 2:
            reason = "no interval: all items are of one source image"
            strengths.append(Estimate(float(value), NONE, n, with_wins, reason=reason))
        else:
            ends = percentile_interval(resampled[:, i], with_wins)
            strengths.append(Estimate(float(value), ends, n, with_wins))
    return strengths


def _agreement(given: EditorScores, scorers: tuple[str, str], seed: int) -> Agreement:
    """Agreement of the editors' order by two scorers, over requests that both have scored for all."""
    k = len(given.editors)
    first, second = (np.asarray(given.scores[name], dtype=float) for name in scorers)
    kept = np.isfinite(first).all(1) & np.isfinite(second).all(1)
    names = list(compress(given.source, kept))
    clusters = len(set(names))
    reason = ""
    if k < LEAST_RANKED:
        reason = f"undefined: {k} editors are too few to correlate their order"
    elif not clusters:
        reason = "undefined: no request has valid scores of all editors by both scorers"
    if reason:
        nothing = Estimate(float("nan"), NONE, k, clusters, reason=reason)
        return Agreement(scorers, nothing, nothing)

    index, _ = cluster_index(cluster_names(names, len(names)))
    times = np.vstack([np.ones(clusters), *drawn_counts(clusters, RESAMPLES, seed)])
    sums = []
    for scores in (first, second):
        by_source = np.zeros((clusters, k))
        np.add.at(by_source, index, scores[kept])
        sums.append(times @ by_source)  # means times the same number of requests: of the same order
    estimates = []
    for values in (_kendall(*sums), _correlation(rankdata(sums[0], axis=1), rankdata(sums[1], axis=1))):
        if np.isnan(values[0]):
            equal = Estimate(float("nan"), NONE, k, clusters, reason="undefined: all means are equal")
            estimates.append(equal)
            continue
        ends = percentile_interval(values[1:], clusters) if clusters > 1 else NONE
        estimates.append(Estimate(float(values[0]), ends, k, clusters))
    return Agreement(scorers, *estimates)


def _kendall(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Kendall's τ-b (r,) of each two rows of (r, k): the correlation of the signs of all differences."""
    first, second = np.triu_indices(a.shape[1], 1)
    signs = [np.sign(values[:, first] - values[:, second]) for values in (a, b)]
    return _cosine(*signs)


def _correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson's r (r,) of each two rows of (r, k)."""
    return _cosine(a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True))


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a row of zeros has none
        return (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1))


def _standing_dict(standing: Standing) -> dict[str, Any]:
    shown: dict[str, Any] = {"mean": _without_p(standing.mean).as_dict()}
    for name in ("win_rate", "strength"):
        estimate = getattr(standing, name)
        shown[name] = estimate and _without_p(estimate).as_dict()
    counts = {"valid": standing.valid, "invalid": standing.invalid, "missing": standing.missing}
    return {**shown, **counts}


def _pair_dict(pair: Pair) -> dict[str, Any]:
    both = {"difference": pair.difference.as_dict(), "win_rate": pair.win_rate.as_dict()}
    counts = {"wins": pair.wins, "ties": pair.ties, "losses": pair.losses}
    return {"a": pair.a, "b": pair.b, **both, **counts, "p_holm": pair.p}
