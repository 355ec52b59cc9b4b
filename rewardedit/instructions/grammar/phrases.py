"""Noun phrases of instructions: articles, places and owners, and the name of an object after a change."""

import re
from typing import Any

from rewardedit.instructions.grammar.words import (
    COLOURS,
    DETERMINERS,
    LARGER,
    PLACES,
    PRONOUNS,
    RELATIONS,
    SHADES,
    SMALLER,
    STATES,
    TOWARDS,
)

Found = dict[str, Any]  # fields of a ParsedEdit


def name(words: str | None) -> str | None:
    """A noun phrase without its article; None if it is empty or a pronoun."""
    if words is None:
        return None
    words = re.sub(r"^(?:all of|both of|each of|all(?= the)|both(?= the))\s+", "", words.strip(" ,"))
    words = re.sub(r"^(?:an?|the|some|any|all|both|this|that|these|those|it to|its)\s+", "", words)
    words = re.sub(r"\s+(?:there|here|away|completely|entirely|a little|a bit|slightly)$", "", words)
    return None if not words or words in PRONOUNS else words


def split_place(text: str) -> tuple[str, str, str | None]:
    """Splits a noun phrase from its place: ("bird", "up", "tower") for "a bird on top of the tower".

    Returns:
        The phrase, the position ("unchanged" if there is none), and the reference.
    """
    best: tuple[int, str, str, str | None] | None = None
    for words, relation in RELATIONS:
        match = re.search(rf"^(?P<what>.+?) {words} (?P<reference>.+)$", text)
        if match is not None and (best is None or match.start("reference") - len(words) < best[0]):
            reference = match["reference"]
            at = match.end("what")
            if best is None or at < best[0]:
                best = (at, match["what"], relation, reference)
    for words, place in PLACES:
        match = re.search(rf"^(?P<what>.+?)(?: (?:visible|placed|located))? {words}$", text)
        if match is not None and (best is None or match.end("what") <= best[0]):
            return match["what"], place, None
    if best is None:
        return text, "unchanged", None
    return best[1], best[2], best[3]


def several_objects(phrase: str) -> list[str]:
    """The objects of a phrase that names more than one, such as "dog, the cat and the lamp"; empty if it
    names one, as "black and white cat" and "man with a hat and a stick" do.
    """
    parts = re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", phrase.strip(" ,"))
    first, *rest = parts
    if not rest or re.search(r"\b(?:with|of|between|wearing|holding|carrying)\b", first):
        return []
    begins_anew = re.compile(rf"(?:{'|'.join([*DETERMINERS, 'some', 'another'])})\s")
    if any(map(begins_anew.match, rest)):
        return parts
    if any(map(is_quality, parts[:-1])):
        return []
    listed = "," in phrase and re.search(r"\band\b", phrase)
    return parts if listed or all(" " not in item for item in parts) else []


def without_place(text: str) -> str:
    """A phrase without the words of place that say which of several objects is meant."""
    return split_place(text)[0]


def towards(text: str) -> tuple[str, str | None] | None:
    """A direction or place to move to, and what it is relative to."""
    text = re.sub(r"(?: a (?:little|bit)| slightly| more)$", "", text.strip())
    for words, relation in TOWARDS:
        if re.fullmatch(words, text):
            return relation, None
    for words, place in PLACES:
        if re.fullmatch(words, text):
            return place, None
    for words, relation in RELATIONS:
        match = re.fullmatch(rf"{words} (.+)", text)
        if match is not None:
            return relation, match[1]
    return None


def moved(text: str) -> Found | None:
    """ "the lamp to the left": an object and where it goes; None if no place is named."""
    words = text.split()
    for at in range(1, len(words)):
        place = towards(" ".join(words[at:]))
        if place is not None:
            what = re.sub(r" (?:down|up|over|back|out)$", "", " ".join(words[:at]))
            return {
                "edit_type": "move",
                "source": what,
                "target": what,
                "position": place[0],
                "reference": place[1],
            }
    return None


