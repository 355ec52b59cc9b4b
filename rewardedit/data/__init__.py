"""Data sets as rows of `EditSample`, and of `EditPair`: one file per data set."""

from rewardedit.data.datasets import (
    DataConfig,
    Rows,
    distinct_rows,
    held_out_rows,
    leading_rows,
    open_named,
    open_rows,
    require_size,
    row_shards,
    source_ids,
)
from rewardedit.data.pairs import PairsConfig, open_pairs, stream_pairs
from rewardedit.data.reading import RowBatch, read_batches
from rewardedit.data.stream import stream_rows

__all__ = [
    "DataConfig",
    "PairsConfig",
    "RowBatch",
    "Rows",
    "distinct_rows",
    "held_out_rows",
    "leading_rows",
    "open_named",
    "open_pairs",
    "open_rows",
    "read_batches",
    "require_size",
    "row_shards",
    "source_ids",
    "stream_pairs",
    "stream_rows",
]
