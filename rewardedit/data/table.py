"""Your own edits: a CSV or JSONL file, or a folder that holds one, with a row for each edit."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.images import load_image

PICTURES = ("source", "edited", "target", "mask")
TEXTS = ("id", "instruction", "source_caption", "target_caption", "kind")
NAMES = ("rows.jsonl", "rows.csv", "metadata.jsonl", "metadata.csv")


class Table(Sequence):
    """Rows with the columns source, instruction and target (or edited); optionally mask, captions, kind and id.

    Pictures are paths, relative to the file. A folder is read through its `rows.jsonl`, `rows.csv` or `metadata.*`.

    Raises:
        ValueError: where the file, a column or a picture is missing.
    """

    def __init__(self, path: str) -> None:
        file = Path(path)
        if file.is_dir():
            found = [file / name for name in NAMES if (file / name).is_file()]
            if not found:
                raise ValueError(f"{path}: expected one of {', '.join(NAMES)} in the folder")
            file = found[0]
        self.folder, self.records = file.parent, read_records(file)
        for number, record in enumerate(self.records, 1):
            self._check(file, number, record)

    def _check(self, file: Path, number: int, record: dict[str, Any]) -> None:
        unknown = set(record) - set(PICTURES) - set(TEXTS)
        if unknown:
            raise ValueError(f"{file}: unknown column {sorted(unknown)[0]!r}; known are {', '.join(TEXTS + PICTURES)}")
        for name in ("source", "instruction"):
            if not record.get(name):
                raise ValueError(f"{file}: row {number} has no {name}")
        if not record.get("edited") and not record.get("target"):
            raise ValueError(f"{file}: row {number} has neither edited nor target")
        for name in PICTURES:
            if record.get(name) and not (self.folder / record[name]).is_file():
                raise ValueError(f"{file}: row {number}: {name} {record[name]!r} is not there")

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        record = self.records[index]
        pictures = {name: load_image(self.folder / record[name]) for name in PICTURES if record.get(name)}
        if "mask" in pictures:
            pictures["mask"] = pictures["mask"].mean(0, keepdim=True)
        texts = {name: record[name] for name in TEXTS if record.get(name)}
        return EditSample(**{"id": str(index), **texts, **pictures})


def read_records(file: Path) -> list[dict[str, Any]]:
    """The rows of a CSV or JSONL file.

    Raises:
        ValueError: where it is missing, empty, of another kind, or a line cannot be read.
    """
    try:
        text = file.read_text()
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from error
    if file.suffix == ".csv":
        records = list(csv.DictReader(text.splitlines()))
    elif file.suffix == ".jsonl":
        records = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise ValueError(f"{file}: line {number} is not JSON ({error.msg})") from error
    else:
        raise ValueError(f"{file}: expected .csv or .jsonl")
    if not records:
        raise ValueError(f"{file}: holds no rows")
    return records


def write_records(file: Path, records: list[dict[str, Any]]) -> None:
    """A JSONL file that `Table` reads."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
