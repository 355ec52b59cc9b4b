"""Instructions that ask for something else by one word."""

import random
import re
from collections.abc import Collection, Sequence


def altered(
    instruction: str,
    alike: Sequence[Collection[str]],
    choice: random.Random,
    preferred: Collection[str] = (),
    share: float = 0.0,
    known: Collection[str] | None = None,
) -> str | None:
    """The instruction with one of its words for another one of its kind; None where it has no such word.

    Args:
        alike: kinds of words, in each of which another word asks for something else.
        preferred: words that are altered before all others in the share `share` of the cases.
        known: the words that may come in; None: all.
    """
    places = [
        (found, others)
        for kind in alike
        for found in re.finditer(r"\b(?:" + "|".join(kind) + r")\b", instruction)
        if (others := [word for word in kind if word != found.group() and (known is None or word in known)])
    ]
    if not places:
        return None
    first = [place for place in places if place[0].group() in preferred]
    found, others = choice.choice(first if first and choice.random() < share else places)
    text = instruction[: found.start()] + choice.choice(others) + instruction[found.end() :]
    text = re.sub(r"\ban (?![aeiou])", "a ", text)  # as "a star" for "an orange star" would tell
    return re.sub(r"\ba (?=[aeiou])", "an ", text)
