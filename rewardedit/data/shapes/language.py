"""Scenes and edits to English: captions, instructions in varied wording,
and the truth a parser should find.
"""

from dataclasses import dataclass

import numpy as np

from rewardedit.data.shapes.scenes import CELLS, EMPTY, Edits, Scenes
from rewardedit.data.shapes.vocabulary import (
    BACKDROPS,
    BACKGROUNDS,
    COLOURS,
    EDIT_TYPES,
    PLACES,
    SHAPES,
    SIZES,
    TEXTURES,
)

_COLOURS = tuple(COLOURS)
_BACKGROUNDS = tuple(BACKGROUNDS)

TEMPLATES = {
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
    "bigger": ("make {old} bigger", "make {old} larger", "enlarge {old}", "{old} should be bigger"),
    "smaller": ("make {old} smaller", "shrink {old}", "reduce the size of {old}", "{old} should be smaller"),
    "move": (
        "move {old} to the {place}",
        "shift {old} to the {place}",
        "bring {old} to the {place}",
        "{old} should be in the {place}",
    ),
    "background": (
        "make the background {background}",
        "change the background to {background}",
        "paint the background {background}",
        "use a {background} background",
        "the background should be {background}",
    ),
}


@dataclass(frozen=True)
class ParsedEdit:
    """What an instruction asks, in BPM's terms (Sec. 3.1): None stands for "nothing"."""

    edit_type: str
    original: str | None  # o1, the object before the edit
    edited: str | None  # o2, the object after it
    size: str  # "bigger", "smaller" or "unchanged"
    position: str  # one of PLACES, or "unchanged"


def article(words: str) -> str:
    return ("an " if words[0] in "aeiou" else "a ") + words


def caption(scenes: Scenes, row: int) -> str:
    """e.g. "a small red circle at top left, a large blue star at center, on a gray background"."""
    parts = [
        f"a {SIZES[scenes.size[row, c]]} {_COLOURS[scenes.colour[row, c]]} {SHAPES[scenes.shape[row, c]]} "
        f"at {PLACES[c]}"
        for c in range(CELLS)
        if scenes.shape[row, c] != EMPTY
    ]
    plain = _BACKGROUNDS[scenes.background[row]]
    backdrop = BACKDROPS[scenes.backdrop[row]]
    kind = {"plain": plain, "textured": f"{TEXTURES[scenes.texture[row]]} {plain}", "photo": "photographic"}[
        backdrop
    ]
    return ", ".join([*parts, f"on a {kind} background"])


def _reference(rng: np.random.Generator, scenes: Scenes, row: int, cell: int) -> str:
    """ "the red circle", at times with its size, at times by shape alone where that is enough."""
    size, colour, shape = (a[row, cell] for a in (scenes.size, scenes.colour, scenes.shape))
    style = rng.random()
    if style < 0.15:
        return f"the {SIZES[size]} {_COLOURS[colour]} {SHAPES[shape]}"
    if style < 0.3 and np.sum(scenes.shape[row] == shape) == 1:
        return f"the {SHAPES[shape]}"
    return f"the {_COLOURS[colour]} {SHAPES[shape]}"


def describe(rng: np.random.Generator, scenes: Scenes, edits: Edits, row: int) -> tuple[str, ParsedEdit]:
    """An instruction for the edit in `row`, and its parsed truth."""
    kind = EDIT_TYPES[edits.edit_type[row]]
    cell = int(edits.cell[row])
    old = None if kind in ("add", "background") else _reference(rng, scenes, row, cell)
    words = f"{_COLOURS[edits.colour[row]]} {SHAPES[edits.shape[row]]}"
    place = PLACES[edits.to_cell[row]]
    size = "unchanged"
    if kind == "add" and edits.says_size[row]:
        words = f"{SIZES[edits.size[row]]} {words}"
    if kind == "resize":
        size = "bigger" if edits.size[row] > scenes.size[row, cell] else "smaller"
    says_place = kind == "move" or (kind == "add" and edits.says_place[row])
    templates = TEMPLATES[size if kind == "resize" else kind]
    text = templates[rng.integers(len(templates))].format(
        old=old,
        new=article(words),
        at=f" in the {place}" if says_place else "",
        colour=_COLOURS[edits.colour[row]],
        place=place,
        background=_BACKGROUNDS[edits.background[row]],
    )
    edited = {"remove": None, "background": f"{_BACKGROUNDS[edits.background[row]]} background"}.get(
        kind, words
    )
    original = "background" if kind == "background" else old and old.removeprefix("the ")
    return text, ParsedEdit(kind, original, edited, size, place if says_place else "unchanged")
