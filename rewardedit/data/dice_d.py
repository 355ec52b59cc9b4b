"""DICE-D (Baraldi et al. 2025): 800 edits of I2EBench's images with the differences that people marked.

The data set's own files could not be found in public: this reads the layout in which DICE's released code
keeps and reads differences, a JSON list with a record for each: original_path, edited_path, operation (ADD,
EDIT or REMOVE), bbox (x0, y0, x1, y1 in shares of the image), complete_difference, gt_prompt, the
instruction, and confidence. A row is an edit, however many differences it has; `DiceD.differences` returns
these. The released file does not say if a difference was asked for; two optional keys do: coherent, true or
false, and reason, a sentence that says why.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.annotations import find_image, require_text
from rewardedit.language.answers import one_line
from rewardedit.regions.differences import COMMANDS, Box, Difference
from rewardedit.scorers.dice_text import plain_subject
from rewardedit.untrusted import open_image, printable, read_json

KEYS = ("original_path", "edited_path", "gt_prompt")


@dataclass(frozen=True)
class MarkedDifference:
    """A difference that people marked, and whether the instruction asks for it; None: not known."""

    difference: Difference
    coherent: bool | None = None
    reason: str = ""  # reason of the verdict, in a sentence


class DiceD(Sequence):
    """The edits of a JSON file, or of the one in a folder, in the order of their first differences;
    images are named relative to the file, or to `root`.

    A record that lacks something is refused when its row is read.

    Raises:
        ValueError: if there is no such file, or it is no list of records; or on a split other than test.
    """

    def __init__(self, path: str, split: str = "test", root: str | None = None) -> None:
        if split != "test":
            raise ValueError(f"split: files in DICE-D's layout have one split, split=test; got {split!r}")
        file = _json_file(Path(path))
        self.folder = file.parent if root is None else Path(root)
        records = _read(file)
        edits: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for record in records:
            edits.setdefault(tuple(map(str, map(record.get, KEYS))), []).append(record)
        self.marked = list(edits.values())
        self.records = [marked[0] for marked in self.marked]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        record = self.records[index]
        name = f"edit {index}"
        original, edited, instruction = (require_text(record, key, name) for key in KEYS)
        source = find_image(self.folder, original)
        result = find_image(self.folder, edited)
        return EditSample(str(index), open_image(source), instruction, edited=open_image(result))

    def differences(self, index: int) -> list[MarkedDifference]:
        """The differences of a row, in the order of the file.

        Raises:
            ValueError: if one has no operation, box or name, coherent is neither true nor false, or its
                reason is no text.
        """
        records = self.marked[index]
        return [_difference(record, f"edit {index}, difference {i}") for i, record in enumerate(records)]

    def source_ids(self) -> list[str]:
        """The name of each row's source image; for a record without one, the row's name."""
        return [str(record.get("original_path") or f"edit {i}") for i, record in enumerate(self.records)]


def _difference(record: dict[str, Any], name: str) -> MarkedDifference:
    command = next((one for one in COMMANDS if one == str(record.get("operation")).upper()), None)
    if command is None:
        got = printable(str(record.get("operation")), 40)
        raise ValueError(f"{name}: operation: expected one of {', '.join(COMMANDS)}; got {got}")
    text = require_text(record, "complete_difference", name)
    subject = plain_subject(_subject(text))
    if not subject:
        got = printable(text, 40)
        raise ValueError(f"{name}: complete_difference: expected a name of the object; got {got!r}")
    confidence = record.get("confidence")
    if not isinstance(confidence, int | float) or not 0 <= confidence <= 1:
        confidence = 1.0
    difference = Difference(command, subject, _box(record, name), float(confidence))
    coherent = record.get("coherent")
    if coherent is not None and not isinstance(coherent, bool):
        raise ValueError(f"{name}: coherent: expected true or false; got {printable(str(coherent), 40)}")
    reason = "" if record.get("reason") is None else require_text(record, "reason", name)
    return MarkedDifference(difference, coherent, one_line(reason))


def _subject(text: str) -> str:
    """The subject of "COMMAND: subject, [x0, y0, x1, y1]"; command and box may be missing."""
    command, colon, rest = text.partition(":")
    subject = (rest if colon and command.strip().replace("_", "x").isalnum() else text).strip()
    opening = max(subject.rfind("["), subject.rfind("("))
    inside = subject[opening + 1 : -1]
    before = subject[: max(opening, 0)].rstrip()
    is_box = subject.endswith(("]", ")")) and not set(inside) & set("])") and before.endswith(",")
    return before[:-1].strip() if is_box else subject


def _box(record: dict[str, Any], name: str) -> Box:
    """The box of a record.

    Raises:
        ValueError: if it is none, empty, or not within the image.
    """
    box = record.get("bbox")
    if isinstance(box, list) and len(box) == 4 and all(map(_is_number, box)):
        x0, y0, x1, y1 = map(float, box)
        if 0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1:
            return x0, y0, x1, y1
    got = printable(str(box), 60)
    raise ValueError(f"{name}: bbox: expected x0 < x1 and y0 < y1, all from 0 to 1; got {got}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _json_file(path: Path) -> Path:
    if path.is_file():
        return path
    files = sorted(filter(Path.is_file, path.glob("*.json")))
    if len(files) != 1:
        raise ValueError(f"{path}: expected one .json file with the differences; found {len(files)}")
    return files[0]


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        records = read_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: is not JSON ({error})") from error
    if not isinstance(records, list) or not records or not all(isinstance(r, dict) for r in records):
        raise ValueError(f"{file}: expected a list of records, one a difference")
    return records
