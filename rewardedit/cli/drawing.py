"""Drawings of one edit as a scorer sees it: what BPM or DICE found in it, or a heat map."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rewardedit.batch import EditBatch, Scores
from rewardedit.prepared import Prepared
from rewardedit.reports.explain import explain, require_explained
from rewardedit.scorer_spec import ScorerSpec, all_terms
from rewardedit.scorers.base import Scorer

EXPLAINED = ("bpm", "dice")  # scorers whose view of an edit can be explained
EXPLAIN = "--explain"
HEATMAP = "--heatmap"


def drawable(specs: Mapping[str, ScorerSpec]) -> tuple[str, ScorerSpec, str] | None:
    """The first scorer whose view of an edit can be drawn: its option of `rewardedit score`, the scorer, and
    a title.
    """
    from rewardedit.scorers.load import find_scorer

    for spec in specs.values():
        names = [name for name, _ in all_terms(spec)]
        if len(names) == 1 and names[0] in EXPLAINED:
            return EXPLAIN, spec, f"what {names[0]} found"
        if all(find_scorer(name).differentiable for name in names):
            return HEATMAP, spec, "heat map"
    return None


class Explained(Scorer):
    """BPM or DICE, which writes the explanation of the edit that it scores: no model runs twice.

    Raises:
        ValueError: for another scorer.
    """

    def __init__(self, scorer: Scorer, path: Path) -> None:
        super().__init__()
        require_explained(scorer)
        self.scorer = scorer
        self.path = path

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        explanation = explain(self.scorer, batch)
        explanation.save(self.path)
        print(f"explanation: {self.path}", file=sys.stderr)
        return explanation.scores


def write_heatmap(batch: Any, scorers: dict[str, Any], path: Path) -> None:
    """Writes source, edit and heat map of one scorer side by side."""
    from rewardedit.reports.heatmap import heat_map, side_by_side
    from rewardedit.scoring import score_batch

    ((name, scores),) = score_batch(batch, scorers).items()
    score = float(scores.score[0]) if scores.valid[0] else None
    side_by_side(batch, heat_map(scorers[name], batch), name, score).save(path)
    print(
        f"heat map: {path} (source, edit, heat; green: this change raised the score, red: it lowered it)",
        file=sys.stderr,
    )
