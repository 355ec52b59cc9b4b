"""Differences between rendered scenes, with exact boxes: training and test rows of DICE in the shapes world.

Differences are read off two scenes, cell by cell, so that they are known for whatever was made of a source.
A moved object is a REMOVE and an ADD; a resized, recoloured or replaced one is an EDIT with the box of both
states; a new background is an EDIT of the whole image. A row's kind is a name of `PAIR_KINDS`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.data.difference_rows import DifferenceRow
from rewardedit.diffusion.editors import Editor, load_editor
from rewardedit.regions.differences import WHOLE, Command, Difference
from rewardedit.shapes.corruptions import over_done, rows_of
from rewardedit.shapes.image_defects import add_artifacts
from rewardedit.shapes.oracle import ShapesOracle
from rewardedit.shapes.render import ORIGINS, object_coverage, render
from rewardedit.shapes.scenes import CELLS, Scenes, apply_edits, edit_types, sample_edits
from rewardedit.shapes.vocabulary import COLOURS, EDIT_TYPES, JITTER, SHAPES, SIZE
from rewardedit.shapes.world import BLOCK, Shapes, ShapesBatch, mask_boxes
from rewardedit.stages.lazy import Lazy
from rewardedit.synthesis.distance_to_target import unedited

Boxes = Literal["union", "edited"]
PAIR_KINDS = ("similar", "untouched", "one", "two", "three", "over_done", "drift", "traces")
DEFAULT_PAIRS = {
    "untouched": 0.10,
    "one": 0.20,
    "two": 0.18,
    "three": 0.12,
    "over_done": 0.10,
    "drift": 0.15,
    "traces": 0.15,
}
# Kinds of pairs that are hard: several differences, an unrequested one, and changes that are no difference.
HARD_PAIRS = {"two": 0.2, "three": 0.2, "over_done": 0.2, "drift": 0.2, "traces": 0.2}
MOST = 3  # differences of a pair, except of similar scenes
BACKGROUND = "background"  # subject of the difference that covers the whole image
NAMING: dict[Command, str] = {
    "ADD": "add a {}",
    "REMOVE": "remove the {}",
    "EDIT": "make the {} bigger",
}
EDITOR = "shapes/editor"  # whose autoencoder leaves the traces
CERTAIN = 9.0  # least rating of each aspect, of 10, at which an editor's output shows the target's scene


@dataclass(frozen=True)
class Change:
    """A difference of two scenes, and the state of the cell after it."""

    place: tuple[int, bool]  # cell, and True for the object inside another; (-1, False): the background
    after: tuple[int, ...]  # shape, colour and size; empty if the object is gone
    difference: Difference


def scene_changes(before: Scenes, after: Scenes, boxes: Boxes = "union") -> list[list[Change]]:
    """All changes from each scene to the one after it, the background's first, then in reading order.

    Args:
        boxes: box of a changed object: around both of its states, or around the one in the edited image.
    """
    changes: list[list[Change]] = [[] for _ in range(len(before))]
    for row in np.flatnonzero(_other_background(before, after)):
        new = (int(after.background[row]), int(after.backdrop[row]))
        changes[row].append(Change((-1, False), new, Difference("EDIT", BACKGROUND, WHOLE)))

    for inner in (False, True):
        olds, old_boxes = _states(before, inner), object_boxes(before, inner)
        news, new_boxes = _states(after, inner), object_boxes(after, inner)
        differs = (olds != news).any(2)
        for row, cell in zip(*np.nonzero(differs), strict=True):
            old, new = tuple(map(int, olds[row, cell])), tuple(map(int, news[row, cell]))
            difference = _difference(old, new, old_boxes[row, cell], new_boxes[row, cell], boxes)
            changes[row].append(Change((int(cell), inner), new if new[0] >= 0 else (), difference))
    for row_changes in changes:
        row_changes.sort(key=lambda change: change.place)
    return changes


def scene_differences(before: Scenes, after: Scenes, boxes: Boxes = "union") -> list[tuple[Difference, ...]]:
    """The differences of `scene_changes`, for each pair of scenes."""
    differences = []
    for changes in scene_changes(before, after, boxes):
        differences.append(tuple(change.difference for change in changes))
    return differences


def _other_background(before: Scenes, after: Scenes) -> np.ndarray:
    return (before.background != after.background) | (before.backdrop != after.backdrop)


def _states(scenes: Scenes, inner: bool) -> np.ndarray:
    """(b, 9, 3) shape, colour and size of each cell's object, −1 where there is none; an object inside
    another has one size.
    """
    shape = scenes.inner_shape if inner else scenes.shape
    colour = scenes.inner_colour if inner else scenes.colour
    size = np.zeros_like(scenes.size) if inner else scenes.size
    return np.where((shape >= 0)[..., None], np.stack([shape, colour, size], 2), -1)


def object_boxes(scenes: Scenes, inner: bool = False) -> Float[np.ndarray, "b 9 4"]:
    """Boxes around the pixels that each cell's object touches, in shares of the image; zeros without one."""
    boxes = np.zeros((len(scenes), CELLS, 4))
    for cell, rows, alpha in object_coverage(scenes, inner):
        if len(rows):
            boxes[rows, cell] = (mask_boxes(alpha[:, None]) + torch.tensor(ORIGINS[cell]).repeat(2)).numpy()
    return boxes / SIZE


