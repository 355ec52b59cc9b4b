"""Rows of pairs of images with the differences between them, on which DICE's two parts are trained."""

from collections.abc import Sequence
from dataclasses import dataclass

from rewardedit.batch.values import ImageLike
from rewardedit.data.datasets import DataConfig
from rewardedit.data.worlds import WORLDS, world
from rewardedit.regions.differences import Difference


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
    reason: str = ""  # of the verdict, in a sentence

    def __post_init__(self) -> None:
        if self.coherent is not None and (len(self.differences) != 1 or not self.instruction):
            raise ValueError(
                f"row {self.id}: expected one difference and an instruction beside the verdict; got "
                f"{len(self.differences)} differences and {self.instruction!r}"
            )


def open_differences(data: DataConfig, judged: bool = False) -> Sequence[DifferenceRow]:
    """The differences of a data set that has them: a generated world, or annotations as DICE-D has them.

    Args:
        judged: single differences with a verdict on each, in place of all differences of a pair.

    Raises:
        ValueError: for another data set.
    """
    if data.name in WORLDS:
        return world(data.name).open_differences(data, judged)
    raise ValueError(
        f"data: expected rows with differences (dice_d, or the world shapes); got {data.name}; make them "
        "from annotated images with pairs.annotations=FILE"
    )
