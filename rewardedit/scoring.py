"""Scoring of rows: batches in, a record for each row and scorer out,
in memory or as Parquet shards.

A record has the row's id and instruction, the scorer's name, score, valid, reason and parts; `row`, the files
and other columns of a table's row; and label and text, null before a row is labelled. A row that cannot be
read, or that a scorer cannot score, is kept: its score is None and `reason` says why.
"""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from rewardedit import devices
from rewardedit.batch import EditBatch, PixelBatch, Scores
from rewardedit.data.datasets import Rows, reading_workers
from rewardedit.data.reading import read_batches
from rewardedit.data.sources import row_details, row_id
from rewardedit.data.stream import StreamedRows, shards_of
from rewardedit.files import AnyPath, remove, replaced, write_json, write_parquet
from rewardedit.language.endpoint import Usage
from rewardedit.language.texts import noting
from rewardedit.language.usage import USAGE, as_settings, from_settings, read_usage
from rewardedit.processes import processes
from rewardedit.scorers import Scorer
from rewardedit.stages.stage import Share, plain, stage
from rewardedit.untrusted import read_settings_file

Record = dict[str, Any]
MAPS = ("parts", "row")  # the fields of a record that are mappings
TEXT_CUT = "text_cut"  # part of a record, 1 if the scorer did not read one of the row's texts to the end
NO_ROWS = "there is no row to score; does data.edit_types name types that the data set has?"


@torch.no_grad()
def score_batch(
    batch: EditBatch | PixelBatch, scorers: dict[str, Scorer], device: torch.device | str | None = None
) -> dict[str, Scores]:
    """Scores a batch by each scorer, on `device` or the default one;
    the scores are moved to main memory.

    If a scorer refuses the batch, for example because a field is missing, all rows are invalid for it,
    with that reason.
    """
    moved = batch.to(device or devices.default_device())
    out = {}
    for name, scorer in scorers.items():
        with noting() as cut:
            try:
                out[name] = scorer(moved).cpu()
            except ValueError as error:
                out[name] = Scores.make(
                    torch.full((len(batch),), torch.nan), reason=[str(error)] * len(batch)
                )
        if cut:
            out[name] = replace(out[name], parts={**out[name].parts, TEXT_CUT: _cut_rows(batch, cut)})
    return out


def _cut_rows(batch: EditBatch | PixelBatch, cut: Set[str]) -> Tensor:
    """1 for rows with a text that was cut, NaN for all others."""
    empty = [""] * len(batch)
    texts = zip(batch.instruction, batch.source_caption or empty, batch.target_caption or empty, strict=True)
    return torch.tensor([1.0 if cut & {*row} else torch.nan for row in texts])


def score_rows(
    rows: Rows,
    scorers: dict[str, Scorer],
    size: int | None = None,
    policy: str = "crop",
    batch: int = 64,
    workers: int = 0,
) -> Iterator[list[Record]]:
    """Records of all rows by all scorers, batch by batch; each scorer's are in the order of the rows,
    including rows that cannot be read.

    Args:
        size: images are resized to size × size and scored in batches; None: each row alone, at its source's
            own size.
        policy: how images are resized; see `images.fit`.
        workers: processes that prefetch rows; 0: this process reads.
    """
    for chunk in read_batches(rows, size, policy, batch, workers=workers):
        scored = {} if chunk.pixels is None else score_batch(chunk.pixels, scorers)
        records = []
        details = {}
        for row in (*chunk.numbers, *chunk.unreadable):
            if texts := row_details(rows, row):
                details[row] = {"row": texts}
        for name in scorers:
            outcomes = {}
            for row, reason in chunk.unreadable.items():
                outcomes[row] = _record(row_id(rows, row), None, name, None, reason)
            if chunk.pixels is not None:
                of_batch = _records(chunk.ids, chunk.pixels.instruction, name, scored[name])
                outcomes |= zip(chunk.numbers, of_batch, strict=True)
            records += [outcomes[row] | details.get(row, {}) for row in sorted(outcomes)]
        yield records


def _records(ids: list[str], instructions: list[str], scorer: str, scores: Scores) -> list[Record]:
    parts = {name: values.tolist() for name, values in scores.parts.items()}
    records = []
    for i, value in enumerate(scores.score.tolist()):
        records.append(_record(ids[i], instructions[i], scorer, value, scores.reason[i], _known(parts, i)))
    return records


def _known(parts: dict[str, list[float]], i: int) -> dict[str, float]:
    """A row's parts that have a value: JSON has no NaN."""
    return {name: values[i] for name, values in parts.items() if math.isfinite(values[i])}


def _record(
    row: str,
    instruction: str | None,
    scorer: str,
    score: float | None,
    reason: str | None,
    parts: dict[str, float] | None = None,
) -> Record:
    valid = reason is None
    record = {"id": row, "instruction": instruction, "scorer": scorer, "score": score if valid else None}
    return {**record, "valid": valid, "reason": reason, "parts": parts or {}}


