"""Coherence of differences without a model: command and object are those of the parsed instruction."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from rewardedit.instructions.grammar.grammar import parse_all
from rewardedit.instructions.parsed import Parsed, ParsedEdit, Parser
from rewardedit.regions.change_detector import UNNAMED
from rewardedit.regions.differences import Command, Difference
from rewardedit.scorers.dice_vlm import Verdict

# Commands of the differences that each type of edit makes; EDIT for all others.
ALLOWED: dict[str, tuple[Command, ...]] = {
    "add": ("ADD",),
    "remove": ("REMOVE",),
    "move": ("REMOVE", "ADD"),
}


class CoherenceRules:
    """Judges a difference to be coherent if the instruction asks for its command and names its object.

    Names agree if all words of one are in the other, as "dog" and "brown dog". A difference without a name
    is judged by its command alone, and so is every EDIT if the whole image is to change. An instruction that
    the parser cannot read leaves the judgement open.
    """

    def __init__(self, parser: Parser = parse_all) -> None:
        self.parser = parser

    def judge(
        self,
        source: Float[Tensor, "3 h w"],
        edited: Float[Tensor, "3 h w"],
        instruction: str,
        differences: Sequence[Difference],
    ) -> list[Verdict]:
        """Judges each difference of one edit; the images are not looked at."""
        (parsed,) = self.parser([instruction])
        return [_verdict(parsed, difference) for difference in differences]


def _verdict(parsed: Parsed, difference: Difference) -> Verdict:
    if not isinstance(parsed, ParsedEdit):
        return Verdict(None, float("nan"), parsed.reason)
    allowed = ALLOWED.get(parsed.edit_type, ("EDIT",))
    if difference.command not in allowed:
        return _no(f"the instruction asks for {' and '.join(allowed)}, not for {difference.command}")
    names = [name for name in (parsed.source, parsed.target) if name]
    if parsed.is_global or difference.subject == UNNAMED or not names:
        return Verdict(True, 1.0, f"the instruction asks for {difference.command}")
    if any(_agree(difference.subject, name) for name in names):
        return Verdict(True, 1.0, f"the instruction asks for {difference.command} of {difference.subject}")
    return _no(f"the instruction names {' and '.join(names)}, not {difference.subject}")


def _no(reason: str) -> Verdict:
    return Verdict(False, 0.0, reason)


def _agree(subject: str, name: str) -> bool:
    words = set(subject.lower().split())
    others = set(name.lower().split())
    return words <= others or others <= words