def _difference(old: tuple, new: tuple, old_box: np.ndarray, new_box: np.ndarray, boxes: Boxes) -> Difference:
    command: Command = "EDIT"
    state, box = old, new_box
    if old[0] < 0:
        command, state = "ADD", new
    elif new[0] < 0:
        command, box = "REMOVE", old_box
    elif boxes == "union":
        box = np.concatenate([np.minimum(old_box, new_box)[:2], np.maximum(old_box, new_box)[2:]])
    x0, y0, x1, y1 = map(float, box)
    return Difference(command, _name(state), (x0, y0, x1, y1))


def _name(state: tuple) -> str:
    return f"{tuple(COLOURS)[state[1]]} {SHAPES[state[0]]}"


def edited_scenes(rng: np.random.Generator, before: Scenes, count: np.ndarray) -> Scenes:
    """The scenes after so many random differences (b,), none of which touches another's cell; a move is two.

    A new background is drawn at most once.
    """
    after = before.copy()
    blocked = np.zeros((len(before), CELLS), dtype=bool)
    left = count.copy()
    recoloured = np.zeros(len(before), dtype=bool)
    for _ in range(int(count.max(initial=0))):
        rows = np.flatnonzero(left > 0)
        if not len(rows):
            break
        scenes = after[rows]
        able = (scenes.present & ~blocked[rows] & ~scenes.has_inner).any(1)
        kind = edit_types(EDIT_TYPES)[rng.integers(len(EDIT_TYPES), size=len(rows))]
        kind = np.where(
            (kind == EDIT_TYPES.index("move")) & (left[rows] < 2), EDIT_TYPES.index("remove"), kind
        )
        ground = kind == EDIT_TYPES.index("background")
        kind = np.where(ground & recoloured[rows], EDIT_TYPES.index("recolour"), kind)
        kind = np.where(able | (kind == EDIT_TYPES.index("background")), kind, EDIT_TYPES.index("add"))
        edits = sample_edits(rng, scenes, kind, blocked[rows])
        _put(after, rows, apply_edits(scenes, edits))

        ground = edits.is_type("background")
        recoloured[rows] |= ground
        for cells in (edits.cell, edits.to_cell):
            blocked[rows[~ground], cells[~ground]] = True
        left[rows] -= 1 + edits.is_type("move")
    return after


def _put(scenes: Scenes, rows: np.ndarray, values: Scenes) -> None:
    for name, value in vars(values).items():
        getattr(scenes, name)[rows] = value


def shifted(rng: np.random.Generator, scenes: Scenes) -> Scenes:
    """The scenes with every object elsewhere in its cell and on another part of its backdrop: similar, as two
    photographs of one place are.
    """
    moved = scenes.copy()
    limit = np.array(JITTER)[scenes.size][..., None]
    moved.offset[:] = (rng.uniform(-1, 1, moved.offset.shape) * limit).astype(np.float32)
    moved.backdrop_seed[:] = rng.integers(2**31, size=len(scenes))
    return moved


