"""Report page of labelled rows: counts by label, histograms of the measurements, examples."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

from rewardedit.images import load_image
from rewardedit.reports.report import Gallery, Report
from rewardedit.synthesis.label_rules import Thresholds
from rewardedit.synthesis.measured import METRICS
from rewardedit.synthesis.outputs import read_parquet

TEXTS = ("id", "rule", "method", "label", "source_id")
MOST_VALUES = 100_000  # values of a histogram at most
MOST_LABELS = 16  # columns of a table at most; with more labels, they are rounded to whole numbers


def write_report(
    path: Path, title: str, rows: Path, measured: list[Path], thresholds: Thresholds, examples: int
) -> Path:
    """Writes the report page of the shards in the folder `rows`.

    Args:
        measured: shards of all measurements, whether a rule labels the image or not.
        examples: number of examples shown for each rule.
    """
    counts: Counter[tuple[str, str, str]] = Counter()  # by rule, method and label
    shown: dict[str, dict[str, tuple[Path, str]]] = {}  # by rule and source: shard and id of the example
    shards = sorted(rows.glob("train-*.parquet"))
    for shard in shards:
        for record in read_parquet(shard, 1024, TEXTS):
            counts[record["rule"], record["method"] or "", f"{record['label']:.3g}"] += 1
            of_rule = shown.setdefault(record["rule"], {})
            if len(of_rule) < examples:
                of_rule.setdefault(record["source_id"], (shard, record["id"]))

    report = Report(title)
    report.text(f"{sum(counts.values())} labelled rows in {len(shards)} shards")
    if len({label for _, _, label in counts}) > MOST_LABELS:
        report.text("Labels are counted by the nearest whole number.")
        counts = _by_whole_numbers(counts)

    report.table("Rows by rule and label", _table(counts, 0))
    report.table("Rows by method and label", _table(counts, 1))
    _histograms(report, _measured_values(measured), thresholds)
    for rule, found in sorted(shown.items()):
        report.gallery(f"Rule {rule}", _gallery(list(found.values())))
    return report.save(path)


def _by_whole_numbers(counts: Counter[tuple[str, str, str]]) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for (rule, method, label), n in counts.items():
        found[rule, method, f"{float(label):.0f}"] += n
    return found


def _measured_values(measured: list[Path]) -> dict[str, dict[str, list[float]]]:
    """Measurements by metric and by image: "source", "target" or the name of a method."""
    values: dict[str, dict[str, list[float]]] = {metric: {} for metric in METRICS}
    for path in measured:
        for record in read_parquet(path, 1024, ("image", *METRICS)):
            for metric in METRICS:
                if record[metric] is None:
                    continue
                series = values[metric].setdefault(record["image"], [])
                if len(series) < MOST_VALUES:
                    series.append(record[metric])
    return values


def _table(counts: Counter[tuple[str, str, str]], by: int) -> dict[str, dict[str, float]]:
    """Table with a row for each rule (`by` 0) or method (1) and a column for each label."""
    labels = sorted({label for _, _, label in counts}, key=float)
    table: dict[str, dict[str, float]] = {}
    for key, n in counts.items():
        if key[by]:
            row = table.setdefault(key[by], dict.fromkeys(labels, 0))
            row[key[2]] += n
    return dict(sorted(table.items()))


def _histograms(report: Report, values: dict[str, dict[str, list[float]]], thresholds: Thresholds) -> None:
    """Adds a histogram of each metric, by method, with the thresholds marked."""
    limits = dict(zip(METRICS, (thresholds.clip_d, *thresholds.similarity), strict=True))
    for metric, series in values.items():
        if series:
            low = min(map(min, series.values()))
            high = max(map(max, series.values()))
            marks = {f"threshold {limits[metric]:.3g}": limits[metric]}
            report.histogram(
                metric, series, min(low, limits[metric]), max(high, low + 1e-6), x=metric, marks=marks
            )


def _gallery(places: list[tuple[Path, str]]) -> Gallery:
    """Source and edited image of rows, given by shard and id."""
    gallery = Gallery(["source", "edited"])
    for shard, name in places:
        record = _read_row(shard, name)
        source = load_image(io.BytesIO(record["source"]))
        edited = load_image(io.BytesIO(record["edited"]))
        through = ", through the autoencoder" if record["reconstructed"] else ""
        caption = f"{record['method'] or 'of the data set'}{through}"
        known = [metric for metric in METRICS if record[metric] is not None]
        metrics = ", ".join(f"{metric} {record[metric]:.3g}" for metric in known)

        title = f"{record['instruction']} → {record['label']:.3g}"
        gallery.row(title, [(source, record["id"]), (edited, f"{caption} {metrics}".strip())])
    return gallery


def _read_row(shard: Path, name: str) -> dict[str, Any]:
    """Reads the row with this id."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    return pq.read_table(shard, filters=pc.field("id") == name).to_pylist()[0]
