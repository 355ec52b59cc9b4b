"""The exact judge of the shapes world: it recovers the scene from an image and rates it by the instruction.

For evaluation only. It knows the truth, so no training signal may come from it, and it is not a `Scorer`.

How it looks at an image: every object that should be there is searched for in its place (an added or moved
one all over the image, one that belongs inside another on that one). The share of each pixel that shows the
object's colour is measured between the known background and that colour; its area and centre give the
object's size and place; the six shapes, drawn at that size and place, are compared with it. What no object
explains is damage to the background.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.data.shapes.recover import (
    Objects,
    background_damage,
    better,
    brightness,
    colour_share,
    cover,
    draw,
    fill_hosts,
    fine_noise,
    grid,
    in_place,
    patch,
    ramp,
    recover,
    search,
    seen_background,
)
from rewardedit.data.shapes.render import OBJECT_RGB, ORIGINS, object_masks, paint, render_backgrounds
from rewardedit.data.shapes.scenes import (
    CELLS,
    CENTRES,
    EMPTY,
    OBJECT_FIELDS,
    Edits,
    Scenes,
    concatenate,
    without_edited,
)
from rewardedit.data.shapes.sequences import ShapesSequence
from rewardedit.data.shapes.vocabulary import CELL, EDIT_TYPES, RADII, SIZE
from rewardedit.data.shapes.world import ShapesBatch

AT_ONCE = 256  # samples


@dataclass(frozen=True)
class Rating:
    """Four ratings of b edits, each (b,) in [0, 10], higher is better.

    score = alignment × (0.25 + 0.75 × consistency / 10 × quality / 10).
    """

    score: Float[Tensor, " b"]
    alignment: Float[Tensor, " b"]  # the asked change, seen in the image
    consistency: Float[Tensor, " b"]  # the rest of the scene survived
    quality: Float[Tensor, " b"]  # objects are clean and whole, the background is clean


def _cells(cells: np.ndarray) -> Tensor:
    """(b, 64, 64): 1 on the squares of the grid that are True in `cells` (b, 9)."""
    line = ((torch.arange(SIZE) + 0.5) / CELL).long()
    return torch.from_numpy(cells).float()[:, line[:, None] * 3 + line[None]]


def _touched(edits: Edits) -> np.ndarray:
    """(b, 9), True for the cells whose objects an edit draws, changes or takes away."""
    touched = np.zeros((len(edits), CELLS), dtype=bool)
    drawn = np.flatnonzero(edits.edit_type != EDIT_TYPES.index("background"))
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
    """The rating that three aspects in [0, 1] make."""
    score = alignment * (0.25 + 0.75 * consistency * quality)
    return Rating(score * 10, alignment * 10, consistency * 10, quality * 10)


class ShapesOracle:
    """Rates edits of the shapes world as an exact person would; the module's docstring says how."""

    @torch.no_grad()
    def rate(self, samples: ShapesBatch, edited: Float[Tensor, "b 3 64 64"]) -> Rating:
        """Ratings of `edited` (RGB in [0, 1]) as edits of `samples`, 0–10 each.

        Raises:
            ValueError: if `edited` does not hold one 64×64 image for each sample.
        """
        if edited.shape != samples.source.shape:
            raise ValueError(
                f"edited: expected {tuple(samples.source.shape)}, one image a sample; got "
                f"{tuple(edited.shape)}"
            )
        ratings = [
            _rating(
                *self._aspects(samples.before[part], samples.after[part], samples.edits[part], edited[part])
            )
            for part in (slice(i, i + AT_ONCE) for i in range(0, len(samples), AT_ONCE))
        ]
        names = [field.name for field in fields(Rating)]
        return Rating(*(torch.cat([getattr(r, name) for r in ratings]) for name in names))

    @torch.no_grad()
    def rate_sequences(self, sequences: list[ShapesSequence], edited: Float[Tensor, "b 3 64 64"]) -> Rating:
        """Ratings of `edited` as the last images of whole sequences: the alignment is the mean over the
        turns, each seen in the last image, and so are consistency and quality.

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
            repaints = turns.edits.edit_type == EDIT_TYPES.index("background")
            aspects = self._aspects(
                _without_own_turn(turns, after, touched),
                after,
                turns.edits,
                image.expand(n, -1, -1, -1),
                elsewhere,
                torch.from_numpy(repaints.any() & ~repaints),
            )
            means.append(torch.stack([aspect.mean() for aspect in aspects]))
        return _rating(*torch.stack(means).unbind(1))

    def _aspects(
        self,
        before: Scenes,
        after: Scenes,
        edits: Edits,
        edited: Tensor,
        elsewhere: np.ndarray | None = None,
        repainted: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Alignment, consistency and quality, each (b,) in [0, 1].

        Args:
            elsewhere: (b, 9), True for cells whose change is another turn's matter.
            repainted: (b,), True where the background's change is another turn's matter.
        """
        image = edited.detach().float().cpu().clamp(0, 1)
        b = len(image)
        wanted = render_backgrounds(after)
        # A person sees through a change of light and through grain; both cost quality, but hide nothing.
        light = brightness(image, wanted)
        image = image / light[:, None, None, None]
        smooth, grain = fine_noise(image - wanted)
        calm = torch.where((grain > 0.06)[:, None, None, None], smooth + wanted, image)
        background = seen_background(image, wanted)
        kind = {name: torch.from_numpy(edits.edit_type == i) for i, name in enumerate(EDIT_TYPES)}
        drawn = ~(kind["remove"] | kind["background"])
        keep = without_edited(after, edits).present
        counts = torch.from_numpy(keep if elsewhere is None else keep & ~elsewhere)

        row, cell, place, origin, window = in_place(after, keep)
        counted = counts[row, cell]
        shape, colour = (torch.from_numpy(v)[row, cell].long() for v in (after.shape, after.colour))
        filled = fill_hosts(image, after, after.has_inner)
        kept = recover(filled, background, row, shape, colour, origin, window)
        taken = cover(kept, b, 1.5)
        asked = better(*(self._asked(v, background, before, after, edits, taken) for v in (image, calm)))
        # What the asked object accounts for is no part of its neighbours, nor a hole in its host.
        found = asked.fit > 0.3
        claimed = cover(asked, b, 1.0, found & ~torch.from_numpy(edits.inside)[asked.row])
        window = window * (1 - patch(claimed[:, None], row, origin)[:, 0])
        hidden = after.has_inner.copy()
        lost = asked.row[~found].numpy()
        hidden[lost[edits.inside[lost]], edits.to_cell[lost[edits.inside[lost]]]] = False
        views = (fill_hosts(view, after, hidden) for view in (image, calm))
        kept = better(*(recover(view, background, row, shape, colour, origin, window) for view in views))
        nominal = torch.tensor(RADII)[torch.from_numpy(after.size)[row, cell]]
        near = ramp((kept.centre - place).norm(dim=1), 9, 1.5)
        survived = kept.kept * near * ramp((kept.radius / nominal - 1).abs(), 0.3, 0.14)

        alignment = torch.zeros(b)
        alignment[asked.row] = (
            asked.fit
            * self._wanted_size(asked, before, edits)
            * self._wanted_place(asked, before, edits)
            * self._reshaped(image, background, before, edits, asked)
        )
        alignment[kind["remove"]] = 1.0
        alignment *= self._gone(image, background, before, edits, asked)
        alignment = torch.where(kind["background"], self._repainted(image, wanted, before, kept), alignment)

        spare = 1 - torch.maximum(cover(kept, b, 1.5), cover(asked, b, 1.5))
        spare *= 1 - self._old(before, edits)  # what is left of the old object counts as not gone
        if elsewhere is not None and repainted is not None:
            spare *= 1 - _cells(elsewhere)
            wanted = torch.where(repainted[:, None, None, None], background, wanted)
        damage, tint = background_damage(image - wanted, spare)
        ones = torch.ones(b)
        n_kept = counts.sum(1)
        mean_survived = torch.where(
            n_kept > 0, torch.zeros(b).index_add_(0, kept.row, survived * counted) / n_kept.clamp_min(1), ones
        )
        intact = torch.where(kind["background"], ones, ramp(tint, 0.25, 0.06) / (1 + damage / 60))
        n_all = n_kept + drawn
        clean = torch.zeros(b).index_add_(0, kept.row, kept.clean * counted)
        clean = clean.index_add_(0, asked.row, asked.clean)
        quality = torch.where(n_all > 0, clean / n_all.clamp_min(1), ones)
        quality /= 1 + damage / torch.where(kind["background"], 900, 300)
        quality *= ramp(grain, 0.23, 0.02) * ramp((light - 1).abs(), 0.55, 0.03)
        quality *= torch.where(kind["background"], ramp(tint, 0.35, 0.03), ones)
        return alignment, mean_survived**3 * intact, quality

    def _asked(
        self, image: Tensor, background: Tensor, before: Scenes, after: Scenes, edits: Edits, taken: Tensor
    ) -> Objects:
        """The object that the instruction draws or changes, for the rows that have one."""
        anywhere = np.isin(edits.edit_type, [EDIT_TYPES.index("add"), EDIT_TYPES.index("move")])
        drawn = ~np.isin(edits.edit_type, [EDIT_TYPES.index("remove"), EDIT_TYPES.index("background")])
        row = torch.from_numpy(np.flatnonzero(drawn))
        shape, colour = (torch.from_numpy(v)[row].long() for v in (edits.shape, edits.colour))
        cells = np.zeros((len(edits), 9), dtype=bool)
        cells[np.arange(len(edits)), edits.to_cell] = drawn
        _, _, _, origin, window = in_place(after, cells)
        inside = torch.from_numpy(edits.inside)[row]
        if inside.any():
            # Its ground is its host.
            hosts = after.copy()
            hosts.shape[~(cells & edits.inside[:, None])] = EMPTY
            hosts.inner_shape[:] = EMPTY
            background = paint(background.clone(), hosts)
            window = window.clone()
            within = object_masks(hosts, edits.to_cell)
            window[inside] = patch(within, row[inside], origin[inside])[:, 0]
        found = recover(image, background, row, shape, colour, origin, window)
        free = torch.from_numpy(anywhere)[row] & ~inside
        if not free.any():
            return found
        origin = origin.clone()
        window = window.clone()
        origin[free], window[free] = search(image, background, taken, row[free], colour[free])
        # In its place first: the most of its colour may be something else.
        return better(found, recover(image, background, row, shape, colour, origin, window))

    def _wanted_size(self, asked: Objects, before: Scenes, edits: Edits) -> Tensor:
        """(n,) 1 where the object's size is what was asked, or what it was."""
        row = asked.row.numpy()
        edits = edits[row]
        radii = np.array(RADII, dtype=np.float32)
        is_kind = {name: torch.from_numpy(edits.edit_type == i) for i, name in enumerate(EDIT_TYPES)}
        old_size = before.size[row, edits.cell]
        same = torch.from_numpy(
            radii[np.where(edits.edit_type == EDIT_TYPES.index("add"), edits.size, old_size)]
        )
        ratio = asked.radius / same
        fits = ramp((ratio - 1).abs(), 0.27, 0.16)
        grows = torch.from_numpy(edits.size > old_size)
        bigger = ramp(asked.surely / same, 1.13, 1.22) * ramp(ratio, 2.2, 1.9)
        smaller = ramp(asked.perhaps / same, 0.89, 0.84) * ramp(ratio, 0.3, 0.5)
        resized = torch.where(grows, bigger, smaller)
        inside = torch.from_numpy(edits.inside)
        visible = torch.where(inside, ramp(asked.radius, 2.8, 3.6), ramp(asked.radius, 3.6, 4.6))
        free = is_kind["add"] & torch.from_numpy(~edits.says_size)
        return torch.where(is_kind["resize"], resized, torch.where(free, visible, fits))

    def _wanted_place(self, asked: Objects, before: Scenes, edits: Edits) -> Tensor:
        """(n,) 1 where the object is where it was asked to be, or where it was."""
        row = asked.row.numpy()
        edits = edits[row]
        is_kind = {name: torch.from_numpy(edits.edit_type == i) for i, name in enumerate(EDIT_TYPES)}
        outside = (
            ((asked.centre - torch.from_numpy(CENTRES[edits.to_cell])).abs() - CELL / 2).clamp_min(0).amax(1)
        )
        shift = (asked.centre - torch.from_numpy(CENTRES[edits.cell] + before.offset[row, edits.cell])).norm(
            dim=1
        )
        relates = torch.from_numpy(edits.relation >= 0)
        anywhere = is_kind["add"] & torch.from_numpy(~edits.says_place) & ~relates
        placed = torch.where(is_kind["move"] | is_kind["add"], ramp(outside, 6, 2.5), ramp(shift, 6, 3))
        placed = torch.where(relates, self._related(asked, before, edits), placed)
        return torch.where(anywhere, torch.ones_like(placed), placed)

    def _related(self, asked: Objects, before: Scenes, edits: Edits) -> Tensor:
        """(n,) 1 where the object lies as it was asked to its reference, or to where it was itself.

        "Left of" means further to the left than up or down, and by more than what shows as a drift.
        """
        row = asked.row.numpy()
        anchor = np.where(edits.reference < 0, edits.cell, edits.reference)
        there = torch.from_numpy(CENTRES[anchor] + before.offset[row, anchor])
        right, down = (asked.centre - there).unbind(1)
        along = torch.stack([-right, right, -down, down])
        across = torch.stack([down, down, right, right]).abs()
        directed = ramp(along, 5, 8) * ramp(across - along, 5, 2)
        distance = (asked.centre - there).norm(dim=1)
        near = ramp(distance, 39, 36)
        inside = ramp(distance, 7, 4)
        relation = torch.cat([directed, near[None], inside[None]])
        chosen = torch.from_numpy(edits.relation).clamp_min(0)
        return relation.gather(0, chosen[None])[0]

    def _reshaped(
        self, image: Tensor, background: Tensor, before: Scenes, edits: Edits, asked: Objects
    ) -> Tensor:
        """(n,) 1 where a same-coloured new shape, or a new colour, has wholly taken the place of the old one;
        1 for the rest.
        """
        row = asked.row.numpy()
        edits = edits[row]
        centre = torch.from_numpy(CENTRES[edits.cell] + before.offset[row, edits.cell])
        old_shape, old_size = (torch.from_numpy(v[row, edits.cell]) for v in (before.shape, before.size))
        old = draw(old_shape, centre, torch.tensor(RADII)[old_size], asked.origin)
        colour = OBJECT_RGB[edits.colour]
        share = colour_share(
            patch(image, asked.row, asked.origin), patch(background, asked.row, asked.origin), colour
        )[0]
        change = asked.alpha - old
        progress = ((share - old) * change).sum((1, 2)) / change.square().sum((1, 2)).clamp_min(1)
        same = (edits.edit_type == EDIT_TYPES.index("replace")) & (
            edits.colour == before.colour[row, edits.cell]
        )
        reshaped = torch.where(torch.from_numpy(same), ramp(progress, 0.75, 0.9), torch.ones_like(progress))
        # In between two colours is neither.
        old_colour = OBJECT_RGB[before.colour[row, edits.cell]]
        inside = (asked.alpha == 1).float()
        seen = (patch(image, asked.row, asked.origin) * inside[:, None]).sum((2, 3))
        seen = seen / inside.sum((1, 2)).clamp_min(1)[:, None]
        span = colour - old_colour
        progress = ((seen - old_colour) * span).sum(1) / span.square().sum(1).clamp_min(1e-3)
        renewed = np.isin(edits.edit_type, [EDIT_TYPES.index("replace"), EDIT_TYPES.index("recolour")])
        recoloured = torch.from_numpy(renewed) & (span.norm(dim=1) > 0)
        return reshaped * torch.where(recoloured, ramp(progress, 0.6, 0.85), torch.ones_like(progress))

    def _gone(
        self, image: Tensor, background: Tensor, before: Scenes, edits: Edits, asked: Objects
    ) -> Tensor:
        """(b,) 1 where nothing is left of the object that was removed, moved, replaced or resized;
        1 for the other kinds.
        """
        b = len(edits)
        old = self._old(before, edits)
        region = old * (1 - cover(asked, b, 1.0))
        cell = np.where(before.shape[np.arange(b), edits.cell] == EMPTY, 0, edits.cell)
        colour = OBJECT_RGB[before.colour[np.arange(b), cell]][:, :, None, None]
        contrast = (colour - background).norm(dim=1).clamp_min(0.2)
        off = (image - background).norm(dim=1)
        # Squared, so that a quarter that is left tells more than the whole at a quarter of its strength.
        left = torch.maximum(off / contrast, off / 0.7).clamp(0, 1).square() * region
        area = region.sum((1, 2))
        share = torch.where(area > 6, (left.sum((1, 2)) / area.clamp_min(1)).sqrt(), torch.zeros(b))
        return ramp(share, 0.6, 0.04)

    def _old(self, before: Scenes, edits: Edits) -> Tensor:
        """(b, 64, 64) coverage of the object that was removed, moved, replaced, recoloured or resized; 0 for
        the other kinds.
        """
        old = torch.zeros(len(edits), SIZE, SIZE)
        gone = ~np.isin(edits.edit_type, [EDIT_TYPES.index("add"), EDIT_TYPES.index("background")])
        row = np.flatnonzero(gone)
        cell = edits.cell[row]
        centre = torch.from_numpy(CENTRES[cell] + before.offset[row, cell])
        origin = torch.tensor(ORIGINS)[cell]
        radius = torch.tensor(RADII)[before.size[row, cell]]
        alpha = draw(torch.from_numpy(before.shape[row, cell]), centre, radius, origin)
        x, y = grid(origin)
        old.index_put_((torch.from_numpy(row)[:, None, None].expand_as(x), y, x), alpha)
        return old

    def _repainted(self, image: Tensor, background: Tensor, before: Scenes, kept: Objects) -> Tensor:
        """(b,) 1 where the whole background has its new colour."""
        old = render_backgrounds(before)
        spare = 1 - cover(kept, len(image), 0.75)
        off = (image - background).norm(dim=1)
        distance = off / (old - background).norm(dim=1).clamp_min(0.15)
        done = ramp(distance, 0.6, 0.35) * ramp(off, 0.16, 0.1) * spare
        done = done.sum((1, 2)) / spare.sum((1, 2)).clamp_min(1)
        return ramp(done, 0.6, 0.98)
