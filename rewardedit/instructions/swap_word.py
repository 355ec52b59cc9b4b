"""Instructions in which one changed word asks for something else."""

import random
import re
from collections.abc import Collection, Sequence


def swap_word(
    instruction: str,
    groups: Sequence[Collection[str]],
    choice: random.Random,
    prefer_words: Collection[str] = (),
    prefer_share: float = 0.0,
    known: Collection[str] | None = None,
) -> str | None:
    """Replaces one word of the instruction by another of its group; returns None if there is none.

    Args:
        groups: groups of words or phrases ("light blue"); any other member of a group asks for something
            else.
        prefer_words: words that are altered before all others in a share of the cases.
        known: the words, in lower case, that a replacement may consist of; None: any.
    """
    places = []
    for kind in groups:
        longest_first = sorted(kind, key=len, reverse=True)
        pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
        for match in re.finditer(pattern, instruction, re.IGNORECASE):
            others = [word for word in kind if word.lower() != match.group().lower() and _is_of(word, known)]
            if others:
                places.append((match, others))

    if not places:
        return None
    first = [place for place in places if place[0].group() in prefer_words]
    match, others = choice.choice(first if first and choice.random() < prefer_share else places)
    word = choice.choice(others)

    # A wrong article ("an red star") would reveal that a word is altered.
    article = "an" if word[0].lower() in "aeiou" else "a"
    before = instruction[: match.start()]
    before = re.sub(r"\b(a)n? $", lambda given: f"{given[1]}{article[1:]} ", before, flags=re.IGNORECASE)
    return before + word + instruction[match.end() :]


def _is_of(word: str, known: Collection[str] | None) -> bool:
    return known is None or set(re.findall(r"\w+", word.lower())).issubset(known)
