"""Data sets as rows of `EditSample`: one file per data set."""

from rewardedit.data.rows import Data, Rows, batches, distinct_rows, held_out_rows, open_rows, source_ids

__all__ = ["Data", "Rows", "batches", "distinct_rows", "held_out_rows", "open_rows", "source_ids"]