def score_shards(
    folder: AnyPath,
    made_of: Any,
    rows: Rows | StreamedRows,
    load: Callable[[], dict[str, Scorer]],
    size: int | None = None,
    policy: str = "crop",
    batch: int = 64,
    workers: Callable[[int], int] = reading_workers,
    finish: Callable[[list[AnyPath]], None] | None = None,
    share: Share | None = None,
) -> list[AnyPath]:
    """Writes records of all rows as Parquet shards in `folder`; `stage` divides and reuses the shards.

    Args:
        load: returns the scorers, in the processes that have rows to score.
        size: as in `score_rows`.
        policy: as in `score_rows`.
        batch: as in `score_rows`.
        workers: number of prefetching processes for a number of rows.
        finish: makes a result of all shards, which are then removed.
    """
    parts = shards_of(rows, batch)

    def score(number: int, path: Path) -> None:
        shard = parts[number].fetch()
        scorers = load()
        records_of_shard: list[Record] = []
        hidden = not processes().is_main_process
        with tqdm(
            total=len(shard.rows), desc="of these", unit="edit", delay=5, leave=False, disable=hidden
        ) as bar:
            ahead = workers(len(shard.rows))
            for records in score_rows(shard.rows, scorers, size, policy, batch, ahead):
                records_of_shard += records
                bar.update(len(records) // len(scorers))
        write_records(records_of_shard, path)

    return stage(folder, made_of, score, len(parts), "scores-{:05d}.parquet", finish, share)


def score_to_parquet(path: AnyPath, made_of: Any, rows: Rows | StreamedRows, **options: Any) -> None:
    """Writes records of all rows to one Parquet file, without ever holding them all in memory.

    They are scored shard by shard into the folder `path` + ".parts", which is removed at the end; if it
    already exists with the same `made_of`, the interrupted call is resumed. The file of `write_made_of` is
    written next to `path`.

    Args:
        options: options of `score_shards`.

    Raises:
        ValueError: if the folder was made with other settings.
    """
    folder = parts_of(path)

    def finish(shards: list[AnyPath]) -> None:
        write_made_of(path, made_of, read_usage([folder / USAGE]))
        _join_records(path, shards)

    score_shards(folder, made_of, rows, finish=finish, **options)
    processes().wait_for_everyone()
    if processes().is_main_process:
        remove(folder)


def _join_records(path: AnyPath, shards: list[AnyPath]) -> None:
    """Joins shards of records into one file, with one of them in memory at a time."""
    import pyarrow.parquet as pq

    with replaced(path) as aside, pq.ParquetWriter(aside, _schema()) as writer:
        for shard in shards:
            with shard.open("rb") as file:
                writer.write_table(pq.read_table(file))


def parts_of(path: AnyPath) -> AnyPath:
    """Folder of the shards from which `score_to_parquet` makes `path`."""
    return path.with_name(f"{path.name}.parts")


def made_of_path(path: AnyPath) -> AnyPath:
    """Path of the file of `write_made_of`: scores.json.made_of.json next to scores.json."""
    return path.with_name(f"{path.name}.made_of.json")


def write_made_of(path: AnyPath, made_of: Any, used: Mapping[str, Usage]) -> None:
    """Writes the settings of the scores in `path` and their endpoint `usage` to a file next to it; no file if
    the scorers have no fingerprint and no endpoint was used.
    """
    beside = made_of_path(path)
    if used or "fingerprints" in made_of:
        write_json(beside, {**plain(made_of), "usage": as_settings(used)})
    else:
        remove(beside)  # a file of earlier scores


def usage_of(path: AnyPath) -> dict[str, Usage]:
    """Endpoint usage of the file of scores `path`."""
    beside = made_of_path(path)
    return from_settings(read_settings_file(beside).get("usage", {})) if beside.exists() else {}


def _schema() -> Any:
    """Parquet schema of records."""
    import pyarrow as pa

    return pa.schema(
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
            "row": pa.map_(pa.string(), pa.string()),
        }
    )


def write_records(records: Sequence[Record], path: Path) -> None:
    """Writes the records to one Parquet file."""
    rows = []
    for record in records:
        maps = {name: list(record[name].items()) for name in MAPS if name in record}
        rows.append(record | maps)
    write_parquet(rows, _schema(), path)


def write_lines(records: Sequence[Record], path: AnyPath) -> None:
    """Writes the records to one .csv or .jsonl file; CSV has a column for each part and each detail of a row,
    prefixed with "part." or "row." if another column already has its name.
    """
    with replaced(path) as aside, aside.open("w", encoding="utf-8", errors="replace", newline="") as file:
        if path.suffix == ".jsonl":
            for record in records:
                file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
            return
        flat = list(map(_flat, records))
        writer = csv.DictWriter(file, list(dict.fromkeys(chain.from_iterable(flat))))
        writer.writeheader()
        writer.writerows(flat)


def _flat(record: Record) -> Record:
    columns = {name: value for name, value in record.items() if name not in MAPS}
    for kind, prefix in (("row", "row."), ("parts", "part.")):
        for name, value in record.get(kind, {}).items():
            columns[f"{prefix}{name}" if name in record or name in columns else name] = value
    return columns


def read_records(path: AnyPath) -> list[Record]:
    """Reads a file that `write_records` wrote."""
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        rows = pq.read_table(file).to_pylist()
    return list(map(as_record, rows))


def as_record(row: Mapping[str, Any]) -> Record:
    """Converts a row of a Parquet file, where mappings are lists of pairs, to a record."""
    maps = {name: dict(row[name]) for name in MAPS if row.get(name) is not None}
    return {name: value for name, value in row.items() if name not in MAPS} | maps


def read_columns(paths: Sequence[AnyPath], *names: str) -> list[list[Any]]:
    """Reads the named columns of the records in several files, each as one list."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not paths:
        return [[] for _ in names]
    tables = []
    for path in paths:
        with path.open("rb") as file:
            tables.append(pq.read_table(file, columns=list(names)))
    table = pa.concat_tables(tables)
    return [table[name].to_pylist() for name in names]
