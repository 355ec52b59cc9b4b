"""What `rewardedit score` does: edits in, a row of scores for each edit and scorer out."""

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from rewardedit.batch import EditBatch, EditSample, collate, split_by_fields
from rewardedit.images import resize, to_tensor
from rewardedit.scorers import Scorer

BATCH = 64
PICTURES = ("source", "edited", "target", "mask")


def score_edits(
    rows: Any, scorers: dict[str, Scorer], size: int | None = None, policy: str = "crop", device: str = "cpu"
) -> list[dict[str, Any]]:
    """Scores of all rows by all scorers: records of id, instruction, scorer, score, valid, reason and parts.

    With `size`, pictures are brought to size × size and scored in batches; without, each at its own size. A row that
    cannot be read, or that a scorer cannot score, is kept: its score is None and `reason` says why.

    Args:
        rows: a sequence of `EditSample`.
    """
    records: list[dict[str, Any]] = []
    with tqdm(total=len(rows), desc="scoring", unit="edit", disable=len(rows) == 1) as bar:
        for ids, batch, failed in _batches(rows, size, policy):
            records += [_invalid(row, "", name, why) for row, why in failed.items() for name in scorers]
            if batch is not None:
                for name, scorer in scorers.items():
                    records += _score(ids, batch.to(device), name, scorer)
            bar.update(len(ids) + len(failed))
    return records


def _batches(rows: Any, size: int | None, policy: str) -> Iterator[tuple[list[str], EditBatch | None, dict[str, str]]]:
    """Ids and batches, and why rows were left out; rows with other optional fields come in batches of their own."""
    many = BATCH if size is not None else 1
    for first in range(0, len(rows), many):
        samples: list[EditSample] = []
        failed: dict[str, str] = {}
        for i in range(first, min(first + many, len(rows))):
            try:
                samples.append(_readable(rows[i], size, policy))
            except ValueError as error:
                failed[str(i)] = str(error)
        for part in split_by_fields(samples):
            yield [sample.id for sample in part], collate(part), failed
            failed = {}
        if failed:
            yield [], None, failed


def _readable(sample: EditSample, size: int | None, policy: str) -> EditSample:
    """The row as one of a batch: all its pictures at one size, read and resized here once.

    Raises:
        ValueError: where it cannot be scored.
    """
    one = collate([at_source_size(sample)], size, policy)
    pictures = {name: None if value is None else value[0] for name in PICTURES for value in [getattr(one, name)]}
    return dataclasses.replace(sample, **pictures)


def at_source_size(sample: EditSample) -> EditSample:
    """The row with its other pictures brought to the source's size: editors often answer in a size of their own."""
    pictures = {name: getattr(sample, name) for name in PICTURES}
    tensors = {k: to_tensor(v, channels=1 if k == "mask" else 3) for k, v in pictures.items() if v is not None}
    h, w = tensors["source"].shape[-2:]
    return dataclasses.replace(sample, **{name: resize(tensor[None], (h, w))[0] for name, tensor in tensors.items()})


@torch.no_grad()
def _score(ids: list[str], batch: EditBatch, name: str, scorer: Scorer) -> list[dict[str, Any]]:
    try:
        scores = scorer(batch).cpu()
    except ValueError as error:  # a field that the scorer needs is missing
        return [_invalid(row, text, name, str(error)) for row, text in zip(ids, batch.instruction, strict=True)]
    return [
        {
            "id": ids[i],
            "instruction": batch.instruction[i],
            "scorer": name,
            "score": float(scores.score[i]) if scores.valid[i] else None,
            "valid": bool(scores.valid[i]),
            "reason": scores.reason[i],
            "parts": {part: float(values[i]) for part, values in scores.parts.items()},
        }
        for i in range(len(ids))
    ]


def _invalid(row: str, instruction: str, scorer: str, reason: str) -> dict[str, Any]:
    record = {"id": row, "instruction": instruction, "scorer": scorer, "score": None, "valid": False}
    return {**record, "reason": reason, "parts": {}}


def write_scores(records: list[dict[str, Any]], path: Path) -> None:
    """Parquet (id, instruction, scorer, score, valid, reason, parts), or the same as JSON; written aside and renamed.

    Raises:
        ValueError: on another ending than .parquet or .json.
    """
    aside = path.with_suffix(path.suffix + ".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        aside.write_text(json.dumps(records, indent=2) + "\n")
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = {"id": pa.string(), "instruction": pa.string(), "scorer": pa.string(), "score": pa.float64()}
        names |= {"valid": pa.bool_(), "reason": pa.string(), "parts": pa.map_(pa.string(), pa.float64())}
        rows = [{**record, "parts": list(record["parts"].items())} for record in records]
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(names)), aside)
    else:
        raise ValueError(f"{path}: scores are written as .parquet or .json")
    os.replace(aside, path)
