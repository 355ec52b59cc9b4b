"""The offline world of shapes: rendered scenes, instructions, exact ground truth, and the oracle."""

from rewardedit.shapes.corruptions import CORRUPTION_KINDS, DEFAULT_MIX, corrupt_targets
from rewardedit.shapes.oracle import ShapesOracle
from rewardedit.shapes.rows import ShapesRows
from rewardedit.shapes.sequences import ShapesSequence, sequence
from rewardedit.shapes.vocabulary import BACKDROPS, EDIT_TYPES, WORLD_VERSION
from rewardedit.shapes.world import Shapes, ShapesBatch, join

__all__ = [
    "BACKDROPS",
    "CORRUPTION_KINDS",
    "DEFAULT_MIX",
    "EDIT_TYPES",
    "WORLD_VERSION",
    "Shapes",
    "ShapesBatch",
    "ShapesOracle",
    "ShapesRows",
    "ShapesSequence",
    "corrupt_targets",
    "join",
    "sequence",
]
