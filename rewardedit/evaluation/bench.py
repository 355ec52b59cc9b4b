"""Scores of a benchmark's items by the scoring engine, and what they were made of."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rewardedit.data import Rows
from rewardedit.evaluation.protocols.protocol import ItemScores
from rewardedit.files import AnyPath
from rewardedit.scorers import Scorer
from rewardedit.scoring import read_columns, score_shards
from rewardedit.untrusted import file_name

SCORES = "scores"  # folder of the scores, with one folder for each scorer


def scores_folder(out: AnyPath, scorer: str) -> AnyPath:
    """The folder of a scorer's shards and of the settings that they were made with."""
    return out / SCORES / file_name(scorer)


def score_items(
    out: AnyPath,
    scorer: str,
    made_of: Any,
    rows: Rows,
    load: Callable[[], dict[str, Scorer]],
    size: int | None = None,
) -> list[AnyPath]:
    """Scores all items by one scorer, shard by shard; shards that are there stay. Returns their paths.

    Raises:
        ValueError: if the folder holds scores that were made with other settings.
    """
    return score_shards(scores_folder(out, scorer), made_of, rows, load, size)


def read_item_scores(shards: Mapping[str, Sequence[AnyPath]]) -> ItemScores:
    """The scores in these shards by scorer. An item whose images could not be read has no entry."""
    values: dict[str, dict[str, float | None]] = {}
    reasons: dict[str, dict[str, str]] = {}
    for scorer, paths in shards.items():
        values[scorer] = {}
        reasons[scorer] = {}
        columns = read_columns(paths, "id", "instruction", "score", "reason")
        for name, instruction, score, reason in zip(*columns, strict=True):
            if reason is not None:
                reasons[scorer][name] = reason
            if instruction is not None:  # it was read
                values[scorer][name] = score
    return ItemScores(values, {}, reasons)


def require_scores(scores: ItemScores) -> None:
    """Raises ValueError, with the first reason, if no item has a score."""
    for values in scores.values.values():
        if any(value is not None for value in values.values()):
            return
    for scorer, reasons in scores.reasons.items():
        for name, reason in reasons.items():
            raise ValueError(f"{scorer}: nothing could be scored; {name}: {reason}")
    raise ValueError("nothing could be scored")


def without_items(scores: ItemScores, left_out: Mapping[str, set[str]]) -> ItemScores:
    """The scores without some items of some scorers."""
    values = {}
    for scorer, by_item in scores.values.items():
        gone = left_out.get(scorer, set())
        values[scorer] = {name: value for name, value in by_item.items() if name not in gone}
    return ItemScores(values, scores.decisions, scores.reasons)
