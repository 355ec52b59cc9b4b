"""Labelled edits from sequences of edits (ADIEE Sec. 3.2, Eq. 4)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rewardedit.data.sequences import EditSequence
from rewardedit.instructions import join_instructions
from rewardedit.synthesis.label_rules import FAILED, PARTLY, RIGHT


@dataclass(frozen=True)
class TurnEdit:
    """A choice of three images of a sequence, by their positions in it; 0 is the first image."""

    source: int
    target: int  # the image that the joined instructions from `source` on ask for
    edited: int  # the image that is labelled
    label: float


def turn_label(source: int, target: int, edited: int) -> float:
    """Label by Eq. 4, times 10: share of the turns from `source` to `target` that the image `edited` shows.

    No turn (the source, or an earlier image): 0. Some turns: their share. All turns: 10. All turns and
    further ones that were not requested: 5.

    Raises:
        ValueError: if the target does not come after the source.
    """
    if not 0 <= source < target:
        raise ValueError(f"expected a target after its source; got images {source} and {target}")
    if edited <= source:
        return FAILED
    if edited < target:
        return 10 * (edited - source) / (target - source)
    return RIGHT if edited == target else PARTLY


def turn_rule(source: int, target: int, edited: int) -> str:
    """Name of the case of Eq. 4 that gives the label."""
    if edited <= source:
        return "turns_none"
    if edited < target:
        return "turns_some"
    return "turns_all" if edited == target else "turns_too_many"


def turn_edits(turns: int) -> Iterator[TurnEdit]:
    """All choices of source, target and edited image in a sequence with the given number of turns.

    n turns have n + 1 images, n (n + 1) / 2 pairs of source and target, and n + 1 edited images per pair.
    """
    for source in range(turns):
        for target in range(source + 1, turns + 1):
            for edited in range(turns + 1):
                yield TurnEdit(source, target, edited, turn_label(source, target, edited))


def chosen_edits(turns: int, which: Literal["one", "all"], draw: float) -> list[TurnEdit]:
    """Choices of a sequence that become rows: all, or one, chosen by a draw in [0, 1). ADIEE takes one per
    sequence, so that outputs of methods and sequences are 81 : 19 (Sec. 4.1). All choices of five turns are
    ninety rows of six images.
    """
    choices = list(turn_edits(turns))
    return choices if which == "all" else [choices[int(draw * len(choices))]]


def later_turns(sequence: EditSequence) -> Iterator[tuple[int, int]]:
    """All pairs of a turn and a later turn with another instruction, which the first one's edit ignores."""
    texts = sequence.instructions
    for turn, text in enumerate(texts):
        yield from ((turn, later) for later in range(turn + 1, len(texts)) if texts[later] != text)


def joined_instruction(sequence: EditSequence, edit: TurnEdit) -> str:
    """Joins the instructions from the edit's source to its target, in order."""
    return join_instructions(sequence.instructions[edit.source : edit.target])
