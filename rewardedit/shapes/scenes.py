"""Scenes and edits as arrays: the contents of images, and the changes that instructions make."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from rewardedit.shapes.vocabulary import (
    BACKDROPS,
    BACKGROUNDS,
    CELL,
    COLOURS,
    DIRECTIONS,
    EDIT_TYPES,
    HOSTS,
    INSIDE,
    JITTER,
    RELATIONS,
    SHAPES,
    SIZES,
    TEXTURES,
)

CELLS = 9
EMPTY = -1
CENTRES = np.array([[(c % 3 + 0.5) * CELL, (c // 3 + 0.5) * CELL] for c in range(CELLS)], dtype=np.float32)
OBJECT_FIELDS = ("shape", "colour", "size", "offset", "inner_shape", "inner_colour")  # (b, 9) of `Scenes`
HOST_SHAPES = list(map(SHAPES.index, HOSTS))
# Shares of the ways in which an instruction gives the place of an added object, and of a moved one.
ADD_PLACES = {"nowhere": 0.25, "place": 0.40, "relation": 0.35}
MOVE_PLACES = {"place": 0.50, "relation": 0.25, "direction": 0.25}


@dataclass(frozen=True)
class Scenes:
    """b scenes of at most nine objects, one in each cell of a 3 × 3 grid (reading order).

    A large circle, square or diamond may hold a further, tiny object inside it.
    """

    shape: np.ndarray  # (b, 9) index into SHAPES, EMPTY where the cell holds nothing
    colour: np.ndarray  # (b, 9) index into COLOURS
    size: np.ndarray  # (b, 9) index into SIZES
    offset: np.ndarray  # (b, 9, 2) centre minus the cell's centre, (x, y) in pixels
    inner_shape: np.ndarray  # (b, 9) shape of the object inside the cell's own; EMPTY if there is none
    inner_colour: np.ndarray  # (b, 9)
    backdrop: np.ndarray  # (b,) index into BACKDROPS
    background: np.ndarray  # (b,) index into BACKGROUNDS (the base colour of a texture)
    texture: np.ndarray  # (b,) index into TEXTURES
    backdrop_seed: np.ndarray  # (b,) picks a photograph and its crop, or a texture's phase

    def __len__(self) -> int:
        return len(self.backdrop)

    def __getitem__(self, index) -> "Scenes":
        return Scenes(*(getattr(self, field.name)[index] for field in fields(self)))

    @property
    def present(self) -> np.ndarray:
        """(b, 9), True where a cell holds an object."""
        return self.shape != EMPTY

    @property
    def has_inner(self) -> np.ndarray:
        """(b, 9), True where a cell's object has another inside it."""
        return self.inner_shape != EMPTY

    def copy(self) -> "Scenes":
        """A copy of the scenes with arrays of its own."""
        return Scenes(*(getattr(self, field.name).copy() for field in fields(self)))


@dataclass(frozen=True)
class Edits:
    """b edits. `cell` is the object's cell before the edit (for "add": its new cell),
    `to_cell` its cell afterwards.
    """

    edit_type: np.ndarray  # (b,) index into EDIT_TYPES
    cell: np.ndarray  # (b,)
    to_cell: np.ndarray  # (b,) differs from `cell` for "move" only
    shape: np.ndarray  # (b,) the object's attributes after the edit
    colour: np.ndarray
    size: np.ndarray
    background: np.ndarray  # (b,) the new background colour, for "background"
    says_size: np.ndarray  # (b,) bool: an "add" that names its size
    says_place: np.ndarray  # (b,) bool: an "add" or "move" that names a place in the image
    relation: np.ndarray  # (b,) index into RELATIONS for an "add" or "move" that names one; else -1
    reference: np.ndarray  # (b,) cell of the reference object; -1: none, or the object's own old place

    def __len__(self) -> int:
        return len(self.edit_type)

    def __getitem__(self, index) -> "Edits":
        return Edits(*(getattr(self, field.name)[index] for field in fields(self)))

    def is_type(self, *names: str) -> np.ndarray:
        """(b,) True for edits of one of these types."""
        return np.isin(self.edit_type, edit_types(names))

    @property
    def inside(self) -> np.ndarray:
        """(b,) True where the object is put inside another."""
        return self.relation == INSIDE


