"""Labelled edits from sequences of edits (ADIEE Sec. 3.2, Eq. 4)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rewardedit.data.sequences import EditSequence
from rewardedit.instructions import join_instructions
from rewardedit.synthesis.label_rules import FAILED, PARTLY, RIGHT


@dataclass(frozen=True)
class TurnEdit:
    """One choice of three images of a sequence, by their places in it: 0 is the image that it begins with."""

    source: int
    target: int  # what the joined instructions between `source` and `target` ask for
    edited: int  # the image that is labelled
    label: float


def turn_label(source: int, target: int, edited: int) -> float:
    """Eq. 4, times 10: how much of what leads from `source` to `target` the image `edited` has.

    Nothing of it (the source, or an image before it): 0. A share of the turns: that share. All of it: 10.
    All of it and further turns that nobody asked for: 5.

    Raises:
        ValueError: where the target does not come after the source.
    """
    if not 0 <= source < target:
        raise ValueError(f"expected a target after its source; got images {source} and {target}")
    if edited <= source:
        return FAILED
    if edited < target:
        return 10 * (edited - source) / (target - source)
    return RIGHT if edited == target else PARTLY


def turn_rule(source: int, target: int, edited: int) -> str:
    """The case of Eq. 4 that gives the label, by name."""
    if edited <= source:
        return "turns_none"
    if edited < target:
        return "turns_some"
    return "turns_all" if edited == target else "turns_too_many"


def turn_edits(turns: int) -> Iterator[TurnEdit]:
    """All choices of source, target and edited image in a sequence of so many turns.

    n turns have n + 1 images, n (n + 1) / 2 pairs of source and target, and as many edits for each as images.
    """
    for source in range(turns):
        for target in range(source + 1, turns + 1):
            for edited in range(turns + 1):
                yield TurnEdit(source, target, edited, turn_label(source, target, edited))


def chosen_edits(turns: int, which: Literal["one", "all"], draw: float) -> list[TurnEdit]:
    """The choices that a sequence gives rows of: all, or the one at a draw in [0, 1), as ADIEE takes one a
    sequence, of which 81 : 19 outputs of methods follow (Sec. 4.1). All of five turns are ninety rows of six
    images.
    """
    choices = list(turn_edits(turns))
    return choices if which == "all" else [choices[int(draw * len(choices))]]


def later_turns(sequence: EditSequence) -> Iterator[tuple[int, int]]:
    """All pairs of a turn and a later one with another instruction, which the turn's edit does not follow."""
    texts = sequence.instructions
    for turn, text in enumerate(texts):
        yield from ((turn, later) for later in range(turn + 1, len(texts)) if texts[later] != text)


def joined_instruction(sequence: EditSequence, edit: TurnEdit) -> str:
    """The instructions from the edit's source to its target, in order."""
    return join_instructions(sequence.instructions[edit.source : edit.target])
