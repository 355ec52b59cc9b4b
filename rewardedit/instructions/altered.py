"""Instructions in which one changed word asks for something else."""

import random
import re
from collections.abc import Collection, Sequence


def altered(
    instruction: str,
    alike: Sequence[Collection[str]],
    choice: random.Random,
    preferred: Collection[str] = (),
    preferred_share: float = 0.0,
    known: Collection[str] | None = None,
) -> str | None:
    """Replaces one word of the instruction by another of its group; returns None if there is none.

    Args:
        alike: groups of words or phrases ("light blue"); any other member of a group asks for something
            else.
        preferred: words that are altered before all others in a share of the cases.
        known: the words, in lower case, that a replacement may consist of; None: any.
    """
    places = []
    for kind in alike:
        longest_first = sorted(kind, key=len, reverse=True)
        pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
        for found in re.finditer(pattern, instruction, re.IGNORECASE):
            others = [word for word in kind if word.lower() != found.group().lower() and _is_of(word, known)]
            if others:
                places.append((found, others))

    if not places:
        return None
    first = [place for place in places if place[0].group() in preferred]
    found, others = choice.choice(first if first and choice.random() < preferred_share else places)
    word = choice.choice(others)

    # A wrong article ("an red star") would reveal that a word is altered.
    article = "an" if word[0].lower() in "aeiou" else "a"
    before = instruction[: found.start()]
    before = re.sub(r"\b(a)n? $", lambda own: f"{own[1]}{article[1:]} ", before, flags=re.IGNORECASE)
    return before + word + instruction[found.end() :]


def _is_of(word: str, known: Collection[str] | None) -> bool:
    return known is None or set(re.findall(r"\w+", word.lower())).issubset(known)
