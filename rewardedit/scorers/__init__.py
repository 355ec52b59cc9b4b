"""Scorers: one file per family, one contract (`base.py`), their names (`load.py`)."""

from rewardedit.scorers.base import FunctionScorer, Prepared, Scorer, WeightedSum
from rewardedit.scorers.load import load_scorer

__all__ = ["FunctionScorer", "Prepared", "Scorer", "WeightedSum", "load_scorer"]
