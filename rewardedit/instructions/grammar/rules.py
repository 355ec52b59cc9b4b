"""The rules of the grammar: patterns over an instruction's plain form, each with the meaning of its parts."""

import re
from re import Match

from rewardedit.instructions.grammar.phrases import (
    Found,
    become_of,
    is_colour,
    is_quality,
    moved,
    name,
    past_participle,
    present_participle,
    resized,
    sized_noun,
    split_place,
    towards,
    with_quality,
    without_place,
)
from rewardedit.instructions.grammar.whole_image import (
    Rule,
    background,
    light,
    rule,
    style,
    treat,
    whole_image,
)
from rewardedit.instructions.grammar.words import (
    ACTIONS,
    CAMERA,
    DETERMINERS,
    INTO,
    LARGER_VERBS,
    LITTER,
    MATERIALS,
    SHOULD,
    SMALLER_VERBS,
    STATES,
    VERBS,
    WRITTEN,
)


@rule(
    r"(?:get rid of|take away|take out|cut out|remove|delete|erase|eliminate|lose|strip|clean up|discard|"
    r"omit|edit out|crop out|no more|drop(?! an? | some )|hide(?!.* behind )) "
    r"(?P<old>.+?)(?: (?:away|out))?",
    r"(?:clear|wipe|clean) (?P<old>.+?) (?:away|off(?: .+)?|from .+)",
    rf"(?:clear|wipe|clean) (?P<old>(?:the |all (?:the )?)?(?:{LITTER}))",
    r"(?:take|shave|cut) (?P<old>.+) (?:away|off|out)",
    r"take (?P<old>.+?) off (?:of )?.+",
    r"(?P<old>.+) should(?:n't| not) be (?:there|here|in .+)",
    r".+ (?:but|better|nicer) without (?P<old>.+)",
    r"get (?P<old>.+) out of (?:here|there|the (?:image|picture|scene|way))",
    rf"(?:the )?(?P<old>.+) (?:{SHOULD}) (?:go|disappear|vanish|be gone|be removed|leave)",
    r"(?:i )?(?:do not|don't) want (?P<old>.+?)(?: (?:there|any ?more))?",
    rf"(?:what if )?there (?:{SHOULD} be|were|was|is|are) no (?P<old>.+)",
    r"let there be no (?:more )?(?P<old>.+)",
    r"without (?P<old>.+)",
    r"let (?:the )?.+ be without (?P<old>.+)",
    r"make (?:the )?.+ free of (?P<old>.+)",
    r"(?:have|let|make) (?:the )?.+ take off (?:his|her|its|their|the) (?P<old>.+)",
    r"make (?P<old>.+) disappear",
)
def remove(match: Match[str]) -> Found | None:
    """An object is removed.

    Raises:
        ValueError: if everything but one thing is to be removed, which has no name.
    """
    if re.match(
        r"(?:everything|everyone|everybody|all|anything)\b.* (?:except|but(?! keep)|other than) ",
        match["old"],
    ):
        raise ValueError(f"instruction {match[0]!r}: names what stays, not what to remove")
    old = re.sub(r" (?:from|off) (?:the|this|his|her|their) .+$", "", match["old"])
    second = re.fullmatch(r"(?P<old>.+) and (?:add|put|place|insert) (?P<new>.+)", old)
    if second is not None:
        return {"edit_type": "replace", "source": second["old"], "target": second["new"]}
    return {"edit_type": "remove", "source": without_place(old)}


@rule(
    r"substitute (?P<new>.+?) for (?P<old>.+)",
    r"(?:i'd |i would )?rather (?:see|have) (?P<new>.+) than (?P<old>.+)",
    r"(?:put|place|add) (?P<new>.+) where (?P<old>.+) (?:is|are|was|were)",
    r"(?:replace|swap|substitute|exchange|switch|trade) (?P<old>.+?) (?:with|for|by|against) (?P<new>.+)",
    r"(?:have|put|show|use|with)? ?(?P<new>.+) (?:instead of|in (?:the )?place of|rather than) (?P<old>.+)",
    r"instead of (?P<old>.+?), (?:have|show|put|use|make it)? ?(?P<new>.+)",
    r"edit .+ by removing (?P<old>.+) and (?:placing|adding|putting) (?P<new>.+)",
)
def exchange(match: Match[str]) -> Found:
    """One object in the place of another."""
    changed = re.fullmatch(rf"(?P<what>(?!it |there ).+?) (?:{SHOULD} )?be (?P<new>.+)", match["new"])
    if changed is not None and not re.match(r"wearing|holding", changed["new"]):
        return become_of(changed["what"], changed["new"])
    held = r"(?:(?:let|have|make) )?.+? (?:be )?(?:hold|holding|wear|wearing|carry|carrying|have|has)"
    new = re.sub(rf"^(?:(?:it|there) {SHOULD} be|{held}|have|show|put|use) ", "", match["new"])
    return {"edit_type": "replace", "source": match["old"], "target": new}


