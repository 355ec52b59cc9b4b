"""The parsed instruction, in the terms of BPM (Sec. 3.2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

SizeState = Literal["larger", "smaller", "unchanged"]
# Relations of the target to its reference object. "on" is up or inside: "on the table" may be either.
RELATIONS = ("left", "right", "up", "down", "near", "inside", "on")


@dataclass(frozen=True)
class ParsedEdit:
    """The edit that an instruction asks for. None stands for "nothing"; names of objects have no article."""

    edit_type: str
    source: str | None  # the object before the edit (BPM's o1); None for "add"
    target: str | None  # the object after it (o2); None for "remove"
    # The object that `position` is relative to. None if the instruction names no object: "move the cup to the
    # left" compares the cup with where it was.
    reference: str | None = None
    size: SizeState = "unchanged"
    position: str = "unchanged"  # one of RELATIONS, a place in the image such as "top left", or "unchanged"
    is_global: bool = False  # the instruction changes the whole image, or its whole background
    # it refers to something that it does not name ("make it red"); that field stays None
    ambiguous: bool = False

    @property
    def is_unclear(self) -> bool:
        """True if the instruction means an object that it does not name; "make it night" means the image."""
        return self.ambiguous and not self.is_global


@dataclass(frozen=True)
class Unparsed:
    """An instruction that could not be parsed."""

    reason: str  # with the model's answer, if a model was used


Parsed = ParsedEdit | Unparsed
Parser = Callable[[Sequence[str]], Sequence[Parsed]]
