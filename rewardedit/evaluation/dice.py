"""Evaluation of DICE's parts, and its tables: differences found, judgements, augmented CLIP, editors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from scipy.stats import rankdata

from rewardedit.batch import EditBatch, Scores
from rewardedit.evaluation.average_precision import average_precision
from rewardedit.evaluation.statistics import (
    Estimate,
    clustered_mean,
    correlation,
    difference_by_group,
    spearman,
)
from rewardedit.evaluation.statistics.bootstrap import Clusters, Values
from rewardedit.regions.differences import Box, Detection, Difference, DifferenceDetector
from rewardedit.scorers.dice_vlm import CoherenceJudge, Verdict

BACKGROUND = 0.95  # least area of an EDIT, as a share of the image, that counts as one of the background
METHODS = ("pearson", "spearman")


@dataclass(frozen=True)
class Judged:
    """A difference's box with the judgement of it."""

    box: Box
    confidence: float
    coherent: bool | None


def without_background(differences: Iterable[Difference]) -> list[Difference]:
    """The differences that count for average precision: all but EDITs of the whole image."""
    return [one for one in differences if not is_background(one)]


def is_background(difference: Difference) -> bool:
    """True for an EDIT of the whole image."""
    return difference.command == "EDIT" and _area(difference.box) >= BACKGROUND


def _area(box: Box) -> float:
    x0, y0, x1, y1 = box
    return (x1 - x0) * (y1 - y0)


def detect_all(detector: DifferenceDetector, batches: Iterable[EditBatch]) -> list[Detection]:
    """Finds the differences of all rows of some batches."""
    detections: list[Detection] = []
    for batch in batches:
        detections += detector.detect(batch)
    return detections


def detection_table(
    detections: Sequence[Detection],
    truth: Sequence[Sequence[Difference]],
    cluster: Clusters | None = None,
    resamples: int = 1000,
) -> dict[str, Any]:
    """AP@[.5:.95] and AP50, in [0, 1], class-agnostic and with the command as class, and of each command.

    Edits of the background are left out of both sides. An answer that could not be read found nothing.

    Returns:
        "agnostic", "aware" and each command: {"ap", "ap50", "ci95", "n", …}; "invalid", the share of answers
        that could not be read; "dropped", of the items of all answers.
    """
    detected = [without_background(detection.differences) for detection in detections]
    annotated = list(map(without_background, truth))
    table: dict[str, Any] = {}
    for name, kind in (("agnostic", lambda one: ""), ("aware", lambda one: one.command)):
        estimate, at_50 = average_precision(detected, annotated, kind, cluster, resamples)
        table[name] = estimate.as_dict("ap") | {"ap50": at_50}
    for command in sorted({one.command for one in chain.from_iterable(annotated)}):
        detected_one = [_of_command(row, command) for row in detected]
        annotated_one = [_of_command(row, command) for row in annotated]
        estimate, at_50 = average_precision(detected_one, annotated_one, cluster=cluster, resamples=resamples)
        table[command] = estimate.as_dict("ap") | {"ap50": at_50}
    items = sum(detection.items for detection in detections)
    table["invalid"] = float(np.mean([detection.reason is not None for detection in detections]))
    table["dropped"] = sum(detection.dropped for detection in detections) / items if items else 0.0
    return table


def _of_command(differences: Iterable[Difference], command: str) -> list[Difference]:
    return [one for one in differences if one.command == command]


def false_alarms(detections: Sequence[Detection], cluster: Clusters | None = None) -> Estimate:
    """The share, in [0, 1], of untouched images in which a difference is found; answers that could not be
    read are left out.
    """
    values = [np.nan if one.reason else float(bool(one.differences)) for one in detections]
    return clustered_mean(values, cluster)


def judge_all(
    judge: CoherenceJudge, batch: EditBatch, differences: Sequence[Sequence[Difference]]
) -> list[list[Verdict]]:
    """Judges the given differences of each row."""
    verdicts = []
    for i, row in enumerate(differences):
        verdicts.append(judge.judge(batch.source[i], batch.edited[i], batch.instruction[i], row))
    return verdicts


def coherence_accuracy(
    verdicts: Sequence[Verdict], labels: Sequence[bool], cluster: Clusters | None = None
) -> Estimate:
    """The share of right judgements, in [0, 1]; one that is neither yes nor no is wrong."""
    pairs = zip(verdicts, labels, strict=True)
    return clustered_mean([float(verdict.coherent is label) for verdict, label in pairs], cluster)


def coherence_precision(
    judged: Sequence[Sequence[Judged]],
    truth: Sequence[Sequence[Judged]],
    cluster: Clusters | None = None,
    resamples: int = 1000,
) -> Estimate:
    """AP@[.5:.95] of detections whose class is the judgement, the mean of both classes, in [0, 1]."""
    return average_precision(judged, truth, lambda one: str(one.coherent), cluster, resamples)[0]


def augmented_table(
    plain: Values, masked: Values, truth: Values, cluster: Clusters, resamples: int = 1000
) -> dict[str, Any]:
    """Correlations of a metric and of its DICE-augmented form with ratings, and the change with its interval,
    by Pearson and Spearman, over the rows that both score.
    """
    columns = [np.asarray(values, dtype=float) for values in (plain, masked, truth)]
    kept = np.isfinite(columns).all(0)
    first, second, wanted = (values[kept] for values in columns)
    groups = [name for name, keep in zip(cluster, kept, strict=True) if keep]
    table: dict[str, Any] = {"n": int(kept.sum())}
    for method in METHODS:
        change = difference_by_group(
            second, first, wanted, ["all"] * len(first), groups, method, resamples=resamples
        )
        table[method] = {
            "plain": correlation(first, wanted, groups, method, resamples).value,
            "masked": correlation(second, wanted, groups, method, resamples).value,
            "change": change.difference,
            "ci95": change.ci95,
        }
    return table


def editors_table(scores: Mapping[str, Scores], ratings: Mapping[str, Values]) -> dict[str, Any]:
    """DICE's means of each editor, with its rank beside that of exact or human ratings.

    Args:
        scores: of `Dice`, by editor.
        ratings: of the same edits, by editor; higher is better.

    Returns:
        "editors": {name: {"score", "coherent", "unwanted_area", "unchanged", "invalid", "rating", "rank",
        "rank_by_rating"}}, ranks from 1, the best; and "spearman", of the two rankings.
    """
    rows: dict[str, dict[str, float]] = {}
    for name, by_row in scores.items():
        row = {"score": float(by_row.score.nanmean())}
        for sub_score in ("coherent", "unwanted_area", "unchanged"):
            row[sub_score] = float(by_row.parts[sub_score].nanmean())
        row["invalid"] = float((~by_row.valid).float().mean())
        row["rating"] = float(np.nanmean(np.asarray(ratings[name], dtype=float)))
        rows[name] = row
    ours = [row["score"] for row in rows.values()]
    theirs = [row["rating"] for row in rows.values()]
    ranks = zip(rows.values(), rankdata(np.negative(ours)), rankdata(np.negative(theirs)), strict=True)
    for row, rank, by_rating in ranks:
        row |= {"rank": float(rank), "rank_by_rating": float(by_rating)}
    agreement = spearman(ours, theirs).value if len(rows) > 2 else float("nan")
    return {"editors": rows, "spearman": agreement}