@rule(
    r"(?:change|switch) (?:the )?colou?r of (?P<old>.+) (?:to|into) (?P<new>.+)",
    r"(?:change|switch) (?P<old>.+?)(?:'s)? colou?r (?:to|into) (?P<new>.+)",
    r"(?:change|switch) (?P<old>.+) from .+ to (?P<new>.+)",
    r"(?:paint|dye|colou?r|recolou?r|tint|bleach|repaint|spray) (?P<old>.+?)(?: in| with)? (?P<new>[\w ]+)",
    r"give (?P<old>.+?) an? (?P<new>[\w ]+) (?:colou?r|tint)",
    r"have it in (?P<new>\w+)",
)
def recolour(match: Match[str]) -> Found | None:
    """An object in another colour."""
    new = match["new"]
    old = match.groupdict().get("old")
    if not is_colour(new) or old in DETERMINERS:
        # The last words are the colour: "paint the old door dark green", and "paint the sky red".
        words = f"{old} {new}".split()
        first = 2 if words[0] in DETERMINERS else 1
        at = next((i for i in range(first, len(words)) if is_colour(" ".join(words[i:]))), None)
        if at is None:
            return None
        old, new = " ".join(words[:at]), " ".join(words[at:])
        old = re.sub(r" in$", "", old)
    if old is None:
        return {"edit_type": "recolour", "target": new, "ambiguous": True}
    return with_quality("recolour", old, new)


@rule(
    rf"(?:{LARGER_VERBS}) (?P<old>.+?)(?: up)?(?: to .+)?",
    r"scale up (?P<old>.+)",
    r"scale (?P<old>.+) up",
    r"increase the size of (?P<old>.+)",
    r"let (?P<old>.+) grow(?: larger| bigger)?",
)
def enlarge(match: Match[str]) -> Found:
    """An object that becomes larger."""
    return resized(match["old"], "larger")


@rule(
    rf"(?:{SMALLER_VERBS}) (?P<old>.+?)(?: down)?(?: to .+)?",
    r"scale down (?P<old>.+)",
    r"scale (?P<old>.+) down",
    r"(?:reduce|decrease) the size of (?P<old>.+)",
)
def shrink(match: Match[str]) -> Found:
    """An object that becomes smaller."""
    return resized(match["old"], "smaller")


@rule(
    r"(?:move|shift|slide|drag|push|pull|relocate|reposition|nudge|bring) (?P<what>.+)",
    rf"(?P<what>.+? {SHOULD} move .+)",
)
def move(match: Match[str]) -> Found | None:
    """An object that goes to another place."""
    text = re.sub(rf" {SHOULD} move", "", match["what"])
    if re.match(r"(?:an?|some|more) ", text):  # "bring a bicycle into the scene"
        return None
    return moved(text)


@rule(
    r"(?P<verb>lift|raise|lower) (?P<what>.+?)(?: (?:higher|lower|up|down))?",
    r"take (?P<what>.+?)(?: (?:off|from|out of) .+)? and put (?:it|them) (?P<place>.+)",
)
def lift(match: Match[str]) -> Found | None:
    """An object that goes up or down, or is taken to another place."""
    groups = match.groupdict()
    if groups.get("place") is not None:
        return moved(f"{groups['what']} {groups['place']}")
    return moved(f"{groups['what']} {'down' if groups['verb'] == 'lower' else 'up'}")


@rule(
    r"(?:put|place|set|hide(?=.* behind )) (?P<what>(?:the|his|her|it|them)\b.+)",
    rf"(?P<what>the .+?) {SHOULD} be (?P<rest>.+)",
    r"let (?P<what>the .+?) be (?P<rest>.+)",
)
def put_elsewhere(match: Match[str]) -> Found | None:
    """A known object, which has "the", at another place."""
    rest = match.groupdict().get("rest")
    if rest is None:
        return moved(match["what"])
    return moved(f"{without_place(match['what'])} {rest}") if towards(rest) is not None else None


