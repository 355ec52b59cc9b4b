"""Reads the labelled shards that a run writes."""

from itertools import chain
from pathlib import Path

from rewardedit.scoring import Record, read_records


def read_shards(folder: Path) -> list[Record]:
    """All records of a folder of labelled shards, in order."""
    paths = sorted(folder.glob("part-*.parquet"))
    assert paths, f"{folder}: no shards"
    return list(chain.from_iterable(map(read_records, paths)))
