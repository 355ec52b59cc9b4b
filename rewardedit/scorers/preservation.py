"""How much of the source an edit keeps, pixel by pixel."""

from rewardedit.batch import EditBatch, Scores
from rewardedit.scorers.base import Prepared, Scorer


class L1(Scorer):
    """1 − mean |edited − source|, in [0, 1]; 1 for an untouched source. MagicBrush's L1 as a score."""

    range = (0.0, 1.0)
    differentiable = True

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        return Scores.make(1 - (batch.edited - batch.source).abs().flatten(1).mean(1))
