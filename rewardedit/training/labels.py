"""Checks of the labels that a scorer learns from, and its agreement with labels of held-out rows."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from rewardedit.batch import EditSample
from rewardedit.data import DataConfig, Rows, source_ids
from rewardedit.data.bad_rows import ValidatedRows
from rewardedit.data.reading import read_batches
from rewardedit.evaluation.statistics import spearman
from rewardedit.scorers import Scorer
from rewardedit.scoring import score_batch


def require_label(sample: EditSample) -> float:
    """Returns the row's label.

    Raises:
        ValueError: if it has none, or if its label or that of one of its axes lies outside 0 to 10.
    """
    if sample.label is None:
        raise ValueError(f"row {sample.id}: expected a label from 0 to 10; it has none")
    for name, label in {"label": sample.label, **sample.axes}.items():
        if not 0 <= label <= 10:
            raise ValueError(f"row {sample.id}: {name}: expected 0 to 10; got {label:g}")
    return sample.label


def all_labels(sample: EditSample, axes: Sequence[str]) -> list[float]:
    """The row's label, then those of the axes; NaN for an axis without one."""
    return [require_label(sample), *(sample.axes.get(axis, math.nan) for axis in axes)]


def require_axes(rows: Rows, usable: list[int], axes: tuple[str, ...]) -> None:
    """Raises ValueError if no usable row has a label of one of the axes, which would train nothing."""
    missing = set(axes)
    for row in usable:
        if not missing:
            break
        missing -= rows[row].axes.keys()
    if missing:
        raise ValueError(f"axes: no row has a label of {', '.join(sorted(missing))}")


@torch.no_grad()
def evaluate_scorer(scorer: Scorer, rows: Rows, data: DataConfig, batch_size: int = 32) -> dict[str, Any]:
    """Spearman's ρ of scores and labels of held-out rows, mean error, and number of rows left out."""
    scores: list[float] = []
    labels: list[float] = []
    sources: list[str] = []
    names = source_ids(rows)
    for chunk in read_batches(
        ValidatedRows(rows, require_label), data.size, data.resize, batch_size, fields=()
    ):
        if chunk.pixels is not None:
            labels += [require_label(rows[i]) for i in chunk.numbers]
            scores += score_batch(chunk.pixels, {"": scorer})[""].score.tolist()
            sources += [names[i] for i in chunk.numbers]
    error = float((torch.tensor(scores) - torch.tensor(labels)).abs().mean())
    summary = {"error": error, "left_out": len(rows) - len(labels)}
    return {"n": len(labels), "held_out": {**spearman(scores, labels, sources).as_dict("rho"), **summary}}