def become_of(old: str, new: str) -> Found | None:
    """The edit that "OLD should be NEW" asks for."""
    new = re.sub(r"^(?:like|looking|all|look like) ", "", new)
    new = re.sub(r"^made (?:out )?of ", "", new)
    sized = size_of(new)
    if sized is not None:
        return resized(old, sized)

    place = towards(new)
    if place is not None and place[1] is not None:
        return {
            "edit_type": "move",
            "source": old,
            "target": old,
            "position": place[0],
            "reference": place[1],
        }

    bare = name(new) or new
    if is_colour(bare):
        return with_quality("recolour", old, bare)

    if re.match(r"(?:an?|another)\b", new) or not is_quality(new):
        kept = re.fullmatch(r"(?P<part>.+) (?P<verb>leaning|sitting|lit)", new)
        if kept is None and re.match(r"(?:an?|the)\b|\w+s$", new):
            return {"edit_type": "replace", "source": old, "target": new}
    return with_quality("modify", old, bare)


def resized(old: str, size: str) -> Found:
    """The same object in another size."""
    what = part_of(old)
    return {"edit_type": "resize", "source": what, "target": what, "size": size}


def part_of(old: str) -> str:
    """An object without its place and its owner: "nose" of "his nose"."""
    what = name(without_place(old)) or old
    what = re.sub(r" of (?:the|his|her|their) .+$", "", what)
    return re.sub(r"^(?:his|her|their|my|\S+'s) ", "", what)


def with_quality(edit_type: str, old: str, quality: str) -> Found:
    """The same object with a quality before its name: "hydrant", "blue hydrant"."""
    quality = re.sub(r"^all ", "", name(quality) or quality)
    if name(without_place(old)) is None:
        return {"edit_type": edit_type, "source": "it", "target": quality}
    noun = part_of(old)
    # Words that the quality replaces: "small black circle" becomes "small red circle".
    words = noun.split()
    gone = [i for i, word in enumerate(words) if is_colour(word) or word in OPPOSITES.get(quality, ())]
    if gone and len(words) > 1:
        words = [word for i, word in enumerate(words) if i not in gone[1:]]
        words[gone[0]] = quality
        return {"edit_type": edit_type, "source": noun, "target": " ".join(words)}
    return {"edit_type": edit_type, "source": noun, "target": f"{quality} {noun}"}


OPPOSITES = {
    **dict.fromkeys(("young", "younger"), ("old",)),
    **dict.fromkeys(("old", "older"), ("young",)),
    "open": ("closed",),
    "closed": ("open",),
    "empty": ("full",),
    "full": ("empty",),
}


def is_colour(text: str) -> bool:
    """True for a colour, also with words that go with one: "dark blue", "black and white"."""
    words = text.split()
    allowed = {*COLOURS, *SHADES, "and", "a", "all"}
    return bool(words) and words[-1] in COLOURS and allowed.issuperset(words)


def is_quality(text: str) -> bool:
    """True for qualities, False for objects."""
    text = re.sub(r"^(?:all|very|really|completely|a bit|a little|slightly|so) ", "", text)
    return is_colour(text) or re.fullmatch(STATES, text) is not None or size_of(text) is not None


def size_of(text: str) -> str | None:
    """ "larger" of "a lot bigger"."""
    text = re.sub(r"^(?:much|a lot|slightly|a bit|a little|even|way|very|really|so) ", "", text.strip())
    if re.fullmatch(LARGER, text):
        return "larger"
    return "smaller" if re.fullmatch(SMALLER, text) else None


def sized_noun(text: str) -> tuple[str, str] | None:
    """("larger", "mane") of "a larger mane"."""
    match = re.fullmatch(r"(?:an? )?(?:much |far |way |even )?(?P<size>\w+) (?P<what>\w[\w' ]*)", text)
    if match is None:
        return None
    size = size_of(match["size"])
    return None if size is None else (size, match["what"])


def present_participle(verb: str) -> str:
    """ "smiling" of "smile"; words after the verb are kept."""
    first, _, rest = verb.partition(" ")
    first = first[:-1] if first.endswith("e") else first
    doubled = {"sit": "sitt", "run": "runn", "swim": "swimm"}.get(first, first)
    return f"{doubled}ing {rest}".strip()


def past_participle(verb: str) -> str:
    """ "broken" of "break"."""
    known = {
        "break": "broken",
        "open": "open",
        "cut": "cut",
        "light": "lit",
        "melt": "melted",
        "bend": "bent",
    }
    known |= {"freeze": "frozen", "burn": "burnt"}
    return known.get(verb, f"{verb}d" if verb.endswith("e") else f"{verb}ed")
