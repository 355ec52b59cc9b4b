"""Rows that cannot be used: a run lists them with the reason, and stops if there are too many."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from rewardedit.batch import EditSample
from rewardedit.data.datasets import DataConfig, Rows, row_shards
from rewardedit.data.reading import PreparedRows, Unreadable
from rewardedit.files import append_json_line, remove, replaced, write_json
from rewardedit.processes import on_main_process
from rewardedit.stages.stage import stage
from rewardedit.untrusted import read_settings_file

SKIPPED = "skipped.jsonl"
CHECK_BATCH = 64  # rows of a sixteenth of a shard


def require_few(
    folder: Path,
    faults: Sequence[dict[str, Any]],
    rows: int,
    limit: float,
    before: Sequence[dict[str, Any]] = (),
    is_bad: Callable[[dict[str, Any]], bool] = lambda record: True,
) -> None:
    """Lists faults of rows in `folder`/skipped.jsonl, on the main process.

    Args:
        faults: faults of rows: {row, image, reason}.
        rows: number of all rows.
        limit: the largest share of them that may be bad.
        before: faults to be listed too that were counted already.
        is_bad: whether a row is to blame for a fault.

    Raises:
        ValueError: if more are bad.
    """

    def check() -> None:
        with replaced(folder / SKIPPED) as aside:
            aside.touch()
            for record in (*before, *faults):
                append_json_line(aside, record)
        bad = {record["row"] for record in filter(is_bad, faults)}
        if len(bad) > limit * rows:
            first = "; ".join(f"row {r['row']}, {r['image']}: {r['reason']}" for r in faults[:5])
            raise ValueError(
                f"{len(bad)} of {rows} rows cannot be used, more than bad_rows={limit:g} allows; "
                f"{folder / SKIPPED} lists them. The first: {first}"
            )

    on_main_process(check)


class ValidatedRows(Sequence):
    """Rows that count as unreadable if they fail a check, which raises ValueError."""

    def __init__(self, rows: Rows, check: Callable[[EditSample], Any]) -> None:
        self.rows = rows
        self.check = check

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        sample = self.rows[index]
        self.check(sample)
        return sample


class SelectedRows(Sequence):
    """Rows at their usual indices; all but the `known` ones count as unreadable."""

    def __init__(self, rows: Rows, known: Sequence[int]) -> None:
        self.rows = rows
        self.known = frozenset(known)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        if index not in self.known:
            raise ValueError("this row is left out")
        return self.rows[index]


class ReadErrors(PreparedRows):
    """Reasons why rows cannot be read; "" for rows that can. A process that reads ahead transfers no images:
    if they are small, that would take longer than reading them.
    """

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        sample = super().__getitem__(index)
        return sample.reason if isinstance(sample, Unreadable) else ""


def usable_rows(
    rows: Rows,
    data: DataConfig,
    check: Callable[[EditSample], Any],
    folder: Path,
    limit: float,
    made_of: Any = None,
) -> list[int]:
    """Reads every row once, in a stage of the run in `folder`, before it trains.

    Args:
        data: how images are read.
        made_of: the settings that say which rows these are; None: `data`.

    Returns:
        The numbers of the rows that can be read and pass the check.

    Raises:
        ValueError: if a larger share than `limit` cannot be used; see `require_few`.
    """
    parts = row_shards(ValidatedRows(rows, check), CHECK_BATCH)

    def read(number: int, path: Path) -> None:
        shard = ReadErrors(parts[number], data.size, data.resize, fields=())
        workers = data.workers(len(shard))
        if workers:
            shard.unlike.share_memory_()
        generator = torch.Generator()  # or it draws from the global one
        loader = DataLoader(shard, CHECK_BATCH, num_workers=workers, collate_fn=list, generator=generator)
        numbered = enumerate(chain.from_iterable(loader), number * len(parts[0]))
        write_json(path, {row: reason for row, reason in numbered if reason})
        shard.tell_unlike()

    settings = {"data": data if made_of is None else made_of, "rows": len(rows)}
    paths = stage(folder / "checked", settings, read, len(parts), "part-{:05d}.json")

    reasons: dict[int, str] = {}
    for path in paths:
        for row, reason in read_settings_file(path).items():
            reasons[int(row)] = reason

    try:
        require_few(folder, unreadable_rows(reasons), len(rows), limit)
    except ValueError:  # once the rows are repaired, they must be read again
        on_main_process(lambda: remove(folder / "checked"))
        raise
    return [row for row in range(len(rows)) if row not in reasons]


def unreadable_rows(reasons: Mapping[int, str]) -> list[dict[str, Any]]:
    """Rows that cannot be read, by their number and the reason, as `require_few` takes them."""
    return [{"row": row, "image": "unreadable", "reason": reason} for row, reason in reasons.items()]


def require_share(limit: float) -> None:
    """Raises ValueError if the setting `bad_rows` is not a share."""
    if not 0 <= limit <= 1:
        raise ValueError(f"bad_rows: expected a share from 0 to 1; got {limit}")
