"""Scenes and edits as arrays: what is in an image, and what an instruction changes in it."""

from dataclasses import dataclass, fields, replace

import numpy as np

from rewardedit.data.shapes.vocabulary import (
    BACKDROPS,
    BACKGROUNDS,
    CELL,
    COLOURS,
    EDIT_TYPES,
    JITTER,
    SHAPES,
    SIZES,
    TEXTURES,
)

CELLS = 9
EMPTY = -1
CENTRES = np.array([[(c % 3 + 0.5) * CELL, (c // 3 + 0.5) * CELL] for c in range(CELLS)], dtype=np.float32)


@dataclass(frozen=True)
class Scenes:
    """b scenes of at most nine objects, one in each cell of a 3 × 3 grid (reading order)."""

    shape: np.ndarray  # (b, 9) index into SHAPES, EMPTY where the cell holds nothing
    colour: np.ndarray  # (b, 9) index into COLOURS
    size: np.ndarray  # (b, 9) index into SIZES
    offset: np.ndarray  # (b, 9, 2) centre minus the cell's centre, (x, y) in pixels
    backdrop: np.ndarray  # (b,) index into BACKDROPS
    background: np.ndarray  # (b,) index into BACKGROUNDS (of a texture: its base colour)
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


@dataclass(frozen=True)
class Edits:
    """b edits. `cell` is where the object was (for "add": where it comes),
    `to_cell` where it is afterwards.
    """

    edit_type: np.ndarray  # (b,) index into EDIT_TYPES
    cell: np.ndarray  # (b,)
    to_cell: np.ndarray  # (b,) differs from `cell` for "move" only
    shape: np.ndarray  # (b,) the object's attributes after the edit
    colour: np.ndarray
    size: np.ndarray
    background: np.ndarray  # (b,) the new background colour, for "background"
    says_size: np.ndarray  # (b,) bool: an "add" that names its size
    says_place: np.ndarray  # (b,) bool: an "add" that names its place

    def __len__(self) -> int:
        return len(self.edit_type)

    def __getitem__(self, index) -> "Edits":
        return Edits(*(getattr(self, field.name)[index] for field in fields(self)))


def concatenate(items):
    """One `Scenes` or `Edits` out of several of the same class."""
    return type(items[0])(*(np.concatenate([getattr(i, f.name) for i in items]) for f in fields(items[0])))


def pick(rng: np.random.Generator, allowed: np.ndarray) -> np.ndarray:
    """(b,) a uniformly drawn True column of each row of `allowed` (b, n)."""
    return np.argmax(np.where(allowed, rng.random(allowed.shape), -1.0), axis=1)


def sample_scenes(rng: np.random.Generator, count: np.ndarray, backdrops: tuple[str, ...]) -> Scenes:
    """Scenes with `count` (b,) objects each; no two objects of a scene share both colour and shape."""
    b = len(count)
    pairs = np.argsort(rng.random((b, len(SHAPES) * len(COLOURS))), axis=1)[:, :CELLS]
    order = np.argsort(np.argsort(rng.random((b, CELLS)), axis=1), axis=1)
    size = rng.integers(len(SIZES), size=(b, CELLS))
    offset = rng.uniform(-1, 1, (b, CELLS, 2)) * np.array(JITTER)[size][..., None]
    kinds = np.array([BACKDROPS.index(name) for name in backdrops])
    return Scenes(
        shape=np.where(order < count[:, None], pairs % len(SHAPES), EMPTY),
        colour=pairs // len(SHAPES),
        size=size,
        offset=offset.astype(np.float32),
        backdrop=kinds[rng.integers(len(kinds), size=b)],
        background=rng.integers(len(BACKGROUNDS), size=b),
        texture=rng.integers(len(TEXTURES), size=b),
        backdrop_seed=rng.integers(2**31, size=b),
    )


def sample_edits(rng: np.random.Generator, scenes: Scenes, kind: np.ndarray) -> Edits:
    """One edit of the given `kind` (b,) for each scene.

    Raises:
        ValueError: where a scene is too full to add to or to move in, or holds nothing to edit.
    """
    b = len(scenes)
    rows = np.arange(len(scenes))
    is_kind = {name: kind == i for i, name in enumerate(EDIT_TYPES)}
    objects = scenes.present.sum(1)
    if np.any((objects == CELLS) & (is_kind["add"] | is_kind["move"])):
        raise ValueError("a scene with nine objects has no free cell to add to or move to")
    if np.any((objects == 0) & ~(is_kind["add"] | is_kind["background"])):
        raise ValueError("a scene without objects can only be added to or given a background")
    free = pick(rng, ~scenes.present)
    some = pick(rng, scenes.present)
    cell = np.where(is_kind["add"], free, some)
    shape, colour, size = (a[rows, cell] for a in (scenes.shape, scenes.colour, scenes.size))
    # A new (colour, shape) pair that no object of the scene has: taken for add, replace (another shape),
    # recolour.
    pairs = np.ones((b, len(COLOURS), len(SHAPES)), dtype=bool)
    for c in range(CELLS):
        here = scenes.present[:, c]
        pairs[rows[here], scenes.colour[here, c], scenes.shape[here, c]] = False
    same_shape = np.arange(len(SHAPES))[None, None] == shape[:, None, None]
    same_colour = np.arange(len(COLOURS))[None, :, None] == colour[:, None, None]
    keeps_colour = is_kind["replace"] & (rng.random(b) < 0.5)
    pairs &= ~(is_kind["replace"][:, None, None] & same_shape)
    pairs &= ~(keeps_colour[:, None, None] & ~same_colour)
    pairs &= ~(is_kind["recolour"][:, None, None] & (~same_shape | same_colour))
    pair = pick(rng, pairs.reshape(b, -1))
    renewed = is_kind["add"] | is_kind["replace"] | is_kind["recolour"]
    says_size = rng.random(b) < 0.6
    added_size = np.where(says_size, rng.integers(len(SIZES), size=b), 1)
    grows = np.where(size == 0, True, np.where(size == 2, False, rng.random(b) < 0.5))
    return Edits(
        edit_type=kind,
        cell=cell,
        to_cell=np.where(is_kind["move"], free, cell),
        shape=np.where(renewed, pair % len(SHAPES), shape),
        colour=np.where(renewed, pair // len(SHAPES), colour),
        size=np.where(
            is_kind["add"], added_size, np.where(is_kind["resize"], size + np.where(grows, 1, -1), size)
        ),
        background=(scenes.background + rng.integers(1, len(BACKGROUNDS), size=b)) % len(BACKGROUNDS),
        says_size=says_size,
        says_place=rng.random(b) < 0.75,
    )


def apply_edits(scenes: Scenes, edits: Edits) -> Scenes:
    """The scenes after the edits."""
    rows = np.arange(len(scenes))
    is_kind = {name: edits.edit_type == i for i, name in enumerate(EDIT_TYPES)}
    after = replace(scenes, **{f.name: getattr(scenes, f.name).copy() for f in fields(scenes)})
    gone = is_kind["remove"] | is_kind["move"]
    after.shape[rows[gone], edits.cell[gone]] = EMPTY
    drawn = ~(is_kind["remove"] | is_kind["background"])
    at = rows[drawn], edits.to_cell[drawn]
    after.shape[at], after.colour[at], after.size[at] = (
        edits.shape[drawn],
        edits.colour[drawn],
        edits.size[drawn],
    )
    # A moved object keeps its offset; an added one may lie only as far off centre as its size allows.
    moved = is_kind["move"]
    after.offset[rows[moved], edits.to_cell[moved]] = scenes.offset[rows[moved], edits.cell[moved]]
    added = is_kind["add"]
    limit = np.array(JITTER)[edits.size[added]][:, None]
    after.offset[rows[added], edits.cell[added]] = np.clip(
        scenes.offset[rows[added], edits.cell[added]], -limit, limit
    )
    new = is_kind["background"]
    after.background[new], after.backdrop[new] = edits.background[new], BACKDROPS.index("plain")
    return after
