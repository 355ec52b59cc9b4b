"""Your own edits: a CSV or JSONL file, or a folder that holds one, with a row for each edit."""

import csv
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rewardedit.batch import EditSample
from rewardedit.images import load_image, load_mask

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
        require_texts(file, number, record, (*TEXTS, *PICTURES), ("source", "instruction"))
        if not record.get("edited") and not record.get("target"):
            raise ValueError(f"{file}: row {number} has neither edited nor target")
        for name in PICTURES:
            if record.get(name) and not (self.folder / record[name]).is_file():
                raise ValueError(f"{file}: row {number}: {name} {record[name]!r} is not there")

    def __len__(self) -> int:
        return len(self.records)

    def source_ids(self) -> list[str]:
        """The source image of each row, by the content of its file."""
        files = {record["source"] for record in self.records}
        content = {file: hashlib.sha256((self.folder / file).read_bytes()).hexdigest() for file in files}
        return [content[record["source"]] for record in self.records]

    def __getitem__(self, index: int) -> EditSample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        record = self.records[index]
        paths = {name: self.folder / record[name] for name in PICTURES if record.get(name)}
        pictures = {name: load_mask(path) if name == "mask" else load_image(path) for name, path in paths.items()}
        texts = {name: str(record[name]) for name in TEXTS if record.get(name) not in (None, "")}
        return EditSample(**{"id": str(index), **texts, **pictures})


def read_records(file: Path) -> list[dict[str, Any]]:
    """The rows of a CSV or JSONL file, in UTF-8 with or without a byte-order mark; empty lines are no rows.

    Cells of a CSV file are text as they stand ("007"), and may hold quoted line breaks; those that a row leaves out at its
    end are None.

    Raises:
        ValueError: where it is missing, empty, of another kind, or a row cannot be read.
    """
    if file.suffix not in (".csv", ".jsonl"):
        raise ValueError(f"{file}: expected .csv or .jsonl")
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            records = _read_csv(file, lines) if file.suffix == ".csv" else _read_jsonl(file, lines.read())
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: expected UTF-8 text; save it as UTF-8 ({error.reason} at byte {error.start})") from error
    if not records:
        raise ValueError(f"{file}: holds no rows")
    return records


def _read_csv(file: Path, lines: Iterable[str]) -> list[dict[str, Any]]:
    records = []
    try:
        for number, record in enumerate(csv.DictReader(lines, strict=True), 1):
            if None in record:  # where DictReader puts what is left over
                raise ValueError(f"{file}: row {number} has more cells than there are columns; put texts with commas in quotes")
            records.append(record)
    except csv.Error as error:
        raise ValueError(f"{file}: row {len(records) + 1} is not CSV ({error})") from error
    return records


def _read_jsonl(file: Path, text: str) -> list[dict[str, Any]]:
    records = []
    for number, line in enumerate(text.split("\n"), 1):  # splitlines() would cut texts at U+2028 too
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}: line {number} is not JSON ({error.msg})") from error
        if not isinstance(record, dict):
            raise ValueError(f'{file}: line {number}: expected an object such as {{"source": …}}; got {line.strip()[:40]}')
        records.append(record)
    return records


def require_texts(file: Path, number: int, record: dict[str, Any], texts: Iterable[str], required: Iterable[str]) -> None:
    """Raises ValueError where one of `required` is missing or blank in a row, or one of `texts` is there and no text.

    An id may be a number.
    """
    for name in texts:
        value = record.get(name)
        if value is not None and not isinstance(value, str) and not (name == "id" and isinstance(value, int)):
            raise ValueError(f"{file}: row {number}: {name}: expected text; got {json.dumps(value)}")
    for name in required:
        if not (record.get(name) or "").strip():
            raise ValueError(f"{file}: row {number} has no {name}")


def write_records(file: Path, records: list[dict[str, Any]]) -> None:
    """A JSONL file that `Table` reads."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
