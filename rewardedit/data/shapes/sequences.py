"""Multi-turn edits of the shapes world: several instructions in a row, and all of them joined into one."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from rewardedit.data.shapes.scenes import CELLS, Scenes
from rewardedit.data.shapes.vocabulary import EDIT_TYPES
from rewardedit.data.shapes.world import Shapes, ShapesBatch, join, make_batch
from rewardedit.instructions import join_instructions

TURNS = (2, 4)  # the fewest and the most of a sequence
MOST_OBJECTS = 7  # of a scene, so that its caption stays within 77 tokens


@dataclass(frozen=True)
class ShapesSequence:
    """One sequence of edits. No turn touches or refers to what an earlier one changed, so that each turn can
    be seen in the last image.
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
        ValueError: for fewer than 2 or more than 4 turns, or where the world's kinds of edit do not last for
            so many.
    """
    if not TURNS[0] <= turns <= TURNS[1]:
        raise ValueError(f"turns: expected {TURNS[0]} to {TURNS[1]}; got {turns}")
    rng = world.rng(index, turns, 1)
    # Enough objects for every turn to have one of its own.
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
    """Whether another edit of this kind can be made."""
    objects = int(scene.present.sum() + scene.has_inner.sum())
    if kind == "background":
        return not repainted
    free = (~scene.present & ~blocked).any()
    if kind == "add":
        return objects < MOST_OBJECTS and bool(free)
    editable = (scene.present & ~scene.has_inner & ~blocked).any()
    return bool(editable and (kind != "move" or free))
