"""What endpoints were asked for, kept in files beside what was made by it, and told in a line: what a bill is
made of. It is counted by endpoint and model, "URL#MODEL".
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rewardedit.endpoint import Usage, metered
from rewardedit.files import AnyPath, write_json

USAGE = "usage.json"  # in a folder with what was made


def as_settings(usage: Mapping[str, Usage]) -> dict[str, Any]:
    """As it stands in JSON."""
    return {name: asdict(counts) for name, counts in usage.items()}


def write_usage(path: AnyPath, usage: Mapping[str, Usage], writer: str = "") -> None:
    """To a file that `read_usage` reads, none where nothing was asked for; `writer` as in `replaced`."""
    if usage:
        write_json(path, as_settings(usage), writer)


@contextmanager
def usage_kept(path: AnyPath, writer: str = "") -> Iterator[None]:
    """Adds to a file what this process asks of endpoints within the block, also where that ends in an error:
    it is to be paid all the same.
    """
    with metered() as used:
        try:
            yield
        finally:
            if used and path.parent.exists():  # a stage's folder may be gone, where others have ended it
                write_usage(path, add_up([read_usage([path]), used]), writer)


def read_usage(paths: Iterable[AnyPath]) -> dict[str, Usage]:
    """The sum of what stands in files; those that are not there hold nothing."""
    return add_up([from_settings(json.loads(path.read_text())) for path in paths if path.exists()])


def from_settings(values: Mapping[str, Any]) -> dict[str, Usage]:
    """What `as_settings` gave."""
    return {name: Usage(**counts) for name, counts in values.items()}


def add_up(parts: Iterable[Mapping[str, Usage]]) -> dict[str, Usage]:
    """The sum of several, each endpoint and model by itself."""
    found: dict[str, Usage] = {}
    for part in parts:
        for name, counts in part.items():
            found.setdefault(name, Usage()).add(counts)
    return found


def told(usage: Mapping[str, Usage]) -> str:
    """A line for each endpoint and model."""
    lines = []
    for name, counts in usage.items():
        tokens = f"{counts.prompt_tokens} prompt and {counts.completion_tokens} completion tokens"
        if not counts.prompt_tokens + counts.completion_tokens:
            tokens = "it counts no tokens"
        lines.append(f"endpoint {name}: {counts.calls} calls, {counts.failures} of them failed; {tokens}")
    return "\n".join(lines)