@rule(
    r"write (?P<new>.+) (?P<place>(?:on|in|across|above|below) .+)",
    r"(?:fill|cover|top|decorate|sprinkle) (?P<ref>.+) with (?P<new>.+)",
    r"dress (?P<ref>.+) in (?P<new>.+)",
    r"let (?P<ref>.+) be topped with (?P<new>.+)",
    r"give (?P<ref>.+?) (?P<new>(?:an?|some|more) .+)",
    r"(?P<ref>.+?) (?:needs|wants|could use) (?P<new>(?:an?|some|more) .+)",
    r"give (?P<ref>(?:the|a|an|his|her|him|them|it|my)\b ?\S*) (?P<new>(?:an?|some|more)? ?.+)",
    rf"(?:have|let|make|what if)? ?(?P<ref>.+?) (?:{SHOULD} )?(?:be |were )?"
    r"(?:wear|wearing|hold|holding|carry|have|had|has|use|eat|eating) (?P<new>.+)",
)
def give(match: Match[str]) -> Found | None:
    """Something new that an object wears, holds or has."""
    groups = match.groupdict()
    new = groups["new"]
    if groups.get("place") is not None:
        place = towards(groups["place"])
        if place is None:
            return None
        return {"edit_type": "add", "target": new, "position": place[0], "reference": place[1]}

    sized = sized_noun(new)
    ref = re.sub(r"^(?:have|let|make|what if) ", "", groups["ref"])
    if sized is not None and not new.startswith(("a second", "a new")):
        size, what = sized
        return resized(what, size)
    if re.match(
        r"(?:blond|blonde|curly|straight|long|short|brown|black|red|grey|gray|white)\w* (?:hair|fur|eyes)$",
        new,
    ):
        return {"edit_type": "modify", "source": new.split()[-1], "target": new}

    more = re.fullmatch(r"(?P<part>\w+) with (?P<rest>.+)", new)
    if more is not None:
        return {"edit_type": "modify", "source": more["part"], "target": new}

    flat = re.fullmatch(rf"(?P<state>{STATES}) (?P<part>\w+)", new)
    if flat is not None:
        return {"edit_type": "modify", "source": flat["part"], "target": new}
    return {"edit_type": "add", "target": new, "position": "inside", "reference": ref}


@rule(r"(?P<new>an? .+)")
def want(match: Match[str]) -> Found | None:
    """ "a bigger television": an object that is there already, in another size."""
    sized = sized_noun(match["new"])
    return (
        None if sized is None or split_place(match["new"])[1] != "unchanged" else resized(sized[1], sized[0])
    )


@rule(r"(?:have|put|show) (?P<new>something else)(?: there| here)?")
def something_else(match: Match[str]) -> Found:
    """Any other object."""
    return {"edit_type": "replace", "ambiguous": True}


@rule(
    r"(?:add|insert|include|place|put|draw|paste|plant|bring|set|show|stick|attach|hang|sprinkle|pour|"
    r"throw|drop|create|see|to see|want to see) (?P<new>.+?)",
    rf"there (?:{SHOULD} )?(?:to be|be|is|are|was|were) (?P<new>.+)",
    r"let there be (?P<new>.+)",
    r"(?:what|how) about (?P<new>.+)",
    r"(?:could|can) (?:we|i) have (?P<new>.+)",
    r"have (?P<new>(?:an?|some|two|three|four|more|\d+) .+)",
    r"have there be (?P<new>.+)",
    rf"(?P<new>an? .+? {SHOULD} (?:be|sit|stand|lie|fly) .+)",
    r"let (?P<new>an? .+)",
    r"(?P<new>(?:an?|more|some|two) .+)",
)
def add(match: Match[str]) -> Found | None:
    """Something new, perhaps at a place."""
    text = re.sub(rf" {SHOULD} (?:be )?", " ", match["new"])
    text = re.sub(r" (?:into|in) (?:the )?(?:scene|image|picture|photo)$", "", text)
    what, position, reference = split_place(text)
    what = re.sub(ACTIONS, "", what)
    if name(what) is None or what in ("one more", "another", "another one"):
        return {"edit_type": "add", "ambiguous": True, "position": position, "reference": reference}
    return {"edit_type": "add", "target": what, "position": position, "reference": reference}


@rule(
    rf"(?:change|turn|transform|convert|morph|switch) (?P<old>.+?) {INTO} (?P<new>.+)",
    rf"let (?P<old>.+) turn {INTO} (?P<new>.+)",
    r"make (?P<old>.+?) into (?P<new>.+)",
    r"(?:change|switch) (?P<old>.+) for (?P<new>.+)",
)
def turn_into(match: Match[str]) -> Found:
    """One object becomes another, or is of another colour or kind."""
    old, new = match["old"], match["new"]
    if is_colour(new):  # "an orange" is a thing
        return with_quality("recolour", old, new)
    one = re.fullmatch(r"an? (?P<quality>\w+) one", new)
    if one is not None:
        return with_quality("modify", old, one["quality"])
    if name(old) in WRITTEN or (name(old) or "").startswith("text"):
        return {"edit_type": "modify", "source": old, "target": new}
    if name(new) in MATERIALS:
        return with_quality("modify", old, name(new) or new)
    return {"edit_type": "replace", "source": old, "target": new}