class ShapesDifferences(Sequence):
    """n rows of source, edited image and all differences between them.

    Args:
        shares: share of each kind of pair, of PAIR_KINDS.

    Raises:
        ValueError: if a share is negative or names no kind, or the shares do not sum to 1.
    """

    def __init__(
        self, n: int, world: Shapes, shares: dict[str, float], first: int = 0, boxes: Boxes = "union"
    ) -> None:
        if (
            not set(shares) <= set(PAIR_KINDS)
            or min(shares.values()) < 0
            or abs(sum(shares.values()) - 1) > 1e-6
        ):
            raise ValueError(
                f"shares: expected shares of {', '.join(PAIR_KINDS)} that sum to 1; got {shares}"
            )
        self.n = n
        self.world = world
        self.shares = shares
        self.first = first
        self.boxes: Boxes = boxes
        self.editor = Lazy(load_traces_editor)
        self._block = lru_cache(maxsize=4)(self._make)

    def __getstate__(self) -> dict:
        return {name: value for name, value in vars(self).items() if name != "_block"}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self._block = lru_cache(maxsize=4)(self._make)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> DifferenceRow:  # type: ignore[override]
        if not 0 <= index < self.n:
            raise IndexError(index)
        block, at = divmod(self.first + index, BLOCK)
        return self._block(block)[at]

    def kind(self, index: int) -> str:
        """Kind of a pair, for tables of results."""
        return self[index].id.rpartition("-")[2]

    def _make(self, block: int) -> list[DifferenceRow]:
        samples = self.world.batch(block * BLOCK, BLOCK)
        rng = self.world.rng(block, 0, 0, 3)
        chosen = rng.choice(len(self.shares), size=BLOCK, p=list(self.shares.values()))
        kinds = np.array(list(self.shares))[chosen]
        before, after = samples.before, samples.before.copy()
        for kind in self.shares:
            places = np.flatnonzero(kinds == kind)
            if len(places):
                _put(after, places, pair_scenes(kind, rng, rows_of(samples, places)))

        images = render(after)
        if "drift" in kinds:
            images[kinds == "drift"] = drifted(images[kinds == "drift"], rng)
        if "traces" in kinds:
            editor = self.editor()
            images[kinds == "traces"] = editor.family.reconstruct(editor.pipe, images[kinds == "traces"])
        differences = scene_differences(before, after, self.boxes)
        rows: list[DifferenceRow] = []
        for i, (name, kind) in enumerate(zip(samples.id, kinds, strict=True)):
            instruction = naming(differences[i]) or samples.instruction[i]
            pair = samples.source[i], images[i]
            rows.append(DifferenceRow(f"{name}-{kind}", *pair, differences[i], instruction))
        return rows


def naming(differences: Sequence[Difference]) -> str | None:
    """An instruction that names the object of the first difference, which detectors without a model may read;
    None if there is no object.
    """
    first = next((one for one in differences if one.subject != BACKGROUND), None)
    return None if first is None else NAMING[first.command].format(first.subject)


def pair_scenes(kind: str, rng: np.random.Generator, samples: ShapesBatch) -> Scenes:
    """The scenes of the edited images of one kind of pair, before drift or traces."""
    before = samples.before
    if kind == "untouched":
        return before
    if kind == "over_done":
        scenes = over_done(samples, rng).scenes
        assert scenes is not None
        return scenes
    if kind == "similar":
        return shifted(rng, edited_scenes(rng, before, rng.integers(1, MOST + 2, len(before))))
    counts = {"one": (1, 2), "two": (2, 3), "three": (3, 4)}
    low, high = counts.get(kind, (0, MOST + 1))
    return edited_scenes(rng, before, rng.integers(low, high, len(before)))


def drifted(images: Float[Tensor, "b 3 64 64"], rng: np.random.Generator) -> Float[Tensor, "b 3 64 64"]:
    """Images with blur, noise and colour shifts of the whole, which are no difference of objects."""
    return add_artifacts(images, torch.Generator().manual_seed(int(rng.integers(2**31))))


def load_traces_editor() -> Editor:
    """The editor whose autoencoder leaves its traces in an image."""
    return load_editor(EDITOR, device="cpu")


def certain_outputs(samples: ShapesBatch, edited: Float[Tensor, "b 3 64 64"]) -> list[DifferenceRow | None]:
    """An editor's outputs with their differences, where these are certain: the output shows the target's
    scene (all three aspects of the oracle are at least 9), or the source; else None.
    """
    rating = ShapesOracle().rate(samples, edited)
    right = (torch.stack([rating.alignment, rating.consistency, rating.quality]) >= CERTAIN).all(0).tolist()
    same = unedited(samples.source, samples.target, edited)
    wanted = scene_differences(samples.before, samples.after)
    rows: list[DifferenceRow | None] = []
    for i, name in enumerate(samples.id):
        row = None
        if right[i] or same[i]:
            differences = wanted[i] if right[i] else ()
            row = DifferenceRow(name, samples.source[i], edited[i], differences, samples.instruction[i])
        rows.append(row)
    return rows
