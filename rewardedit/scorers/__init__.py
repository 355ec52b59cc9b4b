"""Scorers: one file per family, one contract (`base.py`)."""

from rewardedit.scorers.base import FunctionScorer, Prepared, Scorer, WeightedSum, load_scorer

__all__ = ["FunctionScorer", "Prepared", "Scorer", "WeightedSum", "load_scorer"]