def edit_types(names: Iterable[str]) -> np.ndarray:
    """Indices of edit types."""
    return np.array(list(map(EDIT_TYPES.index, names)))


def concatenate(items):
    """Joins several `Scenes`, or several `Edits`, into one."""
    columns = zip(*(vars(item).values() for item in items), strict=True)
    return type(items[0])(*map(np.concatenate, columns))


def choose(first: np.ndarray, one: Scenes, other: Scenes) -> Scenes:
    """The scenes of `one` in rows where `first` (b,) is True, else those of `other`."""
    values = {}
    for name, value in vars(one).items():
        rows = first.reshape(-1, *(1,) * (value.ndim - 1))
        values[name] = np.where(rows, value, getattr(other, name))
    return Scenes(**values)


def pick(rng: np.random.Generator, allowed: np.ndarray) -> np.ndarray:
    """Draws uniformly a True column of each row of `allowed` (b, n)."""
    return np.argmax(np.where(allowed, rng.random(allowed.shape), -1.0), axis=1)


def _related_cells(strictly: bool) -> np.ndarray:
    """(relations, 9, 9): True where the second cell lies in that relation to the first.

    Strictly, "left" requires the same row; loosely, it requires a distance to the left at least as large as
    that up or down.
    """
    column = np.arange(CELLS) % 3
    row = np.arange(CELLS) // 3
    right = column[None] - column[:, None]
    down = row[None] - row[:, None]
    left_of = (right < 0) & ((down == 0) if strictly else (abs(down) <= abs(right)))
    above = (down < 0) & ((right == 0) if strictly else (abs(right) <= abs(down)))
    near = np.maximum(abs(right), abs(down)) == 1
    related = {"left": left_of, "right": left_of.T, "up": above, "down": above.T, "near": near}
    itself = np.eye(CELLS, dtype=bool)
    return np.stack([related.get(name, itself) for name in RELATIONS])


RELATED_CELLS = _related_cells(strictly=True)  # cells in which an object is put
LOOSELY_RELATED_CELLS = _related_cells(strictly=False)  # cells that a person would accept


def sample_scenes(rng: np.random.Generator, count: np.ndarray, backdrops: tuple[str, ...]) -> Scenes:
    """Scenes with `count` (b,) objects each; no two objects of a scene share both colour and shape."""
    b = len(count)
    pairs = np.argsort(rng.random((b, len(SHAPES) * len(COLOURS))), axis=1)[:, :CELLS]
    order = np.argsort(np.argsort(rng.random((b, CELLS)), axis=1), axis=1)
    size = rng.integers(len(SIZES), size=(b, CELLS))
    offset = rng.uniform(-1, 1, (b, CELLS, 2)) * np.array(JITTER)[size][..., None]
    kinds = np.array(list(map(BACKDROPS.index, backdrops)))
    return Scenes(
        shape=np.where(order < count[:, None], pairs % len(SHAPES), EMPTY),
        colour=pairs // len(SHAPES),
        size=size,
        offset=offset.astype(np.float32),
        inner_shape=np.full((b, CELLS), EMPTY),
        inner_colour=np.zeros((b, CELLS), dtype=int),
        backdrop=kinds[rng.integers(len(kinds), size=b)],
        background=rng.integers(len(BACKGROUNDS), size=b),
        texture=rng.integers(len(TEXTURES), size=b),
        backdrop_seed=rng.integers(2**31, size=b),
    )


