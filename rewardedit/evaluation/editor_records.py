"""Records of scores of several editors' edits as the numbers that `compare_editors` takes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewardedit.evaluation.editors import EditorScores

Record = Mapping[str, Any]
KINDS = ("edit_type", "kind")  # columns with the kind of edit


@dataclass(frozen=True)
class Requests:
    """n requests and their scores by several editors."""

    ids: list[str]
    names: list[str]
    instructions: list[str]
    scores: EditorScores


def requests_of(records: Iterable[Record], kind: str | None = None) -> Requests:
    """The requests in order of their first record, with scores of all editors by all scorers.

    Args:
        records: of rows of `EditorRows`, as `rewardedit.scoring` makes them.
        kind: the column with the kind of edit; None: the first of `KINDS` that there is.
    """
    rows: dict[str, dict[str, str]] = {}
    values: dict[tuple[str, str, str], float] = {}  # by scorer, editor and request
    for record in records:
        details = record["row"]
        row = rows.setdefault(details["request"], {"name": details["name"], "source": details["source_id"]})
        if record["instruction"]:
            row.setdefault("instruction", record["instruction"])
        for column in KINDS if kind is None else (kind,):
            if details.get(column):
                row.setdefault("kind", details[column])
        score = record["score"] if record["valid"] else float("nan")
        values[record["scorer"], details["editor"], details["request"]] = score

    scorers = list(dict.fromkeys(scorer for scorer, _, _ in values))
    editors = list(dict.fromkeys(editor for _, editor, _ in values))
    shape = (len(rows), len(editors))
    scores = {scorer: np.full(shape, np.nan) for scorer in scorers}
    made = np.zeros(shape, dtype=bool)
    number = {request: i for i, request in enumerate(rows)}
    for (scorer, editor, request), score in values.items():
        place = (number[request], editors.index(editor))
        scores[scorer][place] = score
        made[place] = True

    kinds = [row.get("kind", "") for row in rows.values()]
    sources = [row["source"] for row in rows.values()]
    given = EditorScores(editors, scores, made, sources, kinds if any(kinds) else ())
    names = [row["name"] for row in rows.values()]
    instructions = [row.get("instruction", "") for row in rows.values()]
    return Requests(list(rows), names, instructions, given)
