"""Scores of rows by scorers: batches in, a record for each row and scorer out,
in memory or as Parquet shards.

A record has the row's id and instruction, the scorer's name, score, valid, reason and parts; `row`, a table's
files and other columns; and label and text, null before a row is labelled. A row that cannot be read, or that
a scorer cannot score, is kept: its score is None and `reason` says why.
"""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from rewardedit import devices
from rewardedit.batch import EditBatch, Scores
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
MAPS = ("parts", "row")  # of a record, the mappings
TEXT_CUT = "text_cut"  # the part of a row's record, 1 where a scorer did not read one of its texts to the end
NO_ROWS = "there is no row to score; does data.edit_types name types that the data set has?"


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


def _cut_rows(batch: EditBatch, cut: Set[str]) -> Tensor:
    """1 for the rows of which a text is among those that were cut, NaN for all others."""
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
    """Records of all rows by all scorers, batch by batch; each scorer's are in the rows' order, those of rows
    that cannot be read among them.

    Args:
        size: images are brought to size × size and scored in batches; None: each row at its source's own
            size, by itself.
        policy: how images are brought to size; see `images.fit`.
        workers: processes that read rows ahead; 0: this one reads.
    """
    for part in read_batches(rows, size, policy, batch, workers=workers):
        scored = {} if part.batch is None else score_batch(part.batch, scorers)
        records = []
        known = {row: row_details(rows, row) for row in (*part.numbers, *part.unreadable)}
        details = {row: {"row": texts} for row, texts in known.items() if texts}
        for name in scorers:
            found = {
                row: _record(row_id(rows, row), None, name, None, reason)
                for row, reason in part.unreadable.items()
            }
            if part.batch is not None:
                of_batch = _records(part.ids, part.batch.instruction, name, scored[name])
                found |= zip(part.numbers, of_batch, strict=True)
            records += [found[row] | details.get(row, {}) for row in sorted(found)]
        yield records


def _records(ids: list[str], instructions: list[str], scorer: str, scores: Scores) -> list[Record]:
    parts = {name: values.tolist() for name, values in scores.parts.items()}
    columns = zip(ids, instructions, scores.score.tolist(), scores.reason, strict=True)
    return [
        _record(row, instruction, scorer, value, reason, _known(parts, i))
        for i, (row, instruction, value, reason) in enumerate(columns)
    ]


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
    found = {"id": row, "instruction": instruction, "scorer": scorer, "score": score if valid else None}
    return {**found, "valid": valid, "reason": reason, "parts": parts or {}}


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
    """Records of all rows as Parquet shards in `folder`; see `stage`, which divides, keeps and refuses them.

    Args:
        load: gives the scorers, on the processes that have something to score.
        size, policy, batch: as in `score_rows`.
        workers: how many processes read so many rows ahead.
        finish: makes a result of all shards, which are then removed.
    """
    parts = shards_of(rows, batch)

    def score(number: int, path: Path) -> None:
        part = parts[number].fetch()
        scorers = load()
        found: list[Record] = []
        hidden = not processes().is_main_process
        with tqdm(
            total=len(part.rows), desc="of these", unit="edit", delay=5, leave=False, disable=hidden
        ) as bar:
            ahead = workers(len(part.rows))
            for records in score_rows(part.rows, scorers, size, policy, batch, ahead):
                found += records
                bar.update(len(records) // len(scorers))
        write_records(found, path)

    return stage(folder, made_of, score, len(parts), "scores-{:05d}.parquet", finish, share)


def score_to_parquet(path: AnyPath, made_of: Any, rows: Rows | StreamedRows, **options: Any) -> None:
    """Records of all rows as one Parquet file, without ever holding them all.

    They are scored shard by shard into the folder `path` + ".parts", which is removed at the end; where it
    is there already, of the same `made_of`, an interrupted call is gone on with. Beside it stands what
    `write_made_of` writes.

    Args:
        options: of `score_shards`.

    Raises:
        ValueError: where the folder was made of something else.
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
    """Shards of records as one file, one of them in memory at a time."""
    import pyarrow.parquet as pq

    with replaced(path) as aside, pq.ParquetWriter(aside, _schema()) as writer:
        for shard in shards:
            with shard.open("rb") as file:
                writer.write_table(pq.read_table(file))


def parts_of(path: AnyPath) -> AnyPath:
    """Where `score_to_parquet` puts what the file `path` is made from."""
    return path.with_name(f"{path.name}.parts")


def made_of_path(path: AnyPath) -> AnyPath:
    """Where `write_made_of` writes: scores.json.made_of.json beside scores.json."""
    return path.with_name(f"{path.name}.made_of.json")


def write_made_of(path: AnyPath, made_of: Any, used: Mapping[str, Usage]) -> None:
    """Beside the file of scores `path`, what they were made of, and `usage`, what endpoints were asked for
    them; no file where scorers have no fingerprint and no endpoint was asked.
    """
    beside = made_of_path(path)
    if used or "fingerprints" in made_of:
        write_json(beside, {**plain(made_of), "usage": as_settings(used)})
    else:
        remove(beside)  # of other scores, which were here before


def usage_of(path: AnyPath) -> dict[str, Usage]:
    """What endpoints were asked for the file of scores `path`."""
    beside = made_of_path(path)
    return from_settings(read_settings_file(beside).get("usage", {})) if beside.exists() else {}


def _schema() -> Any:
    """Of records in Parquet."""
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
    """The records as one Parquet file."""
    columns = [{**row, **{name: list(row[name].items()) for name in MAPS if name in row}} for row in records]
    write_parquet(columns, _schema(), path)


def write_lines(records: Sequence[Record], path: AnyPath) -> None:
    """The records as one .csv or .jsonl file; CSV has a column for each part and each detail of a row, whose
    names begin with "row." or "part." where a column has the name already.
    """
    with replaced(path) as aside, aside.open("w", encoding="utf-8", errors="replace", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(
                json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records
            )
            return
        flat = [_flat(record) for record in records]
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in flat for name in row)))
        writer.writeheader()
        writer.writerows(flat)


def _flat(record: Record) -> Record:
    found = {name: value for name, value in record.items() if name not in MAPS}
    for kind, prefix in (("row", "row."), ("parts", "part.")):
        for name, value in record.get(kind, {}).items():
            found[f"{prefix}{name}" if name in record or name in found else name] = value
    return found


def read_records(path: AnyPath) -> list[Record]:
    """What `write_records` wrote."""
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        rows = pq.read_table(file).to_pylist()
    return [as_record(row) for row in rows]


def as_record(row: Mapping[str, Any]) -> Record:
    """A row of a Parquet file of records, whose maps are lists of pairs there."""
    maps = {name: dict(row[name]) for name in MAPS if row.get(name) is not None}
    return {name: value for name, value in row.items() if name not in MAPS} | maps


def read_shards(folder: Path) -> list[Record]:
    """All records of a folder of labelled shards, in order.

    Raises:
        ValueError: where the folder holds no shards.
    """
    paths = sorted(folder.glob("part-*.parquet"))
    if not paths:
        raise ValueError(f"{folder}: holds no part-*.parquet; make them with rewardedit relabel")
    return [row for path in paths for row in read_records(path)]


def read_columns(paths: Sequence[AnyPath], *names: str) -> list[list[Any]]:
    """These columns of the records in several files, each as one list, without the rest of the records."""
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
