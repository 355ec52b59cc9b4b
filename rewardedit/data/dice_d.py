"""DICE-D (Baraldi et al. 2025): 800 edits of I2EBench's images with the differences that people marked.

The data set's own files could not be found in public: this reads the layout in which DICE's released code
keeps and reads differences, a JSON list with a record for each: original_path, edited_path, operation (ADD,
EDIT or REMOVE), bbox (x0, y0, x1, y1 in shares of the image), complete_difference, gt_prompt, the
instruction, and confidence. Here a row is an edit, however many differences it has; the differences
themselves are left out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.data.annotations import find_image, require_text
from rewardedit.untrusted import open_image, read_json

KEYS = ("original_path", "edited_path", "gt_prompt")


class DiceD(Sequence):
    """The edits of a JSON file, or of the one in a folder, in the order of their first differences;
    images are named relative to the file, or to `root`.

    A record that lacks something is refused when its row is read.

    Raises:
        ValueError: if there is no such file, or it is no list of records; or on a split other than test.
    """

    def __init__(self, path: str, split: str = "test", root: str | None = None) -> None:
        if split != "test":
            raise ValueError(f"split: DICE-D is for testing only, split=test; got {split!r}")
        file = _json_file(Path(path))
        self.folder = file.parent if root is None else Path(root)
        records = _read(file)
        edits: dict[tuple[str, ...], dict[str, Any]] = {}
        for record in records:
            edits.setdefault(tuple(map(str, map(record.get, KEYS))), record)
        self.records = list(edits.values())

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

    def source_ids(self) -> list[str]:
        """The name of each row's source image; for a record without one, the row's name."""
        return [str(record.get("original_path") or f"edit {i}") for i, record in enumerate(self.records)]


def _json_file(path: Path) -> Path:
    if path.is_file():
        return path
    found = sorted(filter(Path.is_file, path.glob("*.json")))
    if len(found) != 1:
        raise ValueError(f"{path}: expected one .json file with the differences; found {len(found)}")
    return found[0]


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        records = read_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: is not JSON ({error})") from error
    if not isinstance(records, list) or not records or not all(isinstance(r, dict) for r in records):
        raise ValueError(f"{file}: expected a list of records, one a difference")
    return records
