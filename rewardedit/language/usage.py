"""Endpoint usage (calls, failures, tokens), stored beside the results and summarised in one line each. It is
counted by endpoint and model, "URL#MODEL".
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from typing import Any

from rewardedit.files import AnyPath, write_json
from rewardedit.language.endpoint import Usage, metered
from rewardedit.untrusted import read_json_file

USAGE = "usage.json"  # file name in a folder of results


def as_settings(usage: Mapping[str, Usage]) -> dict[str, Any]:
    """The usage as it is written to JSON."""
    return {name: asdict(counts) for name, counts in usage.items()}


def write_usage(path: AnyPath, usage: Mapping[str, Usage], in_stage: bool = False) -> None:
    """Writes a file for `read_usage`, but none if there is no usage; `in_stage` as in `replaced`."""
    if usage:
        write_json(path, as_settings(usage), in_stage)


@contextmanager
def record_usage(path: AnyPath) -> Iterator[None]:
    """Adds to a file the endpoint usage of this process within the block, even if the block ends in an error:
    it is billed all the same.
    """
    with metered() as used:
        try:
            yield
        finally:
            if used:
                with suppress(FileNotFoundError):  # a stage's folder is gone if others have finished it
                    write_usage(path, add_up([read_usage([path]), used]), in_stage=True)


def read_usage(paths: Iterable[AnyPath]) -> dict[str, Usage]:
    """The total usage in these files; missing files count as empty, and for an unreadable one a message says
    that its calls are not counted.
    """
    parts = []
    for path in paths:
        try:
            parts.append(from_settings(read_json_file(path)))
        except FileNotFoundError:
            continue
        except ValueError:
            print(f"{path}: is damaged; its calls are not counted", file=sys.stderr)
    return add_up(parts)


def from_settings(values: Any) -> dict[str, Usage]:
    """Inverse of `as_settings`.

    Raises:
        ValueError: if the values are anything else.
    """
    if not isinstance(values, dict) or not all(map(_is_usage, values.values())):
        raise ValueError("expected counts by endpoint and model, as usage.json has them")
    return {name: Usage(**counts) for name, counts in values.items()}


def _is_usage(counts: Any) -> bool:
    names = {field.name for field in fields(Usage)}
    return isinstance(counts, dict) and counts.keys() <= names and all(map(_is_count, counts.values()))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def add_up(parts: Iterable[Mapping[str, Usage]]) -> dict[str, Usage]:
    """The sum of several usages, separately for each endpoint and model."""
    total: dict[str, Usage] = {}
    for usages in parts:
        for name, counts in usages.items():
            total.setdefault(name, Usage()).add(counts)
    return total


def format_usage(usage: Mapping[str, Usage]) -> str:
    """A summary with one line for each endpoint and model."""
    lines = []
    for name, counts in usage.items():
        tokens = f"{counts.prompt_tokens} prompt and {counts.completion_tokens} completion tokens"
        if not counts.prompt_tokens + counts.completion_tokens:
            tokens = "it counts no tokens"
        lines.append(f"endpoint {name}: {counts.calls} calls, {counts.failures} of them failed; {tokens}")
    return "\n".join(lines)
