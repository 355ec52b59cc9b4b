"""Shares of rows and their mean, with intervals over source images."""

from collections.abc import Sequence

import numpy as np

from rewardedit.evaluation.protocols.protocol import Cell, Options
from rewardedit.evaluation.statistics.bootstrap import drawn_counts, percentile_interval


def share_cells(
    names: Sequence[str], right: np.ndarray, sources: Sequence[str], options: Options, rounded: bool = False
) -> dict[str, Cell]:
    """Shares of ones in each column and their mean, with intervals over source images.

    Args:
        right: (n, columns), NaN where a row does not count.
        rounded: round shares to three digits before the mean, as BPM's code does.
    """
    _, index = np.unique(sources, return_inverse=True)
    clusters = int(index.max()) + 1
    hits = np.zeros((clusters, right.shape[1]))
    counts = np.zeros_like(hits)
    np.add.at(hits, index, np.nan_to_num(right))
    np.add.at(counts, index, ~np.isnan(right))

    def shares(weight: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            means = weight @ hits / (weight @ counts)
        return np.round(means, 3) if rounded else means

    once = shares(np.ones(clusters))
    drawn = np.array(list(map(shares, drawn_counts(clusters, 10 * options.resamples, options.seed))))
    cells = {}
    for column, name in enumerate(names):
        n = int(counts[:, column].sum())
        cells[name] = _cell(once[column], drawn[:, column], n, clusters)
    counted = counts.sum(0) > 0
    mean = once[counted].mean() if counted.any() else np.nan
    cells["average"] = _cell(mean, drawn[:, counted].mean(1), int(counts.sum()), clusters)
    return cells


def _cell(value: float, drawn: np.ndarray, n: int, clusters: int) -> Cell:
    if not np.isfinite(value):
        return Cell(n=n, reason="undefined: there are no pairs of which people prefer one")
    if clusters < 2:
        return Cell(float(value), n=n, reason="no interval: all rows are of one source image")
    return Cell(float(value), percentile_interval(drawn, clusters), n)
