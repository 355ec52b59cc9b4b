"""The offline world of shapes: rendered scenes, instructions, exact ground truth, and the oracle."""

from rewardedit.shapes.mixed_quality import MIXED, QUALITIES, candidates
from rewardedit.shapes.oracle import ShapesOracle
from rewardedit.shapes.rows import ShapesRows
from rewardedit.shapes.sequences import ShapesSequence, sequence
from rewardedit.shapes.vocabulary import BACKDROPS, EDIT_TYPES, WORLD_VERSION
from rewardedit.shapes.world import Shapes, ShapesBatch, join

__all__ = [
    "BACKDROPS",
    "EDIT_TYPES",
    "MIXED",
    "QUALITIES",
    "WORLD_VERSION",
    "Shapes",
    "ShapesBatch",
    "ShapesOracle",
    "ShapesRows",
    "ShapesSequence",
    "candidates",
    "join",
    "sequence",
]
