"""Rows that cannot be used: a run lists them with the reason, and stops where there are too many."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardedit.files import append_json_line, replaced
from rewardedit.processes import on_main_process

SKIPPED = "skipped.jsonl"


def require_few(
    folder: Path,
    found: Sequence[dict[str, Any]],
    rows: int,
    limit: float,
    before: Sequence[dict[str, Any]] = (),
    is_bad: Callable[[dict[str, Any]], bool] = lambda record: True,
) -> None:
    """Lists what cannot be used in `folder`/skipped.jsonl, on the main process.

    Args:
        found: what is wanting in rows: {row, image, reason}.
        rows: how many there are.
        limit: the largest share of them that may be bad.
        before: what is listed too, and was counted already.
        is_bad: whether a row is at fault for what was found.

    Raises:
        ValueError: where more are bad.
    """

    def check() -> None:
        with replaced(folder / SKIPPED) as aside:
            aside.touch()
            for record in (*before, *found):
                append_json_line(aside, record)
        bad = {record["row"] for record in found if is_bad(record)}
        if len(bad) > limit * rows:
            first = "; ".join(f"row {r['row']}, {r['image']}: {r['reason']}" for r in found[:5])
            raise ValueError(
                f"{len(bad)} of {rows} rows cannot be used, more than bad_rows={limit:g} allows; "
                f"{folder / SKIPPED} lists them. The first: {first}"
            )

    on_main_process(check)


def unreadable_rows(reasons: Mapping[int, str]) -> list[dict[str, Any]]:
    """Rows that cannot be read, by their number and the reason, as `require_few` takes them."""
    return [{"row": row, "image": "unreadable", "reason": reason} for row, reason in reasons.items()]


def require_share(limit: float) -> None:
    """Raises ValueError where the setting `bad_rows` is not a share."""
    if not 0 <= limit <= 1:
        raise ValueError(f"bad_rows: expected a share from 0 to 1; got {limit}")