@rule(
    rf"(?:what if |have |let )?(?P<old>(?!make |turn ).+?) (?:{SHOULD} (?:be|turn|look|become|get)|"
    r"was|were|is|are|to be|be|get|become|turns?) (?P<new>.+)",
    r"make (?P<old>(?:it|this|them|that)) (?P<new>.+)",
    r"turn (?P<old>.+?) (?P<new>upside down)",
)
def become(match: Match[str]) -> Found | None:
    """An object is to be something else, or of another quality."""
    return become_of(match["old"], match["new"])


@rule(r"turn (?P<old>.+) (?P<new>on|off)", r"turn (?P<new>on|off) (?P<old>.+)")
def switch(match: Match[str]) -> Found:
    """A light or a device is turned on or off."""
    return {"edit_type": "modify", "source": match["old"], "target": f"{name(match['old'])} {match['new']}"}


@rule(r"(?P<new>.+)")
def fragment(match: Match[str]) -> Found | None:
    """ "sunglasses on the bulldog": no verb, a thing and its place."""
    what, position, reference = split_place(match["new"])
    if position == "unchanged" or len(what.split()) > 4 or what.split()[0] in CAMERA:
        return None
    return {"edit_type": "add", "target": what, "position": position, "reference": reference}


@rule(r"(?P<lead>make|turn|let|have|get) (?P<all>.+)")
def make(match: Match[str]) -> Found | None:
    """ "make the OLD NEW", with nothing between the two."""
    text = re.sub(r" out of (\w+)$", r" \1", match["all"])
    text = re.sub(r" look(?:s|ing)? like(?: it is| they are)? ", " ", text)
    text = re.sub(r"(?<=\w) (?:more|even more|much more) (\w+)$", r" \1", text)
    verb = re.fullmatch(rf"(?P<old>(?:the |his |her |its )?[\w' ]+?) (?P<new>{VERBS}.*)", text)
    if verb is not None:
        doing = f"{name(verb['old'])} {present_participle(verb['new'])}"
        return {"edit_type": "modify", "source": verb["old"], "target": doing}

    words = text.replace(" look ", " ").split()
    # An article in the middle begins what it becomes: "make the truck a fire engine".
    for at in range(1, len(words) - 1):
        if words[at] in ("a", "an", "another"):
            what = name(" ".join(words[: at - 1])) if at > 1 else None
            does = re.fullmatch(r"(?!in$|on$|at$|with$|of$)\w+(?<!ing)(?<!ed)", words[at - 1]) is not None
            is_request = match["lead"] in ("let", "have") and not is_colour(" ".join(words[at + 1 :]))
            if is_request and does and what not in (None, *DETERMINERS):  # "have the man ride a horse"
                doing = f"{what} {present_participle(words[at - 1])} {' '.join(words[at:])}"
                return {"edit_type": "modify", "source": what, "target": doing}
            return become_of(" ".join(words[:at]), " ".join(words[at:]))

    # Else the longest end that is a quality: "make the sky purple" is not about a "sky purple".
    first = 2 if words[0] in DETERMINERS else 1
    for at in range(first, len(words)):
        end = " ".join(words[at:])
        if is_quality(end):
            return become_of(" ".join(words[:at]), end)

    if len(words) < 2:
        return None
    if match["lead"] in ("let", "have"):  # what the object is to do
        what = name(" ".join(words[:-1]))
        return {"edit_type": "modify", "source": what, "target": f"{what} {present_participle(words[-1])}"}
    return become_of(" ".join(words[:-1]), words[-1])


@rule(rf"(?P<verb>{STATES}|open|close|peel|break|cut|light|melt|burn|freeze|crack|bend|fold) (?P<old>.+)")
def act(match: Match[str]) -> Found:
    """A verb that changes an object's state."""
    return {
        "edit_type": "modify",
        "source": match["old"],
        "target": f"{past_participle(match['verb'])} {name(match['old'])}",
    }


RULES: tuple[Rule, ...] = (
    background,
    light,
    whole_image,
    style,
    exchange,
    remove,
    recolour,
    enlarge,
    shrink,
    move,
    lift,
    put_elsewhere,
    turn_into,
    something_else,
    give,
    want,
    add,
    switch,
    treat,
    become,
    act,
    make,
    fragment,
)
