"""Columns of third-party tables: which of them hold the source, the edit and the instruction."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from rewardedit.batch import text_or_none
from rewardedit.nearest import nearest, question
from rewardedit.processes import notice

PICTURES = ("source", "edited", "target", "mask", "loser")  # loser: the rejected one of two edits
TEXTS = ("id", "instruction", "source_caption", "target_caption", "edit_type")
FIELDS = (*PICTURES, *TEXTS)

# Names that others give the columns; those of images without "_image", "_img" or "_path" at their end.
ALIASES: dict[str, tuple[str, ...]] = {
    "source": ("original", "input", "src", "before"),
    "edited": ("output", "result", "generated", "after"),
    "target": ("ground_truth", "gt"),
    "mask": (),
    "id": (),
    "instruction": ("edit_prompt", "edit_instruction", "editing_instruction", "prompt"),
    "source_caption": ("original_prompt", "source_prompt", "original_caption", "input_caption"),
    "target_caption": ("edited_prompt", "target_prompt", "edited_caption", "output_caption"),
    "edit_type": ("editing_type",),
}
# Names of the preferred and the rejected edit, which count where a table has both of a pair.
PREFERENCES = (("winner", "loser"), ("chosen", "rejected"), ("preferred", "rejected"))
IMAGE = ("image", "img", "file", "file_name", "path")  # a plain image column: 🤗 ImageFolder's `file_name`
OTHERS = "other columns"
INDEX = re.compile(r"unnamed:_\d+|__index_level_\d+__")  # pandas' index, not a column
SHORTEST = 5  # letters of a name that may be misspelt: `task` is not meant to be `mask`


def name_columns(
    file: Path,
    records: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str] | None = None,
    required: Sequence[Sequence[str]] = (),
) -> list[dict[str, Any]]:
    """Returns the rows by the names of fields, with None for empty cells, and their other columns under
    `OTHERS`. One line reports the columns that were renamed, and the other columns.

    Args:
        columns: fields and the columns that hold them; other fields are found by name and `ALIASES`.
        required: groups of fields; the table must have at least one field of each.

    Raises:
        ValueError: if two columns could be one field, none holds a required one, a name is misspelt, or
            `columns` names a column that does not exist.
    """
    all_names = dict.fromkeys(chain.from_iterable(records))
    names = [name for name in all_names if not INDEX.fullmatch(_plain(name))]
    column_of = _given(file, names, columns or {})
    for name in FIELDS:
        if name in names:
            column_of.setdefault(name, name)

    if "edited" not in (columns or {}):
        _require_one_preferred(file, _others(names, column_of), column_of)
    column_of |= _preferred(_others(names, column_of), column_of)
    column_of |= _by_aliases(file, _others(names, column_of), _lacking(column_of))
    column_of |= _plain_image(_others(names, column_of), column_of)

    left = _others(names, column_of)
    for name in left:
        _refuse_misspelt(file, name, _lacking(column_of))
    _require_found(file, required, column_of, left)
    _tell(file, column_of, left)

    rows = []
    for record in records:
        row: dict[str, Any] = {}
        for field, name in column_of.items():
            if name in record:
                row[field] = _cell(record[name])
        row[OTHERS] = {name: record[name] for name in left if name in record}
        rows.append(row)
    return rows


def _others(names: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """The columns that hold none of the fields found."""
    return [name for name in names if name not in columns.values()]


def _lacking(columns: Mapping[str, str]) -> list[str]:
    """The fields with other names that no column holds."""
    return [field for field in ALIASES if field not in columns]


def _given(file: Path, names: Sequence[str], columns: Mapping[str, str]) -> dict[str, str]:
    for field, name in columns.items():
        if field not in FIELDS:
            remedy = question(nearest(field, FIELDS)) or f"known are {', '.join(FIELDS)}"
            raise ValueError(f"columns: {field} is not a field of a row; {remedy}")
        if name not in names:
            raise ValueError(f"{file}: columns: no column {name} for {field}; it has {', '.join(names)}")
    return dict(columns)


def _preferred(names: Sequence[str], columns: Mapping[str, str]) -> dict[str, str]:
    """The columns of the preferred edit, as the edited image, and of the rejected one; {} unless a table has
    both and no edited image beside them.
    """
    plain = {_picture(name): name for name in [*names, *columns.values()]}
    for winner, loser in PREFERENCES:
        if "edited" not in columns and winner in plain and loser in plain:
            return {"edited": plain[winner], "loser": plain[loser]}
    return {}


def _require_one_preferred(file: Path, names: Sequence[str], columns: Mapping[str, str]) -> None:
    """Raises ValueError if a table has an edited image and another preferred one beside the rejected one."""
    if "edited" not in columns or "loser" not in columns:
        return
    plain = {_picture(name): name for name in names}
    for winner, _ in PREFERENCES:
        if winner in plain:
            raise ValueError(
                f"{file}: expected one preferred edit beside {columns['loser']}; got {columns['edited']} and "
                f"{plain[winner]}; say which by columns={{edited: {plain[winner]}}}"
            )


def _by_aliases(file: Path, names: Sequence[str], fields: Sequence[str]) -> dict[str, str]:
    """Those of the fields that a column holds by another name, with the column."""
    columns = {}
    for field in fields:
        candidates = [name for name in names if _field(name) == field]
        if len(candidates) > 1:
            raise ValueError(
                f"{file}: {field}: expected one column; got {', '.join(candidates)}; say which by "
                f"columns={{{field}: {candidates[0]}}}"
            )
        if candidates:
            columns[field] = candidates[0]
    return columns


def _plain_image(names: Sequence[str], columns: Mapping[str, str]) -> dict[str, str]:
    """The first column that is named an image and no more, as the source, or else as the edited image of a
    table without target; {} if there is none, or nothing for it to be.
    """
    image = next((name for name in names if _picture(name) in IMAGE), None)
    free = [name for name in ("source", "edited") if name not in columns]
    if image is None or not free or (free == ["edited"] and "target" in columns):
        return {}
    return {free[0]: image}


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _field(name: str) -> str | None:
    """The field that a column's name stands for; None for another name."""
    for field, aliases in ALIASES.items():
        if (_picture(name) if field in PICTURES else _plain(name)) in (field, *aliases):
            return field
    return None


