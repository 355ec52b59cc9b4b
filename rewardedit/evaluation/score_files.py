"""Scores that were computed elsewhere: JSON, CSV or Parquet files with ids."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardedit.data.table import read_records
from rewardedit.evaluation.decisions import BAD, TIE, VOTES, A, B
from rewardedit.evaluation.protocols.protocol import ItemScores
from rewardedit.untrusted import printable, read_json_file

SUFFIXES = (".json", ".csv", ".tsv", ".jsonl", ".parquet")
RECORD = ("scorer", "score", "decision")  # columns of one row a score
OTHERS = ("instruction", "valid", "reason", "parts", "label", "text", "row")  # that `rewardedit score` writes
DECISIONS = {A: A, B: B, TIE: TIE, BAD: BAD, "left": A, "right": B, "bad": BAD, **VOTES}


def read_scores(path: Path) -> ItemScores:
    """The scores of a file, in one of three layouts: an object of JSON with ids and scores by scorer; rows of
    id, scorer and score, as `rewardedit score --out` writes them; or rows of id and a column for each scorer.

    An empty score is none; a row of `rewardedit score` whose images could not be read is left out. In rows of
    id, scorer and score, a column `decision` holds stored decisions between two edits (a, b, tie, both bad),
    in rows whose id is that of the pair; their scores stay empty.

    Raises:
        ValueError: if the file cannot be read, a score is no finite number, or an id comes twice for one
            scorer.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--from-scores {path}: expected a file that ends in {', '.join(SUFFIXES)}")
    if path.suffix.lower() == ".json":
        values = read_json_file(path)
        if isinstance(values, dict):
            return ItemScores({name: _of_object(path, name, items) for name, items in values.items()})
        records = values
    else:
        records = _parquet(path) if path.suffix.lower() == ".parquet" else read_records(path)
    if not isinstance(records, list) or not records or not all(isinstance(row, dict) for row in records):
        raise ValueError(f"{path}: expected rows with ids and scores")
    if "id" not in records[0]:
        raise ValueError(f"{path}: lacks the column id; it has {', '.join(records[0])}")
    return _of_rows(path, records)


def _parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path}: not Parquet that can be read ({error})") from error


def _of_object(path: Path, scorer: str, values: Any) -> dict[str, float | None]:
    if not isinstance(values, Mapping):
        raise ValueError(f"{path}: {printable(scorer)}: expected scores by id; got another value")
    return {name: _score(path, name, value) for name, value in values.items()}


def _of_rows(path: Path, records: Sequence[Mapping[str, Any]]) -> ItemScores:
    values: dict[str, dict[str, float | None]] = {}
    decisions: dict[str, dict[str, str]] = {}
    reasons: dict[str, dict[str, str]] = {}
    plain = "score" not in records[0] and "decision" not in records[0]
    for record in records:
        name = str(record["id"])
        if plain:
            for scorer in record:
                if scorer not in ("id", *OTHERS):
                    _put(path, values.setdefault(scorer, {}), name, _score(path, name, record[scorer]))
            continue
        scorer = str(record.get("scorer") or "score")
        if record.get("decision"):
            _put(path, decisions.setdefault(scorer, {}), name, _decision(path, name, record["decision"]))
            continue
        unread = "instruction" in record and record["instruction"] is None
        if not (unread and record.get("reason")):
            _put(path, values.setdefault(scorer, {}), name, _score(path, name, record.get("score")))
        if record.get("reason"):
            reasons.setdefault(scorer, {})[name] = str(record["reason"])
    return ItemScores(values, decisions, reasons)


def _put(path: Path, values: dict[str, Any], name: str, value: Any) -> None:
    if name in values:
        raise ValueError(f"{path}: expected each id once for a scorer; {printable(name)} comes twice")
    values[name] = value


def _score(path: Path, name: str, value: Any) -> float | None:
    """A score; None for an empty cell.

    Raises:
        ValueError: if it is no finite number.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.inf
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, bool) or not math.isfinite(score):
        raise ValueError(f"{path}: {printable(name)}: expected a number; got {printable(str(value))}")
    return score


def _decision(path: Path, name: str, value: Any) -> str:
    if str(value) not in DECISIONS:
        raise ValueError(
            f"{path}: {printable(name)}: decision: expected one of {', '.join(DECISIONS)}; "
            f"got {printable(str(value))}"
        )
    return DECISIONS[str(value)]
