"""Guard against regressions: scores of edits beside those of an earlier version on the same requests."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rewardedit.evaluation.editors import holm
from rewardedit.evaluation.statistics import Estimate, clustered_means
from rewardedit.scoring import as_record

Record = Mapping[str, Any]
Values = dict[tuple[str, str], dict[str, tuple[float, str]]]  # score and source by scorer, editor and request
LEVEL = 0.05  # two-sided: one in 40 comparisons of equal versions is called a drop by chance
MOST_LOST = 0.05  # share of the baseline's valid scores that may be missing now
COLUMNS = ("scorer", "score", "valid", "row")


@dataclass(frozen=True)
class Change:
    """The change of an editor's mean by one scorer, over the requests that have a valid score in both."""

    scorer: str
    editor: str
    change: Estimate  # now − baseline
    allowed: float  # greatest drop
    # p-value of a drop as great as allowed, corrected by Holm over all changes; None: no interval
    p: float | None
    lost: int  # valid scores of the baseline without one now
    before: int  # valid scores of the baseline

    @property
    def failure(self) -> str:
        """The reason why the guard fails; empty if it does not."""
        if self.lost > MOST_LOST * self.before:
            return f"{self.lost} of {self.before} scores of the baseline are missing or invalid now"
        if self.change.value < -self.allowed and self.p is not None and self.p <= LEVEL:
            return f"fell by more than {self.allowed:g}"
        return ""


def changes(
    now: Iterable[Record],
    baseline: Iterable[Record],
    max_drop: float,
    max_drops: Mapping[str, float] | None = None,
    seed: int = 0,
) -> list[Change]:
    """The changes of all editors of the baseline by the scorers that both have (see `not_compared`); a single
    editor on both sides is the same one, whatever its name.

    A mean fell by more than allowed if the change lies below −max_drop with its whole 95 % interval over
    source images; of several editors and scorers, after Holm's correction of the p-values.

    Args:
        max_drop: greatest drop of a mean, in the scorer's own units, at least 0.
        max_drops: those of single scorers, by name.

    Raises:
        ValueError: if there is no editor, scorer or request that both have, or an editor of the baseline is
            missing.
    """
    current = _values(now)
    earlier = _values(baseline)
    _unify_single(current, earlier)
    both = [key for key in current if key in earlier]
    if not both:
        raise ValueError(
            f"--against: expected scores of the same editors and scorers; got {_named(earlier)} in the "
            f"baseline and {_named(current)} now"
        )

    scorers = {scorer for scorer, _ in current}
    missing = {key: scores for key, scores in earlier.items() if key[0] in scorers and key not in current}
    if missing:
        raise ValueError(
            f"--against: expected scores of all editors of the baseline; got none of {_named(missing)}; add "
            "their edits, or make the baseline anew"
        )

    results = []
    for scorer, editor in both:
        allowed = (max_drops or {}).get(scorer, max_drop)
        results.append(
            _change(scorer, editor, current[scorer, editor], earlier[scorer, editor], allowed, seed)
        )

    corrected = holm([change.p for change in results])
    return [replace(change, p=p) for change, p in zip(results, corrected, strict=True)]


def not_compared(now: Iterable[Record], baseline: Iterable[Record]) -> list[str]:
    """The baseline's scorers by which there is no score now."""
    scorers = {record["scorer"] for record in now}
    earlier = dict.fromkeys(record["scorer"] for record in baseline)
    return [name for name in earlier if name not in scorers]


def _values(records: Iterable[Record]) -> Values:
    values: Values = {}
    for record in records:
        details = record["row"]
        score = record["score"] if record["valid"] else float("nan")
        by_edit = values.setdefault((record["scorer"], details["editor"]), {})
        by_edit[details["request"]] = (score, details["source_id"])
    return values


def _unify_single(values: Values, earlier: Values) -> None:
    """Names the only editor of the baseline as the only one now."""
    names = {editor for _, editor in values}
    before = {editor for _, editor in earlier}
    if len(names) == len(before) == 1:
        name = names.pop()
        for scorer, editor in list(earlier):
            earlier[scorer, name] = earlier.pop((scorer, editor))


def _change(
    scorer: str,
    editor: str,
    now: Mapping[str, tuple[float, str]],
    before: Mapping[str, tuple[float, str]],
    allowed: float,
    seed: int,
) -> Change:
    nothing = (float("nan"), "")
    valid = [request for request, (score, _) in before.items() if np.isfinite(score)]
    differences = np.array([now.get(request, nothing)[0] - before[request][0] for request in valid])
    sources = [before[request][1] for request in valid]
    if not np.isfinite(differences).any():
        raise ValueError(
            f"--against: {editor}, {scorer}: no request has a valid score in both; the baseline is of other "
            "source images or instructions"
        )
    change, beyond = clustered_means(np.stack([differences, differences + allowed], 1), sources, seed=seed)
    lost = int(np.isnan(differences).sum())
    return Change(scorer, editor, change, allowed, beyond.p, lost, len(valid))


def _named(values: Values) -> str:
    return ", ".join(f"{editor} by {scorer}" for scorer, editor in values) or "none"


def read_baseline(path: Path) -> list[Record]:
    """The records of a scores.parquet of `rewardedit compare`.

    Raises:
        ValueError: if it is no such file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise ValueError(f"--against {path}: no such file")
    try:
        rows = pq.read_table(path, columns=list(COLUMNS)).to_pylist()
        records = list(map(as_record, rows))
        is_of_compare = all(isinstance(record.get("row"), dict) for record in records)
        is_of_compare = is_of_compare and all("request" in record["row"] for record in records)
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"--against {path}: expected the scores.parquet of a comparison ({error})"
        ) from error
    if not records or not is_of_compare:
        raise ValueError(
            f"--against {path}: expected the scores.parquet of rewardedit compare --out; got another table"
        )
    return records
