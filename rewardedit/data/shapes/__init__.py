"""The offline world: rendered scenes, instructions about them, exact truth, and the judge that knows it."""

from rewardedit.data.shapes.mixed_quality import MIXED, QUALITIES, candidates
from rewardedit.data.shapes.oracle import Rating, ShapesOracle
from rewardedit.data.shapes.rows import ShapesRows
from rewardedit.data.shapes.sequences import ShapesSequence, sequence
from rewardedit.data.shapes.vocabulary import BACKDROPS, EDIT_TYPES, WORLD_VERSION
from rewardedit.data.shapes.world import Shapes, ShapesBatch, join

__all__ = [
    "BACKDROPS",
    "EDIT_TYPES",
    "MIXED",
    "QUALITIES",
    "WORLD_VERSION",
    "Rating",
    "Shapes",
    "ShapesBatch",
    "ShapesOracle",
    "ShapesRows",
    "ShapesSequence",
    "candidates",
    "join",
    "sequence",
]
