"""Mean scores of a table or of folders, one line each, with intervals over source images."""

from collections.abc import Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from rewardedit.evaluation.statistics import Comparison, paired_bootstrap

Record = dict[str, Any]


def summarise(records: Sequence[Record], by_folder: bool) -> list[str]:
    """One line per scorer (and folder): the mean of valid scores, its 95 % interval, how many are valid;
    for two folders also the difference, over the sources for which both have a valid edit.

    Source images are drawn with replacement; if a data set does not name them there is no interval.

    Args:
        records: as `rewardedit.scoring` makes them.
    """
    lines = []
    for scorer in dict.fromkeys(record["scorer"] for record in records):
        scored = [record for record in records if record["scorer"] == scorer]
        groups: dict[str, list[Record]] = {}
        for record in scored:
            groups.setdefault(record["row"]["folder"] if by_folder else "all", []).append(record)
        for name, group in groups.items():
            lines.append(f"{name}  {scorer}  {_mean(group)}")
        if by_folder and len(groups) == 2:
            (first, a), (second, b) = groups.items()
            lines.append(f"{first} − {second}  {scorer}  {_difference(a, b)}")
    return lines


def _by_source(records: Sequence[Record]) -> dict[str, list[float]] | None:
    """Valid scores by source image; None if a row names none."""
    scores: dict[str, list[float]] = {}
    for record in records:
        source = record.get("row", {}).get("source")
        if source is None:
            return None
        if record["valid"]:
            scores.setdefault(source, []).append(record["score"])
    return scores


def _mean(records: Sequence[Record]) -> str:
    scores = [record["score"] for record in records if record["valid"]]
    counted = f"{len(scores)} of {len(records)} valid"
    if not scores:
        return counted
    sources = _by_source(records)
    if sources is None or len(sources) < 2:
        return f"mean {sum(scores) / len(scores):.4f}; {counted}"
    names: list[str] = []
    for name, values in sources.items():
        names += [name] * len(values)
    scores = list(chain.from_iterable(sources.values()))
    mean = paired_bootstrap(scores, [0.0] * len(scores), names)
    return f"mean {mean.mean_a:.4f} {_interval(mean, '.4f')}; {counted}"


def _difference(a: Sequence[Record], b: Sequence[Record]) -> str:
    of_a = _by_source(a) or {}
    of_b = _by_source(b) or {}
    shared = [source for source in of_a if source in of_b]
    if len(shared) < 2:
        return f"no difference: {len(shared)} sources have a valid edit in both"
    means_a = [fmean(of_a[source]) for source in shared]
    means_b = [fmean(of_b[source]) for source in shared]
    difference = paired_bootstrap(means_a, means_b, shared)
    return f"mean difference {difference.difference:+.4f} {_interval(difference, '+.4f')}"


def _interval(estimate: Comparison, form: str) -> str:
    low, high = estimate.ci95
    return f"[{low:{form}}, {high:{form}}] (95 %, {estimate.clusters} source images)"
