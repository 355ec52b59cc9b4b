"""Rows of CSV, TSV and JSONL files: encodings, separators and index columns as programs write them."""

import codecs
import csv
import io
import json
import re
from pathlib import Path
from typing import Any

from rewardedit.processes import notice

SEPARATORS = (",", ";", "\t", "|")
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16's, which it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Letters of another script that are read as Windows-1252: none of its languages has four such in a row.
FOREIGN = re.compile(r"[^\W\x00-\x7f]{4}")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f]")  # characters that no text file holds


def read_text_table(file: Path) -> list[dict[str, Any]]:
    """Rows of a JSONL file, or else of a CSV file with any of `SEPARATORS`.

    Raises:
        ValueError: if it cannot be read.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from error
    is_json = file.suffix.lower() == ".jsonl"
    text = decode(file, content, may_be_western=not is_json)
    return _read_jsonl(file, text) if is_json else _read_csv(file, text)


def decode(file: Path, content: bytes, may_be_western: bool = True) -> str:
    """Returns the text of a file: by its byte-order mark, else UTF-8, else Windows-1252, with a notice.

    Args:
        may_be_western: False if only Unicode is allowed, as in JSON.

    Raises:
        ValueError: if it is none of them, such as UTF-8 with a damaged place.
    """
    encoding = next((name for mark, name in BYTE_ORDER_MARKS if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        western = _western(content) if may_be_western and encoding == "utf-8" else None
        if western is None:
            name = encoding.removesuffix("-sig").upper()
            raise ValueError(f"{file}: expected {name} text; save it as UTF-8 ({where})") from error
        text = western
        line = next(line for line in text.splitlines() if not line.isascii())
        notice(
            f"{file}: is not UTF-8 and is read as Windows-1252, such as {line[:80]}; if that is wrong, save "
            "it as UTF-8"
        )

    if "\0" in text:
        raise ValueError(f"{file}: expected text; got null characters; save it as UTF-8")
    return text


def _western(content: bytes) -> str | None:
    """The text as Windows-1252; None for damaged UTF-8, letters of another script, and anything but text."""
    decoded = content.decode("utf-8", errors="surrogateescape")
    if re.search(r"[^\x00-\x7f\udc80-\udcff]", decoded):
        return None  # some of it is UTF-8
    try:
        text = content.decode("cp1252")
    except UnicodeDecodeError:
        return None
    return None if CONTROL.search(text) or FOREIGN.search(text) else text


def _read_csv(file: Path, text: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    said = re.match(r"sep=(.)\r?\n", text)  # as Excel reads it
    if said:
        text = text[said.end() :]
    separator = said[1] if said else _separator(text)
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
        # Spreadsheets leave empty names at the end, pandas one before its numbers of rows.
        columns = list(filter(None, reader.fieldnames or []))
        if len(set(columns)) < len(columns):
            raise ValueError(f"{file}: expected columns of different names; got {', '.join(columns)}")
        has_index = next(iter(reader.fieldnames or []), None) == ""
        for number, record in enumerate(reader, 1):
            if None in record:  # where DictReader puts surplus cells
                raise ValueError(
                    f"{file}: row {number} has more cells than there are columns; put texts with "
                    f"{_name_of(separator)} in quotes"
                )
            unnamed = record.pop("", None)
            if unnamed and not (has_index and re.fullmatch(r"-?\d+", unnamed)):
                raise ValueError(f"{file}: row {number} has a cell in a column without a name")
            records.append(record)
    except csv.Error as error:
        raise ValueError(f"{file}: row {len(records) + 1} is not CSV ({error})") from error

    return records


def _separator(text: str) -> str:
    """The separator that cuts the head of a table into most names."""
    head = text.lstrip("\r\n").splitlines()[:1] or [""]

    def names(separator: str) -> int:
        return len(next(csv.reader(head, delimiter=separator), []))

    return max(SEPARATORS, key=names)  # the first of them, a comma, if there is one column


def _name_of(separator: str) -> str:
    return {",": "commas", ";": "semicolons", "\t": "tabs"}.get(separator, separator)


def _read_jsonl(file: Path, text: str) -> list[dict[str, Any]]:
    records = []
    for number, line in enumerate(text.split("\n"), 1):  # splitlines() would cut texts at U+2028 too
        if not line.strip():
            continue
        try:
            # pandas and Python write NaN for a cell that is empty
            record = json.loads(line, parse_constant=lambda _: None)
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}: line {number} is not JSON ({error.msg})") from error
        except (RecursionError, ValueError) as error:  # nested too deeply; an integer of too many digits
            raise ValueError(f"{file}: line {number} is not JSON that can be read") from error
        if not isinstance(record, dict):
            raise ValueError(
                f'{file}: line {number}: expected an object such as {{"source": …}}; got {line.strip()[:40]}'
            )
        records.append(record)

    return records
