"""The exact judge of the shapes world: it recovers the scene from an image and rates it by the instruction.

For evaluation only. It knows the truth, so no training signal may come from it, and it is not a `Scorer`.

Method: every expected object is searched for in its place (an added or moved one in the whole image, one that
belongs inside another on that one). The share of each pixel that shows the object's colour is measured
between the known background and that colour; its area and centre give the object's size and place; the six
shapes, drawn at that size and place, are compared with it. Pixels that no object explains are damage to the
background.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.data.worlds import Rating
from rewardedit.shapes.alignment import alignment_of
from rewardedit.shapes.perception import Percept, draws, old_objects, perceive
from rewardedit.shapes.recover import background_damage, cover, in_place, ramp
from rewardedit.shapes.scenes import CELLS, OBJECT_FIELDS, Edits, Scenes, concatenate, without_edited
from rewardedit.shapes.sequences import ShapesSequence
from rewardedit.shapes.vocabulary import CELL, EDIT_TYPES, RADII, SIZE
from rewardedit.shapes.world import ShapesBatch

BATCH_SIZE = 256  # samples per batch


def _cells(cells: np.ndarray) -> Tensor:
    """(b, 64, 64): 1 on the squares of the grid that are True in `cells` (b, 9)."""
    line = ((torch.arange(SIZE) + 0.5) / CELL).long()
    return torch.from_numpy(cells).float()[:, line[:, None] * 3 + line[None]]


def _touched(edits: Edits) -> np.ndarray:
    """(b, 9), True for the cells whose objects an edit draws, changes or removes."""
    touched = np.zeros((len(edits), CELLS), dtype=bool)
    drawn = np.flatnonzero(~edits.is_type("background"))
    touched[drawn, edits.cell[drawn]] = True
    touched[drawn, edits.to_cell[drawn]] = True
    return touched


def _without_own_turn(turns: ShapesBatch, after: Scenes, touched: np.ndarray) -> Scenes:
    """The last scene of a sequence as it would be without the turn in each row."""
    before = after.copy()
    for name in OBJECT_FIELDS:
        getattr(before, name)[touched] = getattr(turns.before, name)[touched]
    repaints = turns.edits.edit_type == EDIT_TYPES.index("background")
    for name in ("background", "backdrop"):
        getattr(before, name)[repaints] = getattr(turns.before, name)[repaints]
    return before


def _rating(alignment: Tensor, consistency: Tensor, quality: Tensor) -> Rating:
    """Combines three aspects in [0, 1] into a rating."""
    score = alignment * (0.25 + 0.75 * consistency * quality)
    return Rating(score * 10, alignment * 10, consistency * 10, quality * 10)


class ShapesOracle:
    """Rates edits of the shapes world as a precise person would; see the module's docstring."""

    @torch.no_grad()
    def rate(self, samples: ShapesBatch, edited: Float[Tensor, "b 3 64 64"]) -> Rating:
        """Rates `edited` (RGB in [0, 1]) as edits of `samples`, 0–10 each; 0 for an image that is not finite,
        which is no edit.

        Raises:
            ValueError: if `edited` does not hold one 64×64 image for each sample.
        """
        if edited.shape != samples.source.shape:
            raise ValueError(
                f"edited: expected {tuple(samples.source.shape)}, one image a sample; got "
                f"{tuple(edited.shape)}"
            )
        has_edit = edited.isfinite().flatten(1).all(1)
        edited = edited.nan_to_num(0.0, 0.0, 0.0)
        ratings = []
        for first in range(0, len(samples), BATCH_SIZE):
            rows = slice(first, first + BATCH_SIZE)
            aspects = _aspects(samples.before[rows], samples.after[rows], samples.edits[rows], edited[rows])
            ratings.append(vars(_rating(*aspects)).values())
        return Rating(*(torch.cat(parts) * has_edit for parts in zip(*ratings, strict=True)))

    @torch.no_grad()
    def rate_sequences(self, sequences: list[ShapesSequence], edited: Float[Tensor, "b 3 64 64"]) -> Rating:
        """Rates `edited` as the last images of whole sequences: alignment, consistency and quality are each
        the mean over the turns, all judged in the last image.

        Raises:
            ValueError: if `edited` does not hold one 64×64 image for each sequence.
        """
        if edited.shape != (len(sequences), 3, SIZE, SIZE):
            raise ValueError(
                f"edited: expected {(len(sequences), 3, SIZE, SIZE)}, one image a sequence; got "
                f"{tuple(edited.shape)}"
            )

        means = []
        for one, image in zip(sequences, edited, strict=True):
            turns = one.turns
            n = len(turns)
            after = concatenate([turns.after[-1:]] * n)
            touched = _touched(turns.edits)
            elsewhere = np.stack([np.delete(touched, t, axis=0).any(0) for t in range(n)])
            repaints = turns.edits.is_type("background")
            aspects = _aspects(
                _without_own_turn(turns, after, touched),
                after,
                turns.edits,
                image.expand(n, -1, -1, -1),
                elsewhere,
                torch.from_numpy(repaints.any() & ~repaints),
            )
            means.append(torch.stack(list(map(torch.mean, aspects))))

        return _rating(*torch.stack(means).unbind(1))


