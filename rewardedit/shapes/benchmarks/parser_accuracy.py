"""Accuracy of a parser of instructions, by objects, size and position (BPM, Table 12)."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardedit.instructions.parsed import Parsed, ParsedEdit, Parser

PARTS = ("object", "size", "position")


def parsed_right(parsed: Parsed, label: dict[str, Any]) -> dict[str, bool]:
    """Checks a parse for the objects, the size and the position that its label allows.

    Args:
        label: of one instruction: lists of accepted values of source, target, size and position, null if
            there is no such object, and whether the instruction is ambiguous.
    """
    if not isinstance(parsed, ParsedEdit):
        return dict.fromkeys(PARTS, False)

    def agrees(value: str | None, allowed: list[str] | None) -> bool:
        if value is None and label["ambiguous"]:
            return parsed.ambiguous
        return value in allowed if allowed is not None else value is None

    return {
        "object": agrees(parsed.source, label["source"]) and agrees(parsed.target, label["target"]),
        "size": parsed.size in label["size"],
        "position": is_placed(parsed.position, label["position"]),
    }


def is_placed(position: str, allowed: Sequence[str]) -> bool:
    """True if a position is one of those that a label allows; "on" is up or inside."""
    return position in allowed or (position == "on" and not {"up", "inside"}.isdisjoint(allowed))


def parse_accuracy(parser: Parser, path: Path) -> dict[str, float]:
    """The shares of the labelled instructions in a JSONL file that are parsed correctly, by part."""
    labels = list(map(json.loads, path.read_text(encoding="utf-8").splitlines()))
    parsed = parser([label["instruction"] for label in labels])
    right: Counter[str] = Counter()
    for one, label in zip(parsed, labels, strict=True):
        right.update(parsed_right(one, label))
    return {part: right[part] / len(labels) for part in PARTS}
