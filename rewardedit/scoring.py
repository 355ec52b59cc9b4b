"""Scores of rows by scorers: batches in, a record for each row and scorer out,
in memory or as Parquet shards.

A record has the row's id and instruction, the scorer's name, score, valid, reason and parts, and, null before
a row is labelled, label and text. A row that cannot be read, or that a scorer cannot score, is kept: its
score is None and `reason` says why.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from rewardedit import devices
from rewardedit.batch import EditBatch, Scores
from rewardedit.data.datasets import DataConfig, Rows, read_batches, row_shards
from rewardedit.files import replaced
from rewardedit.scorers import Scorer
from rewardedit.stages import Share, stage

Record = dict[str, Any]


@torch.no_grad()
def score_batch(batch: EditBatch, scorers: dict[str, Scorer]) -> dict[str, Scores]:
    """What each scorer says of a batch, on the device where everything runs;
    the scores come back to main memory.

    Where a scorer refuses the batch, for want of a field say, all its rows are invalid by it,
    with that reason.
    """
    moved = batch.to(devices.default_device())
    out = {}
    for name, scorer in scorers.items():
        try:
            out[name] = scorer(moved).cpu()
        except ValueError as error:
            out[name] = Scores.make(torch.full((len(batch),), torch.nan), reason=[str(error)] * len(batch))
    return out


def score_rows(
    rows: Rows,
    scorers: dict[str, Scorer],
    size: int | None = None,
    policy: str = "crop",
    batch: int = 64,
    workers: int = 0,
) -> Iterator[list[Record]]:
    """Records of all rows by all scorers, batch by batch, in the rows' order.

    Args:
        size: images are brought to size × size and scored in batches; None: each row at its source's own
            size, by itself.
        policy: how images are brought to size; see `images.fit`.
        workers: processes that read rows ahead; 0: this one reads.
    """
    for ids, edits, unreadable in read_batches(rows, size, policy, batch, workers=workers):
        records = [
            _record(row, None, name, None, reason) for row, reason in unreadable.items() for name in scorers
        ]
        if edits is not None:
            for name, scores in score_batch(edits, scorers).items():
                records += _records(ids, edits.instruction, name, scores)
        yield records


def _records(ids: list[str], instructions: list[str], scorer: str, scores: Scores) -> list[Record]:
    parts = {name: values.tolist() for name, values in scores.parts.items()}
    columns = zip(ids, instructions, scores.score.tolist(), scores.reason, strict=True)
    return [
        _record(row, instruction, scorer, value, reason, {name: values[i] for name, values in parts.items()})
        for i, (row, instruction, value, reason) in enumerate(columns)
    ]


def _record(
    row: str,
    instruction: str | None,
    scorer: str,
    score: float | None,
    reason: str | None,
    parts: dict[str, float] | None = None,
) -> Record:
    valid = reason is None
    found = {"id": row, "instruction": instruction, "scorer": scorer, "score": score if valid else None}
    return {**found, "valid": valid, "reason": reason, "parts": parts or {}}


def score_shards(
    folder: Path,
    made_of: Any,
    rows: Rows,
    data: DataConfig,
    load: Callable[[], dict[str, Scorer]],
    batch: int = 64,
    finish: Callable[[list[Path]], None] | None = None,
    share: Share | None = None,
) -> list[Path]:
    """Records of all rows as Parquet shards in `folder`; see `stage`, which divides, keeps and refuses them.

    Args:
        load: gives the scorers, on the processes that have something to score.
        finish: makes a result of all shards, which are then removed.
    """
    parts = row_shards(rows, batch)

    def score(number: int, path: Path) -> None:
        found = score_rows(
            parts[number], load(), data.size, data.policy, batch, data.workers(len(parts[number]))
        )
        write_records([record for records in found for record in records], path)

    return stage(folder, made_of, score, len(parts), "scores-{:05d}.parquet", finish, share)


def write_records(records: Sequence[Record], path: Path) -> None:
    """The records as one Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        {
            "id": pa.string(),
            "instruction": pa.string(),
            "scorer": pa.string(),
            "score": pa.float64(),
            "valid": pa.bool_(),
            "reason": pa.string(),
            "parts": pa.map_(pa.string(), pa.float64()),
            "label": pa.int32(),
            "text": pa.string(),
        }
    )
    pq.write_table(
        pa.Table.from_pylist([{**row, "parts": list(row["parts"].items())} for row in records], schema), path
    )


def write_scores(records: Sequence[Record], path: Path) -> None:
    """The records as Parquet, or the same as JSON; written aside and renamed.

    Raises:
        ValueError: on another ending than .parquet or .json.
    """
    if path.suffix not in (".parquet", ".json"):
        raise ValueError(f"{path}: scores are written as .parquet or .json")
    with replaced(path) as aside:
        if path.suffix == ".json":
            aside.write_text(json.dumps(records, indent=2) + "\n")
        else:
            write_records(records, aside)


def read_records(path: Path) -> list[Record]:
    """What `write_records` wrote."""
    import pyarrow.parquet as pq

    return [{**row, "parts": dict(row["parts"])} for row in pq.read_table(path).to_pylist()]


def read_shards(folder: Path) -> list[Record]:
    """All records of a folder of labelled shards, in order.

    Raises:
        ValueError: where the folder holds no shards.
    """
    paths = sorted(folder.glob("part-*.parquet"))
    if not paths:
        raise ValueError(f"{folder}: holds no part-*.parquet; make them with rewardedit relabel")
    return [row for path in paths for row in read_records(path)]


def read_columns(paths: Sequence[Path], *names: str) -> list[list[Any]]:
    """These columns of the records in several files, each as one list, without the rest of the records."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.concat_tables([pq.read_table(path, columns=list(names)) for path in paths])
    return [table[name].to_pylist() for name in names]
