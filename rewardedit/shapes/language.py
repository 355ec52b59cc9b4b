"""English texts of scenes and edits: captions, instructions in varied wording,
and the parse that a parser should find.
"""

import numpy as np

from rewardedit.instructions.parsed import ParsedEdit, SizeState
from rewardedit.shapes.scenes import CELLS, EMPTY, Edits, Scenes
from rewardedit.shapes.vocabulary import (
    BACKDROPS,
    BACKGROUNDS,
    COLOURS,
    EDIT_TYPES,
    PLACES,
    RELATIONS,
    SHAPES,
    SIZES,
    TEXTURES,
)

_COLOURS = tuple(COLOURS)
_BACKGROUNDS = tuple(BACKGROUNDS)

USUAL = {
    "add": (
        "add {new}{at}",
        "put {new}{at}",
        "draw {new}{at}",
        "insert {new}{at}",
        "there should be {new}{at}",
    ),
    "remove": ("remove {old}", "delete {old}", "take away {old}", "get rid of {old}", "erase {old}"),
    "replace": (
        "replace {old} with {new}",
        "swap {old} for {new}",
        "turn {old} into {new}",
        "change {old} into {new}",
    ),
    "recolour": (
        "make {old} {colour}",
        "paint {old} {colour}",
        "change the color of {old} to {colour}",
        "{old} should be {colour}",
    ),
    "larger": ("make {old} bigger", "make {old} larger", "enlarge {old}", "{old} should be bigger"),
    "smaller": ("make {old} smaller", "shrink {old}", "reduce the size of {old}", "{old} should be smaller"),
    "move": ("move {old} {to}", "shift {old} {to}", "bring {old} {to}", "{old} should move {to}"),
    "background": (
        "make the background {background}",
        "change the background to {background}",
        "paint the background {background}",
        "use a {background} background",
        "the background should be {background}",
    ),
}
# For evaluation only: no training split uses any of these.
RESERVED = {
    "add": ("place {new}{at}", "I want to see {new}{at}", "could you create {new}{at}"),
    "remove": ("make {old} disappear", "{old} must go", "I do not want {old} any more"),
    "replace": ("substitute {new} for {old}", "{old} should become {new}", "have {new} instead of {old}"),
    "recolour": ("give {old} a {colour} color", "color {old} {colour}", "{old} must turn {colour}"),
    "larger": ("scale {old} up", "let {old} grow", "increase the size of {old}"),
    "smaller": ("scale {old} down", "let {old} get smaller", "decrease the size of {old}"),
    "move": ("drag {old} {to}", "relocate {old} {to}", "push {old} {to}"),
    "background": (
        "turn the background {background}",
        "give the image a {background} background",
        "fill the background with {background}",
    ),
}
WORDINGS = {"usual": USUAL, "reserved": RESERVED}
BESIDE = {
    "left": ("to the left of {reference}", "left of {reference}"),
    "right": ("to the right of {reference}", "right of {reference}"),
    "up": ("above {reference}", "right above {reference}"),
    "down": ("below {reference}", "under {reference}"),
    "near": ("near {reference}", "next to {reference}"),
    "inside": ("inside {reference}", "on {reference}"),
}
TOWARDS = {
    "left": ("to the left", "left"),
    "right": ("to the right", "right"),
    "up": ("up", "upwards"),
    "down": ("down", "downwards"),
}


def article(words: str) -> str:
    return ("an " if words[0] in "aeiou" else "a ") + words


def caption(scenes: Scenes, row: int) -> str:
    """Caption such as "a small red circle at top left, a large blue star at center, on a gray background"."""
    parts = []
    for c in range(CELLS):
        if scenes.shape[row, c] == EMPTY:
            continue
        words = (
            f"a {SIZES[scenes.size[row, c]]} {_COLOURS[scenes.colour[row, c]]} {SHAPES[scenes.shape[row, c]]}"
        )
        if scenes.inner_shape[row, c] != EMPTY:
            inner = f"{_COLOURS[scenes.inner_colour[row, c]]} {SHAPES[scenes.inner_shape[row, c]]}"
            words += f" with {article(inner)} inside"
        parts.append(f"{words} at {PLACES[c]}")

    plain = _BACKGROUNDS[scenes.background[row]]
    backdrop = BACKDROPS[scenes.backdrop[row]]
    kind = {"plain": plain, "textured": f"{TEXTURES[scenes.texture[row]]} {plain}", "photo": "photographic"}[
        backdrop
    ]
    return ", ".join([*parts, f"on a {kind} background"])


def _name(rng: np.random.Generator, scenes: Scenes, row: int, cell: int) -> str:
    """Name such as "red circle", sometimes with its size, sometimes the shape alone if that is unique."""
    size = scenes.size[row, cell]
    colour = scenes.colour[row, cell]
    shape = scenes.shape[row, cell]
    style = rng.random()
    if style < 0.15:
        return f"{SIZES[size]} {_COLOURS[colour]} {SHAPES[shape]}"
    if style < 0.3 and np.sum(scenes.shape[row] == shape) + np.sum(scenes.inner_shape[row] == shape) == 1:
        return SHAPES[shape]
    return f"{_COLOURS[colour]} {SHAPES[shape]}"


def _one_of(rng: np.random.Generator, templates: tuple[str, ...]) -> str:
    return templates[rng.integers(len(templates))]


def describe(
    rng: np.random.Generator, scenes: Scenes, edits: Edits, row: int, wordings: str = "usual"
) -> tuple[str, ParsedEdit]:
    """An instruction for the edit in `row`, and its true parse; `wordings` is a name of WORDINGS."""
    kind = EDIT_TYPES[edits.edit_type[row]]
    cell = int(edits.cell[row])
    old = None if kind in ("add", "background") else _name(rng, scenes, row, cell)
    reference = None
    at = ""
    to = ""
    position = "unchanged"
    if edits.relation[row] >= 0:
        position = RELATIONS[edits.relation[row]]
        if edits.reference[row] >= 0:
            reference = _name(rng, scenes, row, int(edits.reference[row]))
            to = _one_of(rng, BESIDE[position]).format(reference=f"the {reference}")
        else:
            to = _one_of(rng, TOWARDS[position])
        at = f" {to}"
    elif edits.says_place[row]:
        position = PLACES[edits.to_cell[row]]
        at = f" in the {position}"
        to = f"to the {position}"

    new = f"{_COLOURS[edits.colour[row]]} {SHAPES[edits.shape[row]]}"
    if edits.says_size[row]:
        new = f"{SIZES[edits.size[row]]} {new}"
    background = _BACKGROUNDS[edits.background[row]]
    size: SizeState = "unchanged"
    if kind == "resize":
        size = "larger" if edits.size[row] > scenes.size[row, cell] else "smaller"
    text = _one_of(rng, WORDINGS[wordings][size if kind == "resize" else kind]).format(
        old=f"the {old}",
        new=article(new),
        at=at,
        to=to,
        colour=_COLOURS[edits.colour[row]],
        background=background,
    )
    return text, ParsedEdit(
        edit_type=kind,
        source="background" if kind == "background" else old,
        target={"remove": None, "background": f"{background} background"}.get(kind, new),
        reference=reference,
        size=size,
        position=position,
        is_global=kind == "background",
    )
