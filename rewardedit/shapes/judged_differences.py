"""Differences with a verdict: rows of DICE's coherence estimator in the shapes world, and whole edits.

A difference is coherent if the instruction's own result has the same one, and no unrequested difference
overlaps its box. Half of the rows are coherent. The incoherent ones are unrequested changes beside the right
edit, the right edit of a wrong object, in a wrong colour, or of another instruction.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rewardedit.data.difference_rows import DifferenceRow
from rewardedit.diffusion.editors import Editor
from rewardedit.regions.differences import Difference
from rewardedit.shapes.corruptions import over_done, right, wrong_colour, wrong_object
from rewardedit.shapes.differences import Change, drifted, load_traces_editor, scene_changes
from rewardedit.shapes.world import BLOCK, Shapes, ShapesBatch
from rewardedit.stages.lazy import Lazy

EACH = 100  # rows of each verdict in a block of samples
DRIFT, TRACES = 0.25, 0.15  # shares of edited images with drift or traces
MAKERS = (right, right, over_done, over_done, wrong_object, wrong_colour)  # of successive samples
OTHER = 1 / 6  # share of right edits that are judged against another sample's instruction
OBJECT_WORDS = {"ADD": "to add", "REMOVE": "to remove", "EDIT": "to change"}


def verdicts(changes: list[Change], wanted: list[Change]) -> list[bool]:
    """True for each change of an edit that its instruction asked for: the wanted ones hold the same, and no
    other change that is not among them overlaps its box.
    """
    asked = {(change.place, change.after) for change in wanted}
    requested = [(change.place, change.after) in asked for change in changes]
    unasked = [change.difference for change, is_asked in zip(changes, requested, strict=True) if not is_asked]
    coherent = []
    for change, is_asked in zip(changes, requested, strict=True):
        overlaps = any(overlap(change.difference, other) for other in unasked)
        coherent.append(is_asked and not overlaps)
    return coherent


def overlap(one: Difference, other: Difference) -> bool:
    """True if two boxes share any area."""
    (a0, b0, a1, b1), (c0, d0, c1, d1) = one.box, other.box
    return min(a1, c1) > max(a0, c0) and min(b1, d1) > max(b0, d0)


def reason_of(difference: Difference, coherent: bool) -> str:
    """The reason for a verdict, in a sentence."""
    asked = "the instruction asks" if coherent else "nobody asked"
    return f"{asked} {OBJECT_WORDS[difference.command]} the {difference.subject}."


class JudgedEdit(NamedTuple):
    """An edit with all of its changes, and True for each that its instruction asked for."""

    id: str
    source: Tensor
    edited: Tensor
    instruction: str
    changes: list[Change]
    verdicts: list[bool]


class JudgedDifferences(Sequence):
    """n rows of one difference each, coherent and incoherent ones in turn."""

    def __init__(self, n: int, world: Shapes, first: int = 0) -> None:
        self.n = n
        self.world = world
        self.first = first
        self.editor = Lazy(load_traces_editor)
        self._block = lru_cache(maxsize=4)(self._make)

    def __getstate__(self) -> dict:
        return {name: value for name, value in vars(self).items() if name != "_block"}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self._block = lru_cache(maxsize=4)(self._make)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> DifferenceRow:  # type: ignore[override]
        if not 0 <= index < self.n:
            raise IndexError(index)
        block, at = divmod(self.first + index, 2 * EACH)
        return self._block(block)[at]

    def edits(self, block: int) -> list[JudgedEdit]:
        """The edits of a block, from whose changes its rows are drawn."""
        return self._judged(block, self._rng(block))

    def _rng(self, block: int) -> np.random.Generator:
        return self.world.rng(block, 0, 0, 4)

    def _make(self, block: int) -> list[DifferenceRow]:
        rng = self._rng(block)
        edits = self._judged(block, rng)
        judged: dict[bool, list[DifferenceRow]] = {True: [], False: []}
        for i in rng.permutation(BLOCK):
            edit = edits[i]
            for verdict, rows in judged.items():
                fit = [
                    change
                    for change, change_verdict in zip(edit.changes, edit.verdicts, strict=True)
                    if change_verdict == verdict
                ]
                if fit and len(rows) < EACH:
                    chosen = fit[int(rng.integers(len(fit)))].difference
                    reason = reason_of(chosen, verdict)
                    name = f"{edit.id}-{'yes' if verdict else 'no'}"
                    pair = edit.source, edit.edited
                    rows.append(DifferenceRow(name, *pair, (chosen,), edit.instruction, verdict, reason))
                    break
        assert min(map(len, judged.values())) == EACH, "a block of samples has too few rows of one verdict"
        return list(chain.from_iterable(zip(*judged.values(), strict=True)))

    def _judged(self, block: int, rng: np.random.Generator) -> list[JudgedEdit]:
        samples = self.world.batch(block * BLOCK, BLOCK)
        images, changes, instructions = self._edits(samples, rng)
        wanted = scene_changes(samples.before, samples.after)
        edits = []
        for i, instruction in enumerate(instructions):
            asked = wanted[i] if instruction == samples.instruction[i] else []
            pair = samples.source[i], images[i]
            coherent = verdicts(changes[i], asked)
            edits.append(JudgedEdit(samples.id[i], *pair, instruction, changes[i], coherent))
        return edits

    def _edits(
        self, samples: ShapesBatch, rng: np.random.Generator
    ) -> tuple[Tensor, list[list[Change]], list[str]]:
        """Edited images, their changes, and the instructions that they are judged against."""
        maker = rng.integers(len(MAKERS), size=BLOCK)
        images = samples.source.clone()
        changes: list[list[Change]] = [[] for _ in range(BLOCK)]
        for number, make in enumerate(dict.fromkeys(MAKERS)):
            rows = np.flatnonzero([MAKERS[chosen] is make for chosen in maker])
            edits = make(samples, rng)
            assert edits.scenes is not None, number
            edit_changes = scene_changes(samples.before, edits.scenes)
            images[rows] = edits.images[rows]
            for row in rows:
                changes[row] = edit_changes[row]

        instructions = list(samples.instruction)
        for row in np.flatnonzero(rng.random(BLOCK) < OTHER):
            other = instructions[(row + 1) % BLOCK]  # of another scene, but of similar objects
            if MAKERS[maker[row]] is right and other != samples.instruction[row]:
                instructions[row] = other
        fate = rng.random(BLOCK)
        images[fate < DRIFT] = drifted(images[fate < DRIFT], rng)
        traced = torch.from_numpy((fate >= DRIFT) & (fate < DRIFT + TRACES))
        editor: Editor = self.editor()
        images[traced] = editor.family.reconstruct(editor.pipe, images[traced])
        return images, changes, instructions
