"""Differences between two images without a vision-language model: connected parts of the change map.

The baseline beside DICE's detector.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rewardedit.batch import EditBatch
from rewardedit.instructions.grammar.grammar import parse_all
from rewardedit.instructions.parsed import ParsedEdit, Parser
from rewardedit.regions.base import Finder, Instances
from rewardedit.regions.boxes import numbered_components
from rewardedit.regions.change_map import GRID, change_mask, dilated, oklab
from rewardedit.regions.differences import Command, Detection, Difference

UNNAMED = "object"  # subject of a difference whose object is not known
CHANGED = 0.5  # least value of the change map that counts as changed
PLAIN = 0.08  # OKLab distance to its surroundings below which a place counts as empty
INSIDE = 0.5  # share of an object that lies in a changed part if the part is the object's


class ChangeDetector(nn.Module):
    """Finds differences as the connected parts of the change map (`change_mask`), one box around each.

    The confidence is the change summed over the part, as a share of the image. A part that looks like its
    surroundings after the edit, and not before, is REMOVE; the reverse is ADD; all others are EDIT. With a
    `finder` the objects that the instruction names are sought in both images: a part with such an object
    before the edit alone is REMOVE, after it alone ADD, else EDIT, and the object's name is the subject.

    Args:
        finder: finds objects by their names, such as `GroundedSam`; None: objects are not named.
        parser: parses the instructions for their names.
        fixed_confidence: sets every confidence to 1.
    """

    def __init__(
        self, finder: Finder | None = None, parser: Parser = parse_all, fixed_confidence: bool = False
    ) -> None:
        super().__init__()
        self.finder = finder
        self.parser = parser
        self.fixed_confidence = fixed_confidence

    @torch.no_grad()
    def detect(self, batch: EditBatch) -> list[Detection]:
        """Finds the differences of each row."""
        source = batch.source.float()
        edited = batch.edited.detach().float()
        changes = change_mask(source, edited)[:, 0]
        named = self._objects(source, edited, batch.instruction)
        before = oklab(source)
        after = oklab(edited)
        instances = []
        for row, change in enumerate(changes):
            height, width = change.shape
            numbers, places = numbered_components(change > CHANGED)
            differences = []
            for number, (rows, columns) in enumerate(places, 1):
                command, subject = _by_name(rows, columns, named[row]) or (
                    _by_contrast(numbers, number, (rows, columns), before[row], after[row]),
                    UNNAMED,
                )
                pixel_changes = change[rows, columns][numbers[rows, columns] == number]
                share = (
                    1.0 if self.fixed_confidence else float(pixel_changes.double().sum()) / (height * width)
                )
                box = (columns.start / width, rows.start / height, columns.stop / width, rows.stop / height)
                differences.append(Difference(command, subject, box, share))
            instances.append(Detection(tuple(differences), len(differences)))
        return instances

    def _objects(
        self, source: Tensor, edited: Tensor, instructions: Sequence[str]
    ) -> list[list[tuple[str, Instances, Instances]]]:
        """The named objects of each row: name, instances in the source, and in the edited image."""
        named: list[list[tuple[str, Instances, Instances]]] = [[] for _ in instructions]
        if self.finder is None:
            return named
        rows = []
        names = []
        for row, parsed in enumerate(self.parser(instructions)):
            if isinstance(parsed, ParsedEdit) and not parsed.is_global:
                distinct = dict.fromkeys(name for name in (parsed.source, parsed.target) if name)
                rows += [row] * len(distinct)
                names += distinct
        if names:
            before = self.finder.find(source[rows], names)
            after = self.finder.find(edited[rows], names)
            for row, name, first, second in zip(rows, names, before, after, strict=True):
                named[row].append((name, first, second))
        return named


def _by_name(
    rows: slice, columns: slice, named: Sequence[tuple[str, Instances, Instances]]
) -> tuple[Command, str] | None:
    """Command and subject by the objects that lie in the box around a changed part; None if none does."""
    before = [name for name, first, _ in named if _holds(rows, columns, first)]
    after = [name for name, _, second in named if _holds(rows, columns, second)]
    if not before and not after:
        return None
    command: Command = "EDIT" if before and after else "REMOVE" if before else "ADD"
    return command, (after or before)[0]


def _holds(rows: slice, columns: slice, objects: Instances) -> bool:
    """True if most of one of the objects lies in a box."""
    area = objects.masks.flatten(1).sum(1)
    shared = objects.masks[:, rows, columns].flatten(1).sum(1)
    return bool((shared > INSIDE * area).any())


def _by_contrast(
    numbers: Int[Tensor, "h w"],
    number: int,
    place: tuple[slice, slice],
    before: Float[Tensor, "3 h w"],
    after: Float[Tensor, "3 h w"],
) -> Command:
    """The command of a changed part by its contrast to its surroundings in both images, given in OKLab.

    Args:
        numbers: of the changed part at each pixel; 0 where nothing changed.
        number: of this part.
        place: rows and columns that it spans.
    """
    radius = max(1, 2 * max(numbers.shape) // GRID)
    rows, columns = (slice(max(0, side.start - radius), side.stop + radius) for side in place)
    near = numbers[rows, columns]
    changed = near == number
    ring = (dilated(changed[None, None].float(), radius)[0, 0] > 0) & (near == 0)
    if not ring.any():
        return "EDIT"
    was_plain = _contrast(before[:, rows, columns], changed, ring) < PLAIN
    is_plain = _contrast(after[:, rows, columns], changed, ring) < PLAIN
    if was_plain == is_plain:
        return "EDIT"
    return "ADD" if was_plain else "REMOVE"


def _contrast(
    image: Float[Tensor, "3 h w"], changed: Bool[Tensor, "h w"], ring: Bool[Tensor, "h w"]
) -> float:
    """Mean OKLab distance of a part to the median colour of the ring around it."""
    around_it = image[:, ring].median(dim=1).values
    return float((image[:, changed] - around_it[:, None]).norm(dim=0).mean())
