"""Prepares a run's files for publication: without local paths and addresses."""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rewardedit.language.endpoint_settings import ADDRESS
from rewardedit.models import NAMES, RELATIVE, is_hub_name
from rewardedit.untrusted import read_json

LOCAL = "(local)"
ENDPOINT = "(endpoint)"
ABSOLUTE = re.compile(r"(~|[A-Za-z]:)?[/\\].*\S")  # a path from the root, the home folder or a drive
PATHLIKE = re.compile(r"[^\s{}]*[/\\][^\s{}]*")  # one word with a slash in it
# Files of a result with local information only, or of no use to others.
UNPUBLISHED = ("made_of.json", ".*", "*.partial")
TEXTS = ("tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")  # words, no settings


def is_local(text: str) -> bool:
    """True for a text that is a local path, existing or not."""
    if text in NAMES or ADDRESS.match(text):
        return False
    if ABSOLUTE.fullmatch(text) or RELATIVE.fullmatch(text):
        return True
    return bool(PATHLIKE.fullmatch(text)) and not is_hub_name(text.partition("#")[0])


def without_local(values: Any) -> Any:
    """The settings with `LOCAL` in place of each path, and without the hosts of endpoints."""
    if isinstance(values, str):
        if ADDRESS.match(values):
            return "".join([ENDPOINT, *values.partition("#")[1:]])
        return LOCAL if is_local(values) else values
    if isinstance(values, dict):
        return {without_local(key): without_local(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [without_local(value) for value in values]
    return values


def without_paths(values: Any) -> Any:
    """The settings of a model with `LOCAL` in place of absolute paths, as libraries record where a model was
    loaded from; everything else is unchanged.
    """
    if isinstance(values, str):
        return LOCAL if ABSOLUTE.fullmatch(values) and re.search(r"[/\\].*[/\\]", values) else values
    if isinstance(values, dict):
        return {key: without_paths(value) for key, value in values.items()}
    if isinstance(values, list):
        return [without_paths(value) for value in values]
    return values


@contextmanager
def published(result: Path) -> Iterator[Path]:
    """A temporary folder with links to the files of a result, and copies of its settings without paths."""
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(result.rglob("*")):
            name = file.relative_to(result)
            if not file.is_file() or any(name.match(pattern) for pattern in UNPUBLISHED):
                continue
            copy = Path(folder) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".json" and file.name not in TEXTS:
                values = read_json(file.read_text(encoding="utf-8"))
                if (cleaned := without_paths(values)) != values:
                    copy.write_text(json.dumps(cleaned, indent=2) + "\n", encoding="utf-8")
                    continue
            os.symlink(file.resolve(), copy)
        yield Path(folder)
