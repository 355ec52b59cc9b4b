"""Edit instructions parsed by rules, without a model.

An instruction is brought to a plain form: no courtesies ("could you"), no frames ("what if", "there should
be"). Then rules are tried in their order, each a pattern with what its parts mean; the first that fits is
taken. What a pattern calls `source`, `target`, `reference` are noun phrases, which are stripped of articles.
"""

import re
from dataclasses import replace

from rewardedit.instructions.parsed import ParsedEdit
from rewardedit.instructions.phrases import Found, name
from rewardedit.instructions.rules import RULES


def parse(instruction: str) -> ParsedEdit:
    """What an instruction asks for.

    Raises:
        ValueError: where no rule fits.
    """
    text = plain(instruction)
    for rule in RULES:
        for pattern in rule.patterns:
            match = pattern.fullmatch(text)
            if match is not None:
                found = rule.read(match)
                if found is not None:
                    return _finished(found)
    raise ValueError(f"instruction {instruction!r}: no rule fits it")


COURTESIES = (
    r"(?:please|kindly|now|then|just|also)\b,?",
    r"(?:can|could|would|will) (?:you|we|i)(?: please)?\b",
    r"(?:can|could|would|will)\b",
    r"(?:i|we)(?: would|'d)? (?:want|like|need)(?: you)?(?: to)?\b",
    r"let'?s\b",
)


def plain(instruction: str) -> str:
    """Lower case, one space between words, without courtesies and the marks at its end."""
    text = re.sub(r"\s+", " ", instruction.strip().lower().replace("’", "'"))
    text = re.sub(r"[.!?,;\s]+$", "", text)
    text = re.sub(r",? please$", "", text)
    text = text.replace('"', "")
    before = None
    while before != text:
        before = text
        for courtesy in COURTESIES:
            text = re.sub(rf"^{courtesy}\s*", "", text)
    return text.strip()


def _finished(found: Found) -> ParsedEdit:
    """The fields as a `ParsedEdit`; whatever is a pronoun makes it ambiguous."""
    pronoun = any(
        value is not None and name(value) is None
        for value in (found.get(key) for key in ("source", "target"))
    )
    fields = dict(found)
    for key in ("source", "target", "reference"):
        fields[key] = name(found.get(key))
    parsed = ParsedEdit(**{"source": None, "target": None, **fields})
    return replace(parsed, ambiguous=parsed.ambiguous or pronoun)
