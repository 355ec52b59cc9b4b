"""Rows of pairs of images with the differences between them, on which DICE's two parts are trained."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import Subset

from rewardedit.batch.values import ImageLike
from rewardedit.config import require_unset
from rewardedit.data.datasets import DataConfig, selected_rows
from rewardedit.data.dice_d import DiceD
from rewardedit.data.sources import hold_out, source_ids
from rewardedit.data.worlds import WORLDS, world
from rewardedit.images import view_pixels
from rewardedit.language.vlm import without
from rewardedit.regions.differences import Difference
from rewardedit.scorers.dice_text import plain_subject

UNUSED = ("edit_types", "stream", "resize")  # settings of data that have no effect on differences


@dataclass(frozen=True)
class DifferenceRow:
    """A source and an edited image, and all differences between them; or one difference that was judged
    against an instruction.
    """

    id: str
    source: ImageLike
    edited: ImageLike
    differences: tuple[Difference, ...]
    instruction: str | None = None
    coherent: bool | None = None  # verdict on the only difference; None: not judged
    reason: str = ""  # reason of the verdict, in a sentence

    def __post_init__(self) -> None:
        if self.coherent is not None and (len(self.differences) != 1 or not self.instruction):
            raise ValueError(
                f"row {self.id}: expected one difference and an instruction beside the verdict; got "
                f"{len(self.differences)} differences and {self.instruction!r}"
            )


def open_differences(
    data: DataConfig, judged: bool = False, with_reasons: bool = False
) -> Sequence[DifferenceRow]:
    """The differences of a data set that has them: a generated world, or annotations as DICE-D has them,
    without those of held-out sources. A row of judged ones is a difference.

    Args:
        judged: single differences with a verdict on each, in place of all differences of a pair.
        with_reasons: the verdicts are to be learned with their reasons.

    Raises:
        ValueError: for another data set or split, a setting that has no effect on differences, or reasons to
            be learned of which a file has none.
    """
    if data.name in WORLDS:
        require_unset(data, UNUSED, f"on differences of the world {data.name}; leave it out")
        return world(data.name).open_differences(data, judged)
    if data.name == "dice_d":
        require_unset(data, (*UNUSED, "size"), "on differences, whose images keep their size; leave it out")
        marked = MarkedRows(DiceD(data.path, data.split, data.root), judged)
        if judged and with_reasons and not any(marked.reasons()):
            raise ValueError(
                f'{data.path}: expected a "reason" beside each verdict, as the question asks for one; no row '
                "has it; add reasons, or set answers.rationale=false"
            )
        rows = selected_rows(marked, data)
        if not data.holdout_sources:
            return rows
        return Subset(rows, hold_out(source_ids(rows), data.holdout_sources, data.seed)[0])
    raise ValueError(
        f"data: expected rows with differences (dice_d, or the world shapes); got {data.name}; make them "
        "from annotated images with pairs.annotations=FILE"
    )


class MarkedRows(Sequence):
    """Differences that people marked, in the layout of DICE-D: all of an edit, or with a verdict one by one.

    Raises:
        ValueError: if a record cannot be read, or no difference has a verdict.
    """

    def __init__(self, edits: DiceD, judged: bool) -> None:
        self.edits = edits
        self.places: list[tuple[int, int | None]] = []  # edit, and difference of it; None: all
        for row in range(len(edits)):
            marked = edits.differences(row)
            if not judged:
                self.places.append((row, None))
                continue
            for i, one in enumerate(marked):
                if one.coherent is not None:
                    self.places.append((row, i))
        if not self.places:
            raise ValueError('data: expected differences with "coherent", true or false; none has it')

    def __len__(self) -> int:
        return len(self.places)

    def source_ids(self) -> list[str]:
        """The name of each row's source image."""
        names = self.edits.source_ids()
        return [names[row] for row, _ in self.places]

    def reasons(self) -> list[str]:
        """The reason of each row's verdict; "" if it has none."""
        reasons = []
        for row, chosen in self.places:
            reasons.append("" if chosen is None else self.edits.differences(row)[chosen].reason)
        return reasons

    def __getitem__(self, index: int) -> DifferenceRow:  # type: ignore[override]
        row, chosen = self.places[index]
        sample = self.edits[row]
        marked = self.edits.differences(row)
        assert sample.edited is not None
        images = (sample.source, sample.edited)
        if chosen is None:
            return DifferenceRow(
                sample.id, *images, tuple(one.difference for one in marked), sample.instruction
            )
        one = marked[chosen]
        return DifferenceRow(
            f"{sample.id}-{chosen}", *images, (one.difference,), sample.instruction, one.coherent, one.reason
        )


def reasons_of(rows: Any) -> list[str]:
    """The reasons of marked rows' verdicts, or of some of these; none for a world. No image is read."""
    if isinstance(rows, Subset):
        reasons = reasons_of(rows.dataset)
        return [reasons[i] for i in rows.indices] if reasons else []
    return rows.reasons() if isinstance(rows, MarkedRows) else []


def plain_difference(difference: Difference, reserved: Sequence[str]) -> Difference:
    """The difference with its subject as a model is to read or write it.

    Args:
        reserved: texts that control the model, which are removed.

    Raises:
        ValueError: if nothing is left of the subject.
    """
    subject = plain_subject(without(reserved, difference.subject))
    if not subject:
        raise ValueError(
            f"subject: expected a name of the object; nothing is left of {difference.subject!r} without the "
            "model's own tokens"
        )
    return replace(difference, subject=subject)


def readable_rows(
    rows: Sequence[DifferenceRow], reserved: Sequence[str] = ()
) -> tuple[list[int], dict[int, str]]:
    """Numbers of the rows whose images can be read and whose objects have names, and the reasons of the
    others.

    Args:
        reserved: texts that control the model, which are removed from names.
    """
    reasons: dict[int, str] = {}
    for index in range(len(rows)):
        try:
            row = rows[index]
            for difference in row.differences:
                plain_difference(difference, reserved)
            for image in (row.source, row.edited):
                view_pixels(image, 3)
        except ValueError as error:
            reasons[index] = str(error)
    return [index for index in range(len(rows)) if index not in reasons], reasons