def _aspects(
    before: Scenes,
    after: Scenes,
    edits: Edits,
    edited: Tensor,
    elsewhere: np.ndarray | None = None,
    repainted: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Alignment, consistency and quality, each (b,) in [0, 1].

    Args:
        elsewhere: (b, 9), True for cells that another turn changes.
        repainted: (b,), True if another turn changes the background.
    """
    keep = without_edited(after, edits).present
    counts = torch.from_numpy(keep if elsewhere is None else keep & ~elsewhere)
    percept = perceive(edited, before, after, edits, keep)
    alignment = alignment_of(percept, before, edits)

    spare = 1 - torch.maximum(cover(percept.kept, len(edits), 1.5), cover(percept.asked, len(edits), 1.5))
    spare *= 1 - old_objects(before, edits)  # remains of the old object count against alignment
    wanted = percept.wanted
    if elsewhere is not None and repainted is not None:
        spare *= 1 - _cells(elsewhere)
        wanted = torch.where(repainted[:, None, None, None], percept.background, wanted)

    damage, tint = background_damage(percept.image - wanted, spare)

    repaints = torch.from_numpy(edits.is_type("background"))
    ones = torch.ones(len(edits))
    intact = torch.where(repaints, ones, ramp(tint, 0.25, 0.06) / (1 + damage / 60))
    consistency = _survived(percept, after, keep, counts) ** 3 * intact
    quality = _clean(percept, edits, keep, counts)
    quality /= 1 + damage / torch.where(repaints, 900, 300)
    quality *= ramp(percept.grain, 0.23, 0.02) * ramp((percept.light - 1).abs(), 0.55, 0.03)
    quality *= torch.where(repaints, ramp(tint, 0.35, 0.03), ones)
    return alignment, consistency, quality


def _survived(percept: Percept, after: Scenes, keep: np.ndarray, counts: Tensor) -> Tensor:
    """(b,) in [0, 1]: how far the objects that count have kept their place and shape, on average."""
    row, cell, place, _, _ = in_place(after, keep)
    kept = percept.kept
    nominal = torch.tensor(RADII)[torch.from_numpy(after.size)[row, cell]]
    near = ramp((kept.centre - place).norm(dim=1), 9, 1.5)
    survived = kept.kept * near * ramp((kept.radius / nominal - 1).abs(), 0.3, 0.14)
    n = counts.sum(1)
    total = torch.zeros(len(n)).index_add_(0, kept.row, survived * counts[row, cell])
    return torch.where(n > 0, total / n.clamp_min(1), torch.ones(len(n)))


def _clean(percept: Percept, edits: Edits, keep: np.ndarray, counts: Tensor) -> Tensor:
    """(b,) in [0, 1]: the mean cleanness of the requested object and of those that count."""
    row, cell = map(torch.from_numpy, np.nonzero(keep))
    n = counts.sum(1) + torch.from_numpy(draws(edits))
    clean = torch.zeros(len(n)).index_add_(0, row, percept.kept.clean * counts[row, cell])
    clean = clean.index_add_(0, percept.asked.row, percept.asked.clean)
    return torch.where(n > 0, clean / n.clamp_min(1), torch.ones(len(n)))
