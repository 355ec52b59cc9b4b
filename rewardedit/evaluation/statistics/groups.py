"""Correlations within groups of items, such as the edits by each editor, and their average by Fisher's z."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np

from rewardedit.evaluation.statistics.bootstrap import (
    NONE,
    Clusters,
    Comparison,
    Estimate,
    Values,
    cluster_index,
    cluster_names,
    drawn_counts,
    percentile_interval,
    require_two,
    two_sided_p,
)
from rewardedit.evaluation.statistics.correlation import (
    WEIGHTED,
    Method,
    Weighted,
    checked,
    compared,
    constant,
)

# The released code of VIEScore and ADIEE leaves out the transformation: tanh of the mean ρ.
Compat = Literal["viescore"]
PERFECT = 1 - 1e-9  # |ρ| above it is 1


@dataclass(frozen=True)
class GroupedCorrelation:
    """Correlations within groups, and their average."""

    average: Estimate  # average over the groups whose correlation is defined; `reason` says what is left out
    mean: float  # mean of the same correlations, without Fisher's transformation
    groups: dict[Any, Estimate]

    def as_dict(self) -> dict[str, Any]:
        mean = self.mean if np.isfinite(self.mean) else None
        groups = {name: group.as_dict() for name, group in self.groups.items()}
        return {"average": self.average.as_dict(), "mean": mean, "groups": groups}


@dataclass(frozen=True)
class Cell:
    """Rows of a group and their correlation as a function of weights."""

    rows: np.ndarray
    statistic: Weighted | None  # None where the correlation is undefined
    reason: str = ""

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray, rows: np.ndarray, method: Method) -> "Cell":
        """The correlation of a and b in some rows."""
        reason = constant(a[rows], b[rows]) if len(rows) >= 3 else f"undefined: {len(rows)} of 3 items"
        return cls(rows, None if reason else WEIGHTED[method](a[rows], b[rows]), reason)

    def value(self, weight: np.ndarray) -> float:
        """The correlation by the weights (n,) of all items."""
        return float("nan") if self.statistic is None else self.statistic(weight[self.rows])


def fisher_mean(values: Values, compat: Compat | None = None) -> float:
    """The average correlation tanh(mean(arctanh ρ)), in [-1, 1]; NaNs are left out.

    A group with |ρ| = 1 has an infinite z and makes the average ±1.

    Args:
        compat: "viescore" for tanh(mean ρ), the slip in the released code of VIEScore and ADIEE.
    """
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    if not len(known):
        return float("nan")
    if compat == "viescore":
        return float(np.tanh(known.mean()))
    with np.errstate(divide="ignore", invalid="ignore"):  # arctanh(1), and ∞ − ∞
        return float(np.tanh(np.arctanh(known).mean()))


def correlation_by_group(
    a: Values,
    b: Values,
    group: Sequence[Hashable],
    cluster: Clusters | None = None,
    method: Method = "spearman",
    compat: Compat | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> GroupedCorrelation:
    """The correlation within each group, and the average of all by `fisher_mean`, each group counting alike.

    Source images are drawn with replacement with all their items, of every group. Where a group's |ρ| is 1 in
    a resample alone, it is undefined there and the average is of the others; `reason` says in how many.

    Args:
        a: (n,) values of the items, e.g. scores.
        b: (n,) other values of the same items, e.g. people's ratings.
        group: (n,) the group of each item, e.g. its editor.
        cluster: (n,) the source image of each item; None if each item has its own.
        compat: as in `fisher_mean`.

    Raises:
        ValueError: as `correlation`.
    """
    a, b, names = checked(a, b, cluster)
    cells = {name: [Cell.of(a, b, rows, method)] for name, rows in _rows(group, len(a)).items()}
    return _average(cells, names, compat, resamples, seed)


def difference_by_group(
    a: Values,
    b: Values,
    truth: Values,
    group: Sequence[Hashable],
    cluster: Clusters | None = None,
    method: Method = "spearman",
    compat: Compat | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """The difference of two scorers' averages by `correlation_by_group`, its interval and p-value, from the
    same resamples for both, over the groups for which both correlations are defined.

    Args:
        a: (n,) values of the items, e.g. a scorer's.
        b: (n,) another scorer's values of the same items.
        truth: (n,) values that both are correlated with, e.g. people's.
        group: as in `correlation_by_group`.
        cluster: as in `correlation_by_group`.
        compat: as in `correlation_by_group`.

    Raises:
        ValueError: as `correlation`, and on fewer than two source images.
    """
    first, truth_of_first, names = checked(a, truth, cluster)
    second, _, _ = checked(b, truth, cluster)
    require_two(names)
    rows_of = _rows(group, len(first)).values()
    cells_a = [Cell.of(first, truth_of_first, rows, method) for rows in rows_of]
    cells_b = [Cell.of(second, truth_of_first, rows, method) for rows in rows_of]
    whole = np.ones(len(first))
    own_a = _values(cells_a, whole)
    own_b = _values(cells_b, whole)
    index, clusters = cluster_index(names)

    def averages(weight: np.ndarray) -> tuple[float, float]:
        of_a = _averaged(_values(cells_a, weight), own_a, compat)
        of_b = _averaged(_values(cells_b, weight), own_b, compat)
        both = np.isfinite(of_a) & np.isfinite(of_b)
        return fisher_mean(of_a[both], compat), fisher_mean(of_b[both], compat)

    drawn = np.array([averages(counts[index]) for counts in drawn_counts(clusters, resamples, seed)])
    value_a, value_b = averages(whole)
    return compared(value_a, value_b, drawn[:, 0] - drawn[:, 1], len(first), clusters)


def rater_agreement(
    ratings: np.ndarray,
    group: Sequence[Hashable],
    cluster: Clusters | None = None,
    method: Method = "spearman",
    compat: Compat | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> GroupedCorrelation:
    """Agreement among people: each rater against the mean of the others within each group, averaged over
    raters and then over groups by `fisher_mean`; a rater's |ρ| of 1 in a resample alone is undefined, as in
    `correlation_by_group`.

    Args:
        ratings: (n, raters) of the same items; NaN where a rater gave none.
        group: as in `correlation_by_group`.
        cluster: as in `correlation_by_group`.
        compat: as in `correlation_by_group`. With "viescore" both averages have the slip.

    Raises:
        ValueError: on ratings of another shape, or fewer than two raters.
    """
    ratings = np.asarray(ratings, dtype=float)
    if ratings.ndim != 2 or ratings.shape[1] < 2:
        raise ValueError(f"ratings: expected (items, raters) with at least two raters; got {ratings.shape}")
    names = cluster_names(cluster, len(ratings))
    pairs = [_against_the_others(ratings, rater) for rater in range(ratings.shape[1])]
    cells: dict[Any, list[Cell]] = {}
    for name, rows in _rows(group, len(ratings)).items():
        cells[name] = []
        for one_rater, others in pairs:
            both = rows[np.isfinite(one_rater[rows]) & np.isfinite(others[rows])]
            cells[name].append(Cell.of(one_rater, others, both, method))
    return _average(cells, names, compat, resamples, seed)


def _against_the_others(ratings: np.ndarray, rater: int) -> tuple[np.ndarray, np.ndarray]:
    """A rater's ratings (n,) and the mean of the others', NaN where there is none."""
    others = np.delete(ratings, rater, axis=1)
    known = np.isfinite(others)
    with np.errstate(invalid="ignore"):
        mean = np.where(known, others, 0).sum(1) / known.sum(1)
    return ratings[:, rater], mean


def _rows(group: Sequence[Hashable], n: int) -> Mapping[Any, np.ndarray]:
    """Rows of each group, in the order of its first item."""
    if len(group) != n:
        raise ValueError(f"group: expected one of each of {n} items; got {len(group)}")
    rows: dict[Any, list[int]] = {}
    for row, name in enumerate(group):
        rows.setdefault(name, []).append(row)
    return {name: np.array(indices) for name, indices in rows.items()}


def _values(cells: Sequence[Cell], weight: np.ndarray) -> np.ndarray:
    """Correlations (cells,) by the weights (n,) of all items."""
    return np.array([cell.value(weight) for cell in cells])


def _averaged(drawn: np.ndarray, values: np.ndarray, compat: Compat | None) -> np.ndarray:
    """Correlations (…, cells) of resamples as they are averaged: NaN where |ρ| is 1 but that of all items,
    `values` (cells,), is not. Its infinite z would make the average ±1, and comes of few distinct items.
    """
    if compat == "viescore" or np.isfinite(values).sum() < 2:
        return drawn  # no z, or no average
    return np.where((np.abs(drawn) > PERFECT) & ~(np.abs(values) > PERFECT), np.nan, drawn)


def _by_group(values: np.ndarray, sizes: Sequence[int], compat: Compat | None) -> np.ndarray:
    """Correlations (…, groups) of cells (…, cells): each group's own, or the average of its `sizes` cells."""
    correlations = []
    for of_group in np.split(values, np.cumsum(sizes)[:-1], axis=1):
        single = of_group.shape[1] == 1
        correlations.append(of_group[:, 0] if single else [fisher_mean(row, compat) for row in of_group])
    return np.array(correlations).T


