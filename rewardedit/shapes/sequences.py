"""Multi-turn edits of the shapes world: several consecutive instructions, and all of them joined into one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from rewardedit.data.sequences import FEWEST_TURNS, EditSequence, SequencesConfig
from rewardedit.data.worlds import WorldConfig
from rewardedit.instructions import join_instructions
from rewardedit.shapes.scenes import CELLS, Scenes
from rewardedit.shapes.vocabulary import EDIT_TYPES
from rewardedit.shapes.world import Shapes, ShapesBatch, join, make_batch

TURNS = (2, 4)  # fewest and most turns of a sequence
MOST_OBJECTS = 7  # most objects of a scene, so that its caption stays within 77 tokens


@dataclass(frozen=True)
class ShapesSequence:
    """One sequence of edits. No turn changes or refers to an object of an earlier turn, so that each turn is
    visible in the last image.
    """

    turns: ShapesBatch  # the source of each turn is the target of the turn before it

    def __len__(self) -> int:
        return len(self.turns)

    @property
    def id(self) -> str:
        return self.turns.id[0].rsplit("-", 1)[0]

    @property
    def instruction(self) -> str:
        """The turns' instructions in order: "add a red circle, then remove the blue star"."""
        return join_instructions(self.turns.instruction)

    @property
    def source(self) -> Float[Tensor, "3 64 64"]:
        return self.turns.source[0]

    @property
    def target(self) -> Float[Tensor, "3 64 64"]:
        return self.turns.target[-1]


def sequence(world: Shapes, index: int, turns: int) -> ShapesSequence:
    """Sequence `index` of a world, always the same.

    Raises:
        ValueError: on fewer than 2 or more than 4 turns, or if the world's kinds of edit do not suffice for
            so many.
    """
    if not TURNS[0] <= turns <= TURNS[1]:
        raise ValueError(f"turns: expected {TURNS[0]} to {TURNS[1]}; got {turns}")
    rng = world.rng(index, turns, 1)
    # Enough objects for every turn to use a different one.
    scene = world.scenes(rng, np.array([rng.integers(turns, 6)]))
    blocked = np.zeros((1, CELLS), dtype=bool)

    repainted = False
    steps = []
    for turn in range(turns):
        kinds = [k for k in world.kinds if _fits(k, scene, blocked, repainted)]
        if not kinds:
            raise ValueError(f"kinds: none of {', '.join(world.kinds)} fits turn {turn + 1} of {turns}")
        kind = kinds[rng.integers(len(kinds))]
        name = f"{world.split}-{world.seed}-sequence-{index}-{turn}"
        step = make_batch(rng, [name], scene, np.array([EDIT_TYPES.index(kind)]), world.wordings, blocked)
        repainted |= kind == "background"
        if kind != "background":
            touched = [step.edits.cell[0], step.edits.to_cell[0], step.edits.reference[0]]
            blocked[0, [cell for cell in touched if cell >= 0]] = True
        steps.append(step)
        scene = step.after

    return ShapesSequence(join(steps))


def _fits(kind: str, scene: Scenes, blocked: np.ndarray, repainted: bool) -> bool:
    """True if another edit of this kind can be made."""
    objects = int(scene.present.sum() + scene.has_inner.sum())
    if kind == "background":
        return not repainted
    free = (~scene.present & ~blocked).any()
    if kind == "add":
        return objects < MOST_OBJECTS and bool(free)
    editable = (scene.present & ~scene.has_inner & ~blocked).any()
    return bool(editable and (kind != "move" or free))


def turns_of(number: int, backdrops: int) -> int:
    """Number of turns of a sequence of the shapes world, from two to four, independent of its backdrop."""
    return FEWEST_TURNS + number // backdrops % 3


class ShapesSequences(Sequence):
    """Sequences of the shapes world, alternating between two, three and four turns."""

    def __init__(self, config: SequencesConfig) -> None:
        self.config = config
        settings = config.shapes or WorldConfig()
        self.worlds = [Shapes(config.split, settings.seed, (backdrop,)) for backdrop in settings.backdrops]

    def __len__(self) -> int:
        return self.config.limit or 1000

    def turns(self, index: int) -> int:
        return turns_of(self.config.offset + index, len(self.worlds))

    def __getitem__(self, index: int) -> EditSequence:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = self.config.offset + index
        world = self.worlds[number % len(self.worlds)]
        edit_sequence = sequence(world, number, turns_of(number, len(self.worlds)))
        turns = edit_sequence.turns
        return EditSequence(
            edit_sequence.id,
            (turns.source[0], *turns.target),
            tuple(turns.instruction),
            (turns.source_caption[0], *turns.target_caption),
        )
