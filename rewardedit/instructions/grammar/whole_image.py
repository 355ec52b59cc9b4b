"""Rules of the grammar for the background and for the whole image."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from re import Match

from rewardedit.instructions.grammar.phrases import Found, is_quality, name
from rewardedit.instructions.grammar.words import BE, GLOBAL_CHANGES, SHOULD, STYLES, WHOLE


@dataclass(frozen=True)
class Rule:
    """Patterns of one meaning. `read` returns None if a pattern fits but the rule does not."""

    patterns: tuple[re.Pattern[str], ...]
    read: Callable[[Match[str]], Found | None]


def rule(*patterns: str) -> Callable[[Callable[[Match[str]], Found | None]], Rule]:
    """Turns a function into a rule, as a decorator."""
    compiled = tuple(map(re.compile, patterns))
    return lambda read: Rule(compiled, read)


@rule(
    r"(?:use|set it against|give (?:the|this) (?:image|photo|picture|scene)) "
    r"(?P<new>.+ (?:background|backdrop))",
    r"(?:change|replace|swap|turn|switch|set|make|paint|fill|let|have) (?:the )?"
    r"(?P<old>background|backdrop|setting)(?: (?:to|with|into|for|by|be|show|in))?(?: be)? (?P<new>.+)",
    rf"(?:the )?(?P<old>background|backdrop|setting) {SHOULD} {BE} (?P<new>.+)",
    r"(?:put|place|set) (?:the )?(?P<old>scene|background) (?:in|on|at|into) (?P<new>.+)",
)
def background(match: Match[str]) -> Found:
    """The whole background becomes another."""
    old = match.groupdict().get("old") or "background"
    new = name(match["new"]) or match["new"]
    if is_quality(new):
        new = f"{new} {old}"
    return {"edit_type": "background", "source": old, "target": new, "is_global": True}


@rule(
    rf"(?:make|turn|convert|change|render|transform|let|have|give|show)(?: the| this)?(?: whole| entire)? ?"
    rf"(?P<what>{WHOLE})(?: look| be)?(?: like| to| into| in| as)? (?P<new>.+)",
    rf"(?:the |this |same )?(?P<what>{WHOLE}),? (?:but )?(?:as|in) (?P<new>.+)",
    rf"(?:the )?(?P<what>{WHOLE}) (?:{SHOULD} )(?:be|look like|look|become)(?: it was taken at)? (?P<new>.+)",
)
def whole_image(match: Match[str]) -> Found:
    """The whole image changes its style, season or light."""
    new = re.sub(r"^(?:like|it was taken at|an?) ", "", match["new"])
    return {"edit_type": "style", "source": match["what"], "target": new, "is_global": True}


@rule(
    r"make (?:it|this) look like (?P<new>.+)",
    r"(?:as|in) (?:an? |the )?(?P<new>(?:style of .+|.*painting|.*sketch|.*drawing|.*cartoon|comic.*))",
    r"what would it look like (?:as|in) (?P<new>.+)",
    r"apply (?P<new>.+)",
    rf"(?:make|let|have) (?:it|this) (?:be )?(?P<new>(?:an? )?(?:{GLOBAL_CHANGES})\b.*)",
    rf"(?:convert|turn|change) (?:it |this )?(?:to|into) (?P<new>(?:an? )?.*(?:{STYLES}).*)",
    rf"(?:make|turn) (?:it|this)(?: into)? (?P<new>(?:an? )?.*(?:{STYLES}).*)",
)
def style(match: Match[str]) -> Found:
    """The whole image changes, although the instruction does not name it."""
    return {"edit_type": "style", "target": match["new"], "is_global": True, "ambiguous": True}


@rule(r"(?:turn|change) (?P<old>day|night|summer|winter|spring|autumn) (?:in)?to (?P<new>.+)")
def light(match: Match[str]) -> Found:
    """Day to night, summer to winter."""
    return {"edit_type": "style", "source": match["old"], "target": match["new"], "is_global": True}


@rule(r"(?P<verb>blur|brighten|darken|sharpen|lighten) (?P<old>.+)")
def treat(match: Match[str]) -> Found:
    """An object, the background or the whole image, treated as a photograph."""
    done = {"blur": "blurred", "brighten": "brighter", "darken": "darker", "lighten": "lighter"}
    quality = done.get(match["verb"], "sharper")
    old = name(match["old"]) or "image"
    kind = (
        "background"
        if old in ("background", "backdrop")
        else "style"
        if re.fullmatch(WHOLE, old)
        else "modify"
    )
    fields = {"edit_type": kind, "source": old, "target": f"{quality} {old}"}
    return {**fields, "is_global": kind != "modify"}