def _average(
    cells: Mapping[Any, Sequence[Cell]], names: np.ndarray, compat: Compat | None, resamples: int, seed: int
) -> GroupedCorrelation:
    """The groups' correlations and their average, with intervals from the same resamples."""
    index, clusters = cluster_index(names)
    flat = list(chain.from_iterable(cells.values()))
    sizes = list(map(len, cells.values()))
    undrawn = _values(flat, np.ones(len(names)))
    drawn = np.full((1, len(flat)), np.nan)
    if clusters > 1:
        drawn = np.array([_values(flat, counts[index]) for counts in drawn_counts(clusters, resamples, seed)])

    averaged = _averaged(drawn, undrawn, compat)
    values = _by_group(undrawn[None], sizes, compat)[0]
    of_groups = _by_group(averaged, sizes, compat)
    # a group of one cell is no average: its interval is of all resamples
    shown = np.where(np.array(sizes) == 1, _by_group(drawn, sizes, compat), of_groups)

    groups = {}
    for name, value, of_group in zip(cells, values, shown.T, strict=True):
        rows = np.unique(np.concatenate([cell.rows for cell in cells[name]]))
        reason = "; ".join(dict.fromkeys(cell.reason for cell in cells[name] if cell.reason))
        groups[name] = _estimate(float(value), of_group, len(rows), len(set(index[rows])), reason)

    left_out = [f"{name}: {one.reason}" for name, one in groups.items() if np.isnan(one.value)]
    undefined = int((np.isnan(averaged) & np.isfinite(drawn)).any(1).sum())
    if undefined:
        left_out.append(f"|ρ| = 1 left out in {undefined} of {len(drawn)} resamples")
    averages = np.array([fisher_mean(row, compat) for row in of_groups])
    kept = int(np.isfinite(values).sum())
    n = sum(one.n for one in groups.values() if np.isfinite(one.value))
    average = _estimate(fisher_mean(values, compat), averages, n, clusters, "; ".join(left_out))
    return GroupedCorrelation(average, float(np.nanmean(values)) if kept else float("nan"), groups)


def _estimate(value: float, drawn: np.ndarray, n: int, clusters: int, reason: str) -> Estimate:
    if np.isnan(value) or clusters < 2:
        return Estimate(value, NONE, n, clusters, reason=reason)
    interval = percentile_interval(drawn, clusters)
    return Estimate(value, interval, n, clusters, two_sided_p(drawn, clusters), reason)
