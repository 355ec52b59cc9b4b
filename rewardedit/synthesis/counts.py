"""Counts of a data set's rows: unusable ones, and labelled ones by rule and method."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardedit.data.sequences import Sequences
from rewardedit.synthesis.label_rules import ANOTHER_INSTRUCTION, DAMAGED, OWN_LABELS
from rewardedit.synthesis.methods import MethodConfig
from rewardedit.synthesis.multi_turn import chosen_edits
from rewardedit.synthesis.outputs import read_parquet
from rewardedit.synthesis.rules_config import RulesConfig, known


def caption_failures(paths: list[Path]) -> list[dict[str, Any]]:
    """Rows whose captions are left out, with the reason."""
    return _failures(paths, "captions")


def output_failures(outputs: dict[str, list[Path]]) -> list[dict[str, Any]]:
    """Rows for which a method made no image, with the reason."""
    records = []
    for name, paths in outputs.items():
        records += _failures(paths, name)
    return records


def source_failures(measured: list[Path]) -> list[dict[str, Any]]:
    """Rows whose source or target cannot be read, with the reason."""
    records = []
    for record in _read(measured, "row", "image", "reason"):
        if record["reason"] is not None and record["image"] == "source":
            records.append(record)
    return records


def _failures(paths: list[Path], image: str) -> list[dict[str, Any]]:
    records = []
    for record in _read(paths, "row", "reason"):
        if record["reason"] is not None:
            records.append({"row": record["row"], "image": image, "reason": record["reason"]})
    return records


def _read(paths: list[Path], *columns: str) -> Iterator[dict[str, Any]]:
    for path in paths:
        yield from read_parquet(path, 1024, columns)


def planned_rows(
    rules: RulesConfig, rows: int, methods: int, sequences: Sequence[Sequences]
) -> dict[str, int]:
    """Largest numbers of labelled rows by rule, and from all outputs of methods and all sequences."""
    negatives = rules.negatives
    planned = {
        "source": rows,
        "target": rows,
        "augmented_source": rows,
        "another_image": round(rows * known(negatives.other_image)),
        "another_instruction": round(rows * known(negatives.other_instruction)),
        "another_object": round(rows * negatives.object_swap),
        "another_word": rows * negatives.word_swap,
        DAMAGED: 0 if rules.damage is None else rows * rules.damage.per_target,
        "outputs of methods": rows * methods,
    }
    planned["sequences"] = 0
    for data_set in sequences:
        for number in range(len(data_set)):
            planned["sequences"] += len(chosen_edits(data_set.turns(number), rules.turns, 0.0))
    return {name: n for name, n in planned.items() if n}


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


def unet_calls(methods: Mapping[str, MethodConfig], rows: int, batch_size: int) -> dict[str, int]:
    """Numbers of UNet calls of all edits, made in batches, by model."""
    calls: Counter[str] = Counter()
    for method in methods.values():
        if method.kind != "folder":
            calls[method.model] += math.ceil(rows / batch_size) * method.num_inference_steps
    return dict(calls)


def summary(shards: list[Path], outputs: dict[str, list[Path]]) -> dict[str, Any]:
    """Number of rows by rule, label and method, and number of each method's outputs that no rule labels."""
    rules: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    for record in _read(shards, "rule", "method", "label"):
        rules[record["rule"]] += 1
        kept[record["method"]] += record["rule"] not in (ANOTHER_INSTRUCTION, *OWN_LABELS)
        labels[f"{record['label']:.4g}"] += 1

    methods = {}
    for name, paths in outputs.items():
        made = sum(record["reason"] is None for record in _read(paths, "reason"))
        methods[name] = {"made": made, "kept": kept[name], "dropped": made - kept[name]}

    return {
        "rows": sum(rules.values()),
        "rules": dict(rules.most_common()),
        "labels": dict(sorted(labels.items(), key=lambda item: float(item[0]))),
        "methods": methods,
    }
