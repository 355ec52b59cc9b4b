"""ImagenHub's files of ratings: one a rater, with a column "[SC, PQ]" for each editor."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rewardedit.evaluation.protocols.files import read_ratings, require_columns
from rewardedit.evaluation.protocols.pointwise import Rated
from rewardedit.untrusted import read_json

GRADES = (0, 0.5, 1)


class HumanRatings:
    """Overall ratings √(SC · PQ) of all editors' edits by all raters.

    A rating that cannot be read is missing, and the other raters' are used; of several rows of one uid the
    first counts. `notes` says so.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.notes: list[str] = []
        tables = list(map(self._by_uid, files))
        uids: dict[str, None] = {}
        for table in tables:
            uids |= dict.fromkeys(table)
        self.uids = list(uids)
        self.editors = [name for name in next(iter(tables[0].values())) if name != "uid"]
        # (editors, uids, raters), NaN where there is none
        self.values = np.full((len(self.editors), len(self.uids), len(files)), np.nan)
        for rater, table in enumerate(tables):
            self._read(rater, table, files[rater].name)

    def _by_uid(self, file: Path) -> dict[str, dict[str, Any]]:
        """The rows of a rater's file."""
        records = read_ratings(file)
        require_columns(file, records[0], ("uid",))
        by_uid: dict[str, dict[str, Any]] = {}
        for number, record in enumerate(records, 1):
            uid = record["uid"]
            if not uid:
                self.notes.append(f"{file.name}: row {number} is left out: it has no uid")
            elif uid in by_uid:
                self.notes.append(f"{file.name}: row {number} is left out: {uid} came before")
            else:
                by_uid[uid] = record
        return by_uid

    def _read(self, rater: int, table: Mapping[str, Mapping[str, Any]], name: str) -> None:
        for e, editor in enumerate(self.editors):
            for u, uid in enumerate(self.uids):
                cell = table.get(uid, {}).get(editor)
                value = overall(cell)
                self.values[e, u, rater] = value
                if np.isnan(value):
                    self.notes.append(f"{name}: {uid}, {editor}: no rating ({cell!r})")

    def items(self) -> list[Rated]:
        """All edits, each with the mean of its ratings; editor by editor."""
        rated = []
        for e, editor in enumerate(self.editors):
            for u, uid in enumerate(self.uids):
                ratings = self.values[e, u]
                mean = float(np.nanmean(ratings)) if np.isfinite(ratings).any() else float("nan")
                rated.append(Rated(f"{editor}/{uid}", mean, editor, image_of(uid)))
        return rated


def uid_of(item: Rated) -> str:
    """The uid in an item's id."""
    return item.id.removeprefix(f"{item.group}/")


def image_of(uid: str) -> str:
    """The photograph of a uid, sample_IMAGE_TURN.jpg, without its turn; the edits of one are no independent
    items.
    """
    return re.sub(r"_\d+(\.\w+)?$", "", uid)


def overall(cell: Any) -> float:
    """√(SC · PQ) of a cell "[SC, PQ]"; NaN if it is none."""
    try:
        semantic, quality = read_json(cell)
    except (TypeError, ValueError):
        return float("nan")
    if semantic not in GRADES or quality not in GRADES:
        return float("nan")
    return float(np.sqrt(semantic * quality))
