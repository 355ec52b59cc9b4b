"""Interface of the shapes world to the rest of the package."""

from collections.abc import Sequence

from rewardedit.config import require_unset
from rewardedit.data.datasets import DataConfig
from rewardedit.data.difference_rows import DifferenceRow
from rewardedit.data.worlds import World, WorldConfig
from rewardedit.shapes.corruptions import DEFAULT_MIX
from rewardedit.shapes.differences import DEFAULT_PAIRS, ShapesDifferences
from rewardedit.shapes.judged_differences import JudgedDifferences
from rewardedit.shapes.oracle import ShapesOracle
from rewardedit.shapes.rows import ShapesRows
from rewardedit.shapes.sequences import ShapesSequences
from rewardedit.shapes.vocabulary import EDIT_TYPES, SIZE, WORLD_VERSION
from rewardedit.shapes.world import Shapes, ShapesBatch


def open_rows(data: DataConfig) -> ShapesRows:
    """The rows that a recipe's `data:` names."""
    settings = data.shapes or WorldConfig()
    return ShapesRows(
        data.limit or 10_000,
        data.split,
        settings.seed,
        settings.backdrops,
        data.edit_types or EDIT_TYPES,
        shares=dict(settings.quality_mix or DEFAULT_MIX),
        first=data.offset,
        draws=settings.edits_per_source,
    )


def open_differences(data: DataConfig, judged: bool) -> Sequence[DifferenceRow]:
    """The pairs that a recipe's `data:` names, or single differences with a verdict; `quality_mix` holds the
    shares of kinds of pairs.

    Raises:
        ValueError: on a setting that has no effect on them.
    """
    settings = data.shapes or WorldConfig()
    require_unset(settings, ("edits_per_source",), "on differences; leave it out")
    if data.size != SIZE:
        raise ValueError(f"size: has no effect on differences, whose images have {SIZE} pixels; leave it out")
    if judged and settings.quality_mix != DEFAULT_MIX:
        raise ValueError("quality_mix: has no effect on judged differences; leave it out")
    world = Shapes(data.split, settings.seed, settings.backdrops)
    count = data.limit or 10_000
    if judged:
        return JudgedDifferences(count, world, data.offset)
    mix = settings.quality_mix
    return ShapesDifferences(count, world, dict(DEFAULT_PAIRS if mix == DEFAULT_MIX else mix), data.offset)


def samples(split: str, seed: int, backdrops: tuple[str, ...], first: int, n: int) -> ShapesBatch:
    """Samples `first` to `first + n - 1`.

    Raises:
        ValueError: on an unknown split or backdrop.
    """
    return Shapes(split, seed, backdrops).batch(first, n)


CLIP = {"checkpoint": "shapes/clip"}
DICE = {"checkpoint": "shapes/dice"}
SCORERS = {
    "clip_d": CLIP,
    "clip_t": CLIP,
    "clip_i": CLIP,
    "vifi_clip": {"checkpoint": "shapes/vifi-clip"},
    "bpm": {"checkpoint": "shapes/detector"},
    "adiee": {"checkpoint": "shapes/adiee"},
    "dice": DICE,
    "dice_clip_i": {**CLIP, "dice": DICE},
    "dice_clip_t": {**CLIP, "dice": DICE},
    "vlm_judge": {"checkpoint": "shapes/vlm"},
}

WORLD = World(
    version=WORLD_VERSION,
    size=SIZE,
    quality_mix=dict(DEFAULT_MIX),
    scorers=SCORERS,
    judge="adiee",
    editor="shapes/editor",
    open_rows=open_rows,
    open_sequences=ShapesSequences,
    open_differences=open_differences,
    samples=samples,
    rate=ShapesOracle().rate,
)