def sample_edits(
    rng: np.random.Generator, scenes: Scenes, kind: np.ndarray, blocked: np.ndarray | None = None
) -> Edits:
    """One edit of the given `kind` (b,) for each scene.

    Args:
        blocked: (b, 9), True for cells that the edit may neither change nor refer to.

    Raises:
        ValueError: if a scene is too full to add to or to move in, or holds nothing to edit.
    """
    b = len(scenes)
    rows = np.arange(b)
    is_kind = {name: kind == i for i, name in enumerate(EDIT_TYPES)}
    usable = np.ones((b, CELLS), dtype=bool) if blocked is None else ~blocked
    empty = ~scenes.present & usable

    # A host of another object is not edited: "the red circle" with a star inside is ambiguous.
    editable = scenes.present & usable & ~scenes.has_inner
    if np.any(~empty.any(1) & (is_kind["add"] | is_kind["move"])):
        raise ValueError("a scene with nine objects has no free cell to add to or move to")
    if np.any(~editable.any(1) & ~(is_kind["add"] | is_kind["background"])):
        raise ValueError("a scene without objects can only be added to or given a background")

    some = pick(rng, editable)
    free, says_place, relation, reference = _sample_places(rng, scenes, is_kind, some, empty, usable)
    inside = relation == INSIDE
    cell = np.where(is_kind["add"], free, some)
    shape = scenes.shape[rows, cell]
    colour = scenes.colour[rows, cell]
    size = scenes.size[rows, cell]
    pair = _sample_pairs(rng, scenes, is_kind, shape, colour, np.where(inside, colour, EMPTY))
    renewed = is_kind["add"] | is_kind["replace"] | is_kind["recolour"]
    says_size = (rng.random(b) < 0.6) & ~inside
    added_size = np.where(says_size, rng.integers(len(SIZES), size=b), 1)
    grows = np.where(size == 0, True, np.where(size == 2, False, rng.random(b) < 0.5))
    resized = np.where(is_kind["resize"], size + np.where(grows, 1, -1), size)
    return Edits(
        edit_type=kind,
        cell=cell,
        to_cell=np.where(is_kind["move"], free, cell),
        shape=np.where(renewed, pair % len(SHAPES), shape),
        colour=np.where(renewed, pair // len(SHAPES), colour),
        size=np.where(is_kind["add"], added_size, resized),
        background=(scenes.background + rng.integers(1, len(BACKGROUNDS), size=b)) % len(BACKGROUNDS),
        says_size=says_size & is_kind["add"],
        says_place=says_place,
        relation=relation,
        reference=reference,
    )


def _sample_places(
    rng: np.random.Generator,
    scenes: Scenes,
    is_kind: dict[str, np.ndarray],
    some: np.ndarray,
    empty: np.ndarray,
    usable: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draws the place of an added or moved object and its description in the instruction: cell, says_place,
    relation and reference, each (b,).

    If the scene has no room for a relation, a place in the image is used instead.
    """
    b = len(scenes)
    rows = np.arange(b)
    u = rng.random(b)
    adds = is_kind["add"]
    moves = is_kind["move"]
    nowhere = adds & (u < ADD_PLACES["nowhere"])
    relates = (adds & (u >= 1 - ADD_PLACES["relation"])) | (moves & (u < MOVE_PLACES["relation"]))
    shifts = moves & (u >= 1 - MOVE_PLACES["direction"])

    # (b, relations, reference, cell): True if the edit is possible. A moved object is no reference for
    # itself, and must not already have the requested relation.
    itself = np.arange(CELLS)[None] == some[:, None]
    reference = scenes.present & usable & ~(moves[:, None] & itself)
    possible = RELATED_CELLS[None] & reference[:, None, :, None] & empty[:, None, None, :]
    already = LOOSELY_RELATED_CELLS[:, :, some].transpose(2, 0, 1) & moves[:, None, None]
    possible &= ~already[..., None]
    host = np.isin(scenes.shape, HOST_SHAPES) & (scenes.size == len(SIZES) - 1)
    host = host & usable & ~scenes.has_inner & adds[:, None]
    possible[:, INSIDE] = np.eye(CELLS, dtype=bool)[None] & host[:, :, None]

    # A direction is a relation to the object's own place.
    shiftable = (RELATED_CELLS[:, some].swapaxes(0, 1) & empty[:, None]) & (
        np.arange(len(RELATIONS)) < DIRECTIONS
    )[None, :, None]
    possible = np.where(
        shifts[:, None, None, None], shiftable[:, :, None, :] & itself[:, None, :, None], possible
    )

    feasible = possible.any((2, 3))
    relative = (relates | shifts) & feasible.any(1)
    relation = pick(rng, feasible)
    pair = pick(rng, possible[rows, relation].reshape(b, -1))
    cell = np.where(relative, pair % CELLS, pick(rng, empty))
    return (
        cell,
        (adds | moves) & ~relative & ~nowhere,
        np.where(relative, relation, -1),
        np.where(relative & ~shifts, pair // CELLS, -1),
    )


def _sample_pairs(
    rng: np.random.Generator,
    scenes: Scenes,
    is_kind: dict[str, np.ndarray],
    shape: np.ndarray,
    colour: np.ndarray,
    avoid: np.ndarray,
) -> np.ndarray:
    """Draws a new colour × 6 + shape, (b,), that no object of the scene has: any for "add" (except in the
    colour `avoid`), another shape for "replace", the same shape for "recolour".
    """
    b = len(scenes)
    rows = np.arange(b)
    pairs = np.ones((b, len(COLOURS), len(SHAPES)), dtype=bool)
    for c in range(CELLS):
        here = scenes.present[:, c]
        pairs[rows[here], scenes.colour[here, c], scenes.shape[here, c]] = False
        here = scenes.has_inner[:, c]
        pairs[rows[here], scenes.inner_colour[here, c], scenes.inner_shape[here, c]] = False

    same_shape = np.arange(len(SHAPES))[None, None] == shape[:, None, None]
    same_colour = np.arange(len(COLOURS))[None, :, None] == colour[:, None, None]
    keeps_colour = is_kind["replace"] & (rng.random(b) < 0.5)
    pairs &= ~(is_kind["replace"][:, None, None] & same_shape)
    pairs &= ~(keeps_colour[:, None, None] & ~same_colour)
    pairs &= ~(is_kind["recolour"][:, None, None] & (~same_shape | same_colour))
    pairs &= np.arange(len(COLOURS))[None, :, None] != avoid[:, None, None]
    return pick(rng, pairs.reshape(b, -1))


def apply_edits(scenes: Scenes, edits: Edits) -> Scenes:
    """The scenes after the edits."""
    rows = np.arange(len(scenes))
    after = scenes.copy()
    gone = edits.is_type("remove", "move")
    after.shape[rows[gone], edits.cell[gone]] = EMPTY

    drawn = ~(edits.is_type("remove", "background") | edits.inside)
    at = rows[drawn], edits.to_cell[drawn]
    after.shape[at] = edits.shape[drawn]
    after.colour[at] = edits.colour[drawn]
    after.size[at] = edits.size[drawn]
    inner = rows[edits.inside], edits.to_cell[edits.inside]
    after.inner_shape[inner] = edits.shape[edits.inside]
    after.inner_colour[inner] = edits.colour[edits.inside]

    # A moved object keeps its offset; that of an added one is limited by its size.
    moved = edits.is_type("move")
    after.offset[rows[moved], edits.to_cell[moved]] = scenes.offset[rows[moved], edits.cell[moved]]
    added = edits.is_type("add") & ~edits.inside
    limit = np.array(JITTER)[edits.size[added]][:, None]
    after.offset[rows[added], edits.cell[added]] = np.clip(
        scenes.offset[rows[added], edits.cell[added]], -limit, limit
    )

    new = edits.is_type("background")
    after.background[new] = edits.background[new]
    after.backdrop[new] = BACKDROPS.index("plain")
    return after


def without_edited(after: Scenes, edits: Edits) -> Scenes:
    """The scenes `after` the edits, without the objects that the edits drew or changed."""
    others = after.copy()
    drawn = ~edits.is_type("background") & ~edits.inside
    others.shape[np.flatnonzero(drawn), edits.to_cell[drawn]] = EMPTY
    others.inner_shape[np.flatnonzero(edits.inside), edits.to_cell[edits.inside]] = EMPTY
    return others
