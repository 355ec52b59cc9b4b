"""Edit instructions parsed by rules, without a model.

An instruction is reduced to a plain form: no courtesies ("could you"), no frames ("what if", "there should
be"). Then rules are tried in order, each a pattern with the meaning of its parts; the first that fits is
used. The parts `source`, `target`, `reference` are noun phrases, which are stripped of articles.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from rewardedit.instructions.grammar.phrases import Found, name, several_objects, without_place
from rewardedit.instructions.grammar.rules import RULES
from rewardedit.instructions.grammar.words import COLOURS, IMAGE, SIDE, SIDES
from rewardedit.instructions.parsed import Parsed, ParsedEdit, Unparsed


def parse(instruction: str) -> ParsedEdit:
    """Parses an instruction.

    Raises:
        ValueError: if no rule fits, or it asks for several edits, or for an edit of several objects.
    """
    text = plain(instruction)
    second = re.search(SECOND, text) and not re.match(EXCHANGE, text)
    if second or re.fullmatch(SECOND_COLOUR, text):
        raise ValueError(f"instruction {instruction!r}: asks for more than one edit")
    for rule in RULES:
        for pattern in rule.patterns:
            match = pattern.fullmatch(text)
            if match is not None:
                parsed = rule.read(match)
                if parsed is not None:
                    return require_single(_finished(parsed), instruction)
    raise ValueError(f"instruction {instruction!r}: no rule fits it")


def require_single(parsed: ParsedEdit, instruction: str) -> ParsedEdit:
    """Returns the same edit.

    Raises:
        ValueError: if one of its names is that of several objects: one that is found would stand for
            all.
    """
    for named in (parsed.source, parsed.target, parsed.reference):
        objects = several_objects(named or "")
        if objects:
            raise ValueError(f"instruction {instruction!r}: names several objects ({'; '.join(objects)})")
    return parsed


def parse_all(instructions: Sequence[str]) -> list[Parsed]:
    """Parses each instruction; `Unparsed` for those that `parse` refuses."""
    parsed: list[Parsed] = []
    for instruction in instructions:
        try:
            parsed.append(parse(instruction))
        except ValueError as error:
            parsed.append(Unparsed(str(error)))
    return parsed


# A second edit after the first; taking something away to put another thing there is one edit.
VERB = (
    r"(?:add|insert|remove|delete|erase|make|change|turn|replace|paint|recolou?r|enlarge|shrink|move|put|"
    r"place|open|close|give|let|have|blur|fill|write)"
)
SECOND = rf"(?:, then|, and(?: then)?|,| and(?: then)?) {VERB} "
# "make the hat green and the shirt blue"
_COLOUR = "|".join(sorted(COLOURS))
SECOND_COLOUR = (
    rf"(?:make|turn|paint|colou?r|dye) .+ (?:{_COLOUR}),? and (?:the|his|her|its|their) .+ (?:{_COLOUR})"
)
INSTEAD = rf"(.+ (?:{_COLOUR})) (?:instead of|rather than) (?:{_COLOUR})"
EXCHANGE = (
    r"(?:remove|delete|erase|take|edit|get rid of|take away|take out|cut out) .+? "
    rf"and (?:add|adding|insert|put|putting|place|placing) (?!.*(?:, then|,| and(?: then)?) {VERB} )"
)

COURTESIES = (
    r"(?:please|kindly|now|then|just|also)\b,?",
    r"(?:can|could) (?:we|i) (?:please )?(?:get|have)\b",
    r"(?:can|could|would|will) (?:you|we|i)(?: please)?\b",
    r"what if\b",
    r"i think\b",
    r"(?:can|could|would|will)\b",
    r"(?:i|we)(?: would|'d)? (?:want|like|need)(?: you)?(?: to)?\b",
    r"let'?s\b",
)


def plain(instruction: str) -> str:
    """Lower case, one space between words, without courtesies and final punctuation."""
    text = re.sub(r"\s+", " ", instruction.strip().lower().replace("’", "'"))
    text = re.sub(r"[.!?,;\s]+$", "", text)
    text = re.sub(r",? (?:please|pls)$", "", text)
    text = re.sub(r",? (?:as if|so that|as though) .+$", "", text)
    text = text.replace('"', "")
    text = re.sub(rf"^{INSTEAD}$", r"\1", text)  # without the present colour
    before = None
    while before != text:
        before = text
        for courtesy in COURTESIES:
            text = re.sub(rf"^{courtesy}\s*", "", text)
    return _one_clause(text.strip())


def _one_clause(text: str) -> str:
    """ "there is a cup on the desk, make it red" as "make cup red": the object in the pronoun's place."""
    match = re.fullmatch(
        r"(?:there(?:'s| is| are) (?P<there>.+?)|(?P<what>.+?) (?:is|are|hangs?|looks?|seems?) .+?), "
        r"(?:(?:can|could) you |please )?(?P<rest>.*\b(?:it|them)\b.*)",
        text,
    )
    if match is None:
        return text
    what = name(without_place(match["there"] or match["what"])) or ""
    return re.sub(r"\b(?:it|them)\b", f"the {what}", match["rest"], count=1)


def _within_image(fields: Found) -> Found:
    """The position of an edit whose reference is not an object, but the image or one of its sides."""
    reference = name(fields.get("reference")) or ""
    side = re.fullmatch(SIDE, reference)
    if side is not None:
        return {"reference": None, "position": SIDES[side["side"]]}
    if not re.fullmatch(IMAGE, reference):
        return {}
    place = SIDES.get(fields["position"])
    return {
        "reference": None,
        "position": place or "unchanged",
        "ambiguous": fields.get("ambiguous", False) or (place is None and fields["edit_type"] == "move"),
    }


def _finished(slots: Found) -> ParsedEdit:
    """The fields as a `ParsedEdit`; a pronoun makes it ambiguous, and so does a move to a part of the image
    that is not a place in it, such as its background.
    """
    slots = {**slots, **_within_image(slots)}
    pronoun = False
    fields = dict(slots)
    for key in ("source", "target", "reference"):
        fields[key] = name(slots.get(key))
        if fields[key] is None and slots.get(key) is not None:
            pronoun = True
    parsed = ParsedEdit(**{"source": None, "target": None, **fields})
    return replace(parsed, ambiguous=parsed.ambiguous or pronoun)
