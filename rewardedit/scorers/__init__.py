"""Scorers: one file per family, one contract (`base.py`), their names (`load.py`)."""

from rewardedit.scorers.base import FunctionScorer, Scorer, WeightedSum, scorer
from rewardedit.scorers.load import load_scorer

__all__ = ["FunctionScorer", "Scorer", "WeightedSum", "load_scorer", "scorer"]
