"""Counts of a data set's rows: unusable ones, and labelled ones by rule and method."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardedit.data.sequences import Sequences
from rewardedit.synthesis.label_rules import ANOTHER_INSTRUCTION, OWN_LABELS, RulesConfig
from rewardedit.synthesis.methods import MethodConfig
from rewardedit.synthesis.multi_turn import chosen_edits
from rewardedit.synthesis.outputs import read_parquet


def of_captions(paths: list[Path]) -> list[dict[str, Any]]:
    """Rows whose captions are left out, with the reason."""
    return [
        {"row": record["row"], "image": "captions", "reason": record["reason"]}
        for path in paths
        for record in read_parquet(path, 1024, ("row", "reason"))
        if record["reason"] is not None
    ]


def of_outputs(outputs: dict[str, list[Path]]) -> list[dict[str, Any]]:
    """Rows for which a method made no image, with the reason."""
    return [
        {"row": record["row"], "image": name, "reason": record["reason"]}
        for name, paths in outputs.items()
        for path in paths
        for record in read_parquet(path, 1024, ("row", "reason"))
        if record["reason"] is not None
    ]


def of_sources(measured: list[Path]) -> list[dict[str, Any]]:
    """Rows whose source or target cannot be read, with the reason."""
    return [
        record
        for path in measured
        for record in read_parquet(path, 1024, ("row", "image", "reason"))
        if record["reason"] is not None and record["image"] == "source"
    ]


def planned_rows(
    rules: RulesConfig, rows: int, methods: int, sequences: Sequence[Sequences]
) -> dict[str, int]:
    """Largest numbers of labelled rows by rule, and from all outputs of methods and all sequences."""
    found = {"source": rows, "target": rows, "augmented_source": rows}
    for name in ("another_image", "another_instruction", "another_object", "another_word", "damaged"):
        found[name] = round(rows * rules.share(name))
    found["outputs of methods"] = rows * methods
    found["sequences"] = sum(
        len(chosen_edits(own.turns(number), rules.turns, 0.0))
        for own in sequences
        for number in range(len(own))
    )
    return {name: n for name, n in found.items() if n}


def plan_lines(
    rules: RulesConfig, rows: int, methods: Mapping[str, MethodConfig], sequences: Sequence[Sequences]
) -> list[str]:
    """Lines of a plan: rows, edits and sequences, and labelled rows by rule."""
    planned = planned_rows(rules, rows, len(methods), sequences)
    return [
        f"rows: {rows}; methods: {', '.join(methods) or 'none'}; {rows * len(methods)} edits",
        f"sequences: {sum(map(len, sequences))}; choices of each: {rules.turns}",
        f"labelled rows, at most: {', '.join(f'{name} {n:,}' for name, n in planned.items())}",
    ]


def unet_calls(methods: Mapping[str, MethodConfig], rows: int) -> dict[str, int]:
    """Numbers of UNet calls of all edits, by model."""
    calls: Counter[str] = Counter()
    for method in methods.values():
        if method.kind != "folder":
            calls[method.model] += rows * method.num_inference_steps
    return dict(calls)


def summary(shards: list[Path], outputs: dict[str, list[Path]]) -> dict[str, Any]:
    """Number of rows by rule, label and method, and number of each method's outputs that no rule labels."""
    rules: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    for path in shards:
        for record in read_parquet(path, 1024, ("rule", "method", "label")):
            rules[record["rule"]] += 1
            kept[record["method"]] += record["rule"] not in (ANOTHER_INSTRUCTION, *OWN_LABELS)
            labels[f"{record['label']:.4g}"] += 1
    made = {
        name: sum(
            record["reason"] is None for path in paths for record in read_parquet(path, 1024, ("reason",))
        )
        for name, paths in outputs.items()
    }
    return {
        "rows": sum(rules.values()),
        "rules": dict(rules.most_common()),
        "labels": dict(sorted(labels.items(), key=lambda item: float(item[0]))),
        "methods": {
            name: {"made": n, "kept": kept[name], "dropped": n - kept[name]} for name, n in made.items()
        },
    }
