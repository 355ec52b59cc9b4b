"""Outputs of editing methods for the rows of a data set: one stage per method, images in Parquet shards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data import DataConfig, Rows, row_shards
from rewardedit.data.labelled import encode_png
from rewardedit.data.reading import RowBatch, read_shard
from rewardedit.files import AnyPath, write_parquet
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import Share, stage
from rewardedit.synthesis.methods import EditRequests, Method, MethodConfig, edit_rows, load_method

CAPTIONS = ("source_caption", "target_caption")


@dataclass(frozen=True)
class Output:
    """Output of a method for a row: an image, or the reason why there is none."""

    row: int  # index in the data set
    image: bytes | None  # PNG
    reason: str | None = None


class _Sources(Sequence):
    """Rows with their source in place of an edit; edits that a data set has besides its targets are ignored
    here. Blank captions become None.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        sample = self.rows[index]
        if not (sample.instruction or "").strip():
            raise ValueError("it has no instruction")
        return replace(
            sample,
            edited=sample.source,
            source_caption=(sample.source_caption or "").strip() or None,
            target_caption=(sample.target_caption or "").strip() or None,
        )


def read_rows(
    rows: Rows, data: DataConfig, size: int, first: int = 0, fields: Sequence[str] = ()
) -> Iterator[RowBatch]:
    """Reads rows, starting at row `first` of the data set, in batches of at most `size`.

    Args:
        fields: optional fields to read; a batch ends where the next row has different ones.
    """
    return read_shard(_Sources(rows), data, size, fields, first)


def make_outputs(
    config: MethodConfig,
    rows: Rows,
    data: DataConfig,
    folder: AnyPath,
    seed: int = 42,
    batch_size: int = 8,
    more: dict[str, Any] | None = None,
    share: Share | None = None,
) -> list[AnyPath]:
    """Edits all rows with a method; row i starts from the noise of `seed` + i.

    Args:
        more: settings besides `data` that the rows depend on.

    Returns:
        Parquet shards with an `Output` for every row, in order.
    """
    settings = {"method": config, "data": data, "rows": len(rows), "seed": seed, "batch_size": batch_size}
    made_of = {**settings, **(more or {})}
    parts = row_shards(rows, batch_size)

    @Lazy
    def load() -> Method:
        return load_method(config, data.resize)

    def make(number: int, path: Path) -> None:
        first = number * len(parts[0])
        fields = CAPTIONS if config.needs_captions else ()
        outputs: list[Output] = []
        for chunk in read_rows(parts[number], data, batch_size, first, fields):
            for row, reason in chunk.unreadable.items():
                outputs.append(Output(row, None, reason))
            if chunk.batch is None:
                continue
            edits = edit_rows(load(), config, requests(chunk, seed))
            for row, edit in zip(chunk.numbers, edits, strict=True):
                failed = isinstance(edit, str)
                outputs.append(Output(row, None, edit) if failed else Output(row, encode_png(edit)))
        write_outputs(sorted(outputs, key=lambda output: output.row), path)

    return stage(folder, made_of, make, len(parts), "part-{:05d}.parquet", share=share)


def requests(chunk: RowBatch, seed: int) -> EditRequests:
    """Requests to an editing method for the rows of a chunk."""
    assert chunk.batch is not None
    return EditRequests(
        chunk.ids,
        chunk.batch.source,
        chunk.batch.instruction,
        [seed + number for number in chunk.numbers],
        chunk.batch.source_caption,
        chunk.batch.target_caption,
    )


def write_outputs(outputs: Sequence[Output], path: Path) -> None:
    """Writes the outputs to one Parquet file."""
    import pyarrow as pa

    schema = pa.schema({"row": pa.int64(), "image": pa.binary(), "reason": pa.string()})
    records = list(map(vars, outputs))
    compression = {"row": "SNAPPY", "reason": "SNAPPY"}
    write_parquet(records, schema, path, row_group_size=16, compression=compression)


def read_outputs(path: AnyPath) -> Iterator[Output]:
    """Reads the outputs that `write_outputs` wrote, a few rows in memory at a time."""
    return (Output(**record) for record in read_parquet(path))


def read_parquet(
    path: AnyPath, batch_size: int = 16, columns: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a Parquet file, a few in memory at a time."""
    import pyarrow.parquet as pq

    names = None if columns is None else list(columns)
    with path.open("rb") as file:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=batch_size, columns=names):
            yield from batch.to_pylist()
