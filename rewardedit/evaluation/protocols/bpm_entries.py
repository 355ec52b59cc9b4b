"""Rows of BPM's files: four edits of one source, people's ratings, and BPM's parts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rewardedit.data.annotations import require_text

PARTS = ("edit_quality", "preservation", "size", "position")


@dataclass(frozen=True)
class Entry:
    """A row: four edits of one source."""

    id: str
    source: str
    instruction: str
    images: tuple[str, ...]
    ratings: tuple[float, ...]  # NaN where there is none
    parts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # BPM's, where the file has them

    def item(self, editor: int) -> str:
        return f"{self.id}-{editor + 1}"


def read_entry(number: int, record: Mapping[str, Any]) -> Entry:
    """A row of the file.

    Raises:
        ValueError: if it lacks an edit, an image or its instruction.
    """
    name = str(record.get("index", number))
    edits = [record.get(f"edited_image{i}") for i in range(1, 5)]
    if not all(isinstance(edit, dict) for edit in edits):
        raise ValueError(f"index {name}: expected edited_image1 to edited_image4")
    source = require_text(dict(record), "source_image_path", f"index {name}")
    instruction = require_text(dict(record), "instruction", f"index {name}")
    where = f"index {name}"
    images = tuple(require_text(edit, "image_path", where) for edit in edits)  # type: ignore[arg-type]
    ratings = tuple(_number(edit, "user_overall_quality") for edit in edits)
    parts = {sub_score: tuple(map(_number, edits, [sub_score] * 4)) for sub_score in PARTS}
    whole = np.isfinite(list(parts.values())).all()
    return Entry(name, source, instruction, images, ratings, parts if whole else {})


def _number(edit: Any, key: str) -> float:
    value = edit.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else float("nan")