def _picture(name: str) -> str:
    """A column's name without endings that say only that it holds images."""
    without = re.sub(r"(?<=.)_(?:file_name|filename|path|file)$", "", _plain(name))
    return re.sub(r"(?<=.)_(?:image|img)$", "", without)


def _refuse_misspelt(file: Path, name: str, fields: Sequence[str]) -> None:
    """Raises ValueError if a column's name is nearly that of a field which the table lacks."""
    plain = _plain(name)
    for field in fields:
        known_names = [field, *ALIASES[field]]
        if field in PICTURES:
            known_names += [f"{known}_image" for known in known_names]
        for known in known_names:
            few = 2 if len(known) >= 10 else 1
            if min(len(plain), len(known)) >= SHORTEST and _edits(plain, known) <= few:
                raise ValueError(
                    f"{file}: unknown column {name!r}; did you mean {known}? Rename it, or say "
                    f"columns={{{field}: {name}}}"
                )


def _require_found(
    file: Path, required: Sequence[Sequence[str]], columns: Mapping[str, str], left: Sequence[str]
) -> None:
    """Raises ValueError if a group has no field that was found, though other columns are left."""
    for wanted in required:
        if left and columns.keys().isdisjoint(wanted):
            raise ValueError(
                f"{file}: no column holds the {' or '.join(wanted)}; the others are {', '.join(left)}; say "
                f"which by columns={{{wanted[0]}: {left[0]}}}"
            )


def _edits(a: str, b: str) -> int:
    """Number of letters added, omitted, changed or swapped with the next between two words."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        last, before, row = before, row, [i]
        for j, other in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and (letter, other) == (b[j - 2], a[i - 2]):
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


def _cell(value: Any) -> Any:
    """A cell of a field; None if it is empty, in the ways that spreadsheets and pandas write that."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return text_or_none(value) if isinstance(value, str) else value


def _tell(file: Path, columns: Mapping[str, str], left: Sequence[str]) -> None:
    parts = []
    renamed = [f"{field} from {name}" for field, name in columns.items() if field != name]
    if renamed:
        parts.append(", ".join(renamed))
    if left:
        parts.append(f"other columns: {', '.join(left)}")
    if parts:
        notice(f"{file}: {'; '.join(parts)}")
