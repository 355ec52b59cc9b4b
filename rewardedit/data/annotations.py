"""Annotations in JSON next to the images that they name, as data sets in folders have them."""

import os
from pathlib import Path
from typing import Any

from rewardedit.batch import text_or_none
from rewardedit.models import WORLDS
from rewardedit.untrusted import file_inside, printable, read_json

OTHER_ROOT = "data.root=FOLDER names another folder of images"  # the remedy if a file lies elsewhere


def read_lines(folder: Path, expected: str) -> list[tuple[str, str]]:
    """The lines of `folder`/annotations/*.jsonl without empty ones, each with its name: file and number.

    Args:
        expected: whose annotations these are, for the message.

    Raises:
        ValueError: if there are no annotations.
    """
    files = sorted(filter(Path.is_file, (folder / "annotations").glob("*.jsonl")))
    if not files:
        raise ValueError(f"{folder}: expected annotations/*.jsonl, as {expected} has them")

    rows = []
    for file in files:
        lines = file.read_text("utf-8", errors="surrogateescape").split("\n")
        for number, line in enumerate(lines, 1):
            if line.strip():
                rows.append((f"{file.stem}-{number}", line))
    return rows


def read_object(line: str, name: str) -> dict[str, Any]:
    """Parses a line as a JSON object.

    Raises:
        ValueError: if it is none.
    """
    try:
        record = read_json(line)
    except ValueError as error:
        raise ValueError(f"{name} is not JSON ({error})") from error
    if not isinstance(record, dict):
        raise ValueError(f"{name}: expected a JSON object; got {printable(line.strip(), 40)}")
    return record


def require_text(record: dict[str, Any], key: str, name: str) -> str:
    """A text of a record.

    Raises:
        ValueError: if it is missing, blank, or not text.
    """
    text = record.get(key)
    if not isinstance(text, str) or text_or_none(text) is None:
        raise ValueError(f"{name} has no {key}")
    if not is_text(text):
        raise ValueError(f"{name}: {key}: expected text; got {text!r}")
    return text


def is_text(value: str) -> bool:
    """False for a text with half a character, such as a cut-off emoji: JSON can write it, UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def folder_of_images(root: str | None, name: str) -> str | None:
    """The setting `root` of a data set of this name, with ~ resolved.

    Raises:
        ValueError: if there is no such folder, or the data set's rows name no files.
    """
    if root is None:
        return None
    if name in (*WORLDS, "webdataset", "labelled"):
        raise ValueError(f"root: {name} rows name no image files; leave it out")
    folder = os.path.expanduser(root)
    if not os.path.isdir(folder):
        raise ValueError(f"root: expected a folder of images; got {root}, which is not a folder")
    return folder


def find_image(folder: Path, image: str, within: tuple[str, ...] = ("",)) -> Path:
    """The file of an image that is named relative to the folder, or to one of the folders `within` it.

    Raises:
        ValueError: if there is none, or it lies outside of the folder, by its name or by a link.
    """
    for inner in within:
        try:
            return file_inside(folder, os.path.join(inner, image))
        except FileNotFoundError:
            continue
        except ValueError as error:
            raise ValueError(f"{error}; {OTHER_ROOT}") from error
    raise ValueError(f"{folder}: {printable(image)} is not there")
