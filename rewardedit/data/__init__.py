"""Data sets as rows of `EditSample`: one file per data set."""

from rewardedit.data.datasets import (
    DataConfig,
    Rows,
    batches,
    distinct_rows,
    held_out_rows,
    open_rows,
    row_shards,
    source_ids,
)

__all__ = [
    "DataConfig",
    "Rows",
    "batches",
    "distinct_rows",
    "held_out_rows",
    "open_rows",
    "row_shards",
    "source_ids",
]
