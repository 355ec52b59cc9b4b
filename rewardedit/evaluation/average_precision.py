"""Average precision of boxes as COCO defines it, with intervals over source images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np

from rewardedit.evaluation.statistics.bootstrap import (
    NONE,
    Clusters,
    Comparison,
    Estimate,
    cluster_index,
    cluster_names,
    drawn_counts,
    percentile_interval,
    two_sided_p,
)

THRESHOLDS = tuple(np.arange(50, 100, 5) / 100)  # IoU
RECALLS = np.linspace(0, 1, 101)
MOST = 100  # boxes of an image that count, the most confident
EPSILON = 1e-9  # for images drawn no times


class Boxed(Protocol):
    """A box with a confidence, such as a `Difference`."""

    @property
    def box(self) -> tuple[float, float, float, float]: ...

    @property
    def confidence(self) -> float: ...


Boxes = Sequence[Sequence[Boxed]]  # boxes of each image
Kind = Callable[[Any], str]  # class of a box


@dataclass(frozen=True)
class Matches:
    """Found boxes of one class in falling order of confidence, and which of them hit a true one."""

    image: np.ndarray  # (n,) the number of the image
    hit: np.ndarray  # (thresholds, n), True for a hit
    truths: np.ndarray  # (images,) the number of true boxes


def one_kind(boxed: Any) -> str:
    """The class of a box if classes do not count."""
    return ""


def match(detected: Boxes, truth: Boxes, kind: Kind = one_kind) -> list[Matches]:
    """Matches found boxes with true ones, for each class that a true box has.

    In falling order of confidence, a found box takes the free true box of its class and image with which it
    has the largest IoU, if that is at least the threshold.

    Raises:
        ValueError: if the two have different numbers of images.
    """
    if len(detected) != len(truth):
        raise ValueError(f"detected: expected boxes of {len(truth)} images; got {len(detected)}")
    kinds = dict.fromkeys(map(kind, chain.from_iterable(truth)))
    matches = []
    for name in kinds:
        confidence: list[float] = []
        images: list[int] = []
        hits: list[np.ndarray] = []
        counts = np.zeros(len(truth))
        for i, (predicted, true) in enumerate(zip(detected, truth, strict=True)):
            predicted = [one for one in predicted if kind(one) == name]
            true = [one for one in true if kind(one) == name]
            predicted = sorted(predicted, key=lambda one: -one.confidence)[:MOST]
            counts[i] = len(true)
            confidence += [one.confidence for one in predicted]
            images += [i] * len(predicted)
            hits.append(_hits(predicted, true))
        order = np.argsort(-np.array(confidence), kind="stable")
        hit = np.concatenate(hits, axis=1)[:, order]
        matches.append(Matches(np.array(images, dtype=int)[order], hit, counts))
    return matches


def _hits(detected: Sequence[Boxed], truth: Sequence[Boxed]) -> np.ndarray:
    """(thresholds, n), True for each found box of an image that takes a true one."""
    hits = np.zeros((len(THRESHOLDS), len(detected)), dtype=bool)
    overlaps = _iou([one.box for one in detected], [one.box for one in truth])
    for t, threshold in enumerate(THRESHOLDS):
        free = np.ones(len(truth), dtype=bool)
        for i, row in enumerate(overlaps):
            allowed = np.flatnonzero(free & (row >= threshold))
            if len(allowed):
                free[allowed[row[allowed].argmax()]] = False
                hits[t, i] = True
    return hits


def _iou(a: Sequence[Any], b: Sequence[Any]) -> np.ndarray:
    """Intersection over union (n, m) of boxes that are not empty."""
    first = np.array(a, dtype=float).reshape(-1, 1, 4)
    second = np.array(b, dtype=float).reshape(1, -1, 4)
    low = np.maximum(first[..., :2], second[..., :2])
    high = np.minimum(first[..., 2:], second[..., 2:])
    both = (high - low).clip(0).prod(-1)
    areas = (first[..., 2:] - first[..., :2]).prod(-1) + (second[..., 2:] - second[..., :2]).prod(-1)
    return both / (areas - both)


def precision_at(matches: Matches, weight: np.ndarray) -> np.ndarray:
    """Average precision at each threshold, in [0, 1], images counted by their weight; NaN without truth."""
    total = float(weight @ matches.truths)
    if total == 0:
        return np.full(len(THRESHOLDS), np.nan)
    weights = weight[matches.image]
    hits = np.cumsum(matches.hit * weights, axis=1)
    misses = np.cumsum(~matches.hit * weights, axis=1)
    precision = hits / np.maximum(hits + misses, EPSILON)
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    values = []
    for recall, curve in zip(hits / total, precision, strict=True):
        place = np.searchsorted(recall, RECALLS, side="left")
        values.append(np.append(curve, 0.0)[place].mean())
    return np.array(values)


def mean_precision(matches: Sequence[Matches], weight: np.ndarray) -> tuple[float, float]:
    """AP@[.5:.95] and AP50, each the mean over the classes that have a true box; NaN if none has."""
    curves = np.array([precision_at(one, weight) for one in matches]).reshape(-1, len(THRESHOLDS))
    curves = curves[~np.isnan(curves[:, 0])]
    if not len(curves):
        return float("nan"), float("nan")
    return float(curves.mean()), float(curves[:, 0].mean())


def average_precision(
    detected: Boxes,
    truth: Boxes,
    kind: Kind = one_kind,
    cluster: Clusters | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[Estimate, float]:
    """AP@[.5:.95] in [0, 1] with its interval, and AP50.

    Args:
        kind: the class of a box, such as its command; by default classes do not count.
        cluster: the source image of each image, which are drawn whole; None: all are different.
    """
    matches = match(detected, truth, kind)
    index, clusters = cluster_index(cluster_names(cluster, len(truth)))
    value, at_50 = mean_precision(matches, np.ones(len(truth)))
    if clusters < 2 or np.isnan(value):
        return Estimate(
            value, NONE, len(truth), clusters, reason="no true boxes" * bool(np.isnan(value))
        ), at_50
    drawn = []
    for counts in drawn_counts(clusters, resamples, seed):
        drawn.append(mean_precision(matches, counts[index])[0])
    interval = percentile_interval(np.array(drawn), clusters)
    return Estimate(value, interval, len(truth), clusters), at_50


def precision_difference(
    first: Boxes,
    second: Boxes,
    truth: Boxes,
    kind: Kind = one_kind,
    cluster: Clusters | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """The difference AP(first) − AP(second) with its interval, the same source images drawn for both."""
    index, clusters = cluster_index(cluster_names(cluster, len(truth)))
    pair = [match(detected, truth, kind) for detected in (first, second)]
    whole = np.ones(len(truth))
    a, b = (mean_precision(matches, whole)[0] for matches in pair)
    drawn = []
    for counts in drawn_counts(clusters, resamples, seed):
        values = [mean_precision(matches, counts[index])[0] for matches in pair]
        drawn.append(values[0] - values[1])
    differences = np.array(drawn)
    interval = percentile_interval(differences, clusters)
    return Comparison(a, b, a - b, interval, len(truth), clusters, two_sided_p(differences, clusters))
