"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable, Sequence


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known name that is most like another one, or all that are equally like it; [] if none is alike."""
    names = list(known)
    near = difflib.get_close_matches(name, names, len(names) or 1)
    return [other for other in names if other in near and _likeness(other, name) == _likeness(near[0], name)]


def question(names: Sequence[str]) -> str:
    """The end of an error about an unknown name, such as "did you mean l1 or l2?"; "" for no names."""
    if not names:
        return ""
    *others, last = names
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"


def hint(name: str, known: Iterable[str]) -> str:
    """The question for the nearest names, after a semicolon; "" if none is alike."""
    asked = question(nearest(name, known))
    return f"; {asked}" if asked else ""


def _likeness(known: str, name: str) -> float:
    """As `difflib.get_close_matches` has it, which depends on the order of the two."""
    return difflib.SequenceMatcher(None, known, name).ratio()
