"""Mean scores of a table or of folders, one line each, with intervals over source images."""

from collections.abc import Sequence
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
        own = [record for record in records if record["scorer"] == scorer]
        groups: dict[str, list[Record]] = {}
        for record in own:
            groups.setdefault(record["row"]["folder"] if by_folder else "all", []).append(record)
        for name, group in groups.items():
            lines.append(f"{name}  {scorer}  {_mean(group)}")
        if by_folder and len(groups) == 2:
            (first, a), (second, b) = groups.items()
            lines.append(f"{first} − {second}  {scorer}  {_difference(a, b)}")
    return lines


def _by_source(records: Sequence[Record]) -> dict[str, list[float]] | None:
    """Valid scores by source image; None if a row names none."""
    found: dict[str, list[float]] = {}
    for record in records:
        source = record.get("row", {}).get("source")
        if source is None:
            return None
        if record["valid"]:
            found.setdefault(source, []).append(record["score"])
    return found


def _mean(records: Sequence[Record]) -> str:
    scores = [record["score"] for record in records if record["valid"]]
    counted = f"{len(scores)} of {len(records)} valid"
    if not scores:
        return counted
    sources = _by_source(records)
    if sources is None or len(sources) < 2:
        return f"mean {sum(scores) / len(scores):.4f}; {counted}"
    names = [name for name, values in sources.items() for _ in values]
    scores = [value for values in sources.values() for value in values]
    found = paired_bootstrap(scores, [0.0] * len(scores), names)
    return f"mean {found.mean_a:.4f} {_interval(found, '.4f')}; {counted}"


def _difference(a: Sequence[Record], b: Sequence[Record]) -> str:
    of_a = _by_source(a) or {}
    of_b = _by_source(b) or {}
    shared = [source for source in of_a if source in of_b]
    if len(shared) < 2:
        return f"no difference: {len(shared)} sources have a valid edit in both"
    values = [[sum(scores[source]) / len(scores[source]) for source in shared] for scores in (of_a, of_b)]
    found = paired_bootstrap(*values, shared)
    return f"mean difference {found.difference:+.4f} {_interval(found, '+.4f')}"


def _interval(found: Comparison, form: str) -> str:
    low, high = found.ci95
    return f"[{low:{form}}, {high:{form}}] (95 %, {found.clusters} source images)"
