"""Report page of labelled rows: counts by label, histograms of the measurements, examples."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

from rewardedit.images import load_image
from rewardedit.reports.charts import Drawing, histogram
from rewardedit.reports.report import Report
from rewardedit.reports.wall import Wall, WallEdit, WallImage
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
    report.panels("Measurements", _histograms(_measured_values(measured), thresholds))
    report.wall(
        "Examples", _wall({rule: list(by_source.values()) for rule, by_source in sorted(shown.items())})
    )
    return report.save(path)


def _by_whole_numbers(counts: Counter[tuple[str, str, str]]) -> Counter[tuple[str, str, str]]:
    rounded: Counter[tuple[str, str, str]] = Counter()
    for (rule, method, label), n in counts.items():
        rounded[rule, method, f"{float(label):.0f}"] += n
    return rounded


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


def _histograms(values: dict[str, dict[str, list[float]]], thresholds: Thresholds) -> list[Drawing | None]:
    """A histogram of each metric, by method, with the threshold marked."""
    limits = dict(zip(METRICS, (thresholds.clip_d, *thresholds.similarity), strict=True))
    drawings = []
    for metric, series in values.items():
        if series:
            low = min(map(min, series.values()))
            high = max(map(max, series.values()))
            limit = limits[metric]
            says = "Share of images, with 95 % intervals; the threshold is that of the rules."
            drawings.append(
                histogram(
                    metric,
                    series,
                    min(low, limit),
                    max(high, low + 1e-6),
                    says,
                    metric,
                    marks={f"threshold {limit:.3g}": limit},
                )
            )
    return drawings


def _wall(places: dict[str, list[tuple[Path, str]]]) -> Wall:
    """Source and edited image of examples, given by rule, shard and id."""
    wall = Wall(left="source", right="edited", kind_name="Rule", note="Each instruction with its label.")
    for rule, rows in places.items():
        for shard, name in rows:
            wall.add(_example(rule, _read_row(shard, name)))
    return wall


def _example(rule: str, record: dict[str, Any]) -> WallEdit:
    source, edited = (load_image(io.BytesIO(record[column])) for column in ("source", "edited"))
    through = ", through the autoencoder" if record["vae_roundtrip"] else ""
    method = f"{record['method'] or 'of the data set'}{through}"
    measured = [(metric, f"{record[metric]:.3g}") for metric in METRICS if record[metric] is not None]
    return WallEdit(
        record["instruction"],
        [WallImage("source", source), WallImage("edited", edited, note=method)],
        kind=rule,
        change=f"label {record['label']:.3g}",
        facts=[("row", record["id"]), ("method", method), *measured],
    )


def _read_row(shard: Path, name: str) -> dict[str, Any]:
    """Reads the row with this id."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    return pq.read_table(shard, filters=pc.field("id") == name).to_pylist()[0]
