"""Worlds: generated data sets whose ground truth is known, so that each edit can be rated exactly.

Nothing here or below imports a world; it is found by its name when it is requested.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from rewardedit.models import WORLDS

if TYPE_CHECKING:
    from rewardedit.data.datasets import DataConfig
    from rewardedit.data.difference_rows import DifferenceRow
    from rewardedit.data.sequences import Sequences, SequencesConfig
    from rewardedit.data.sources import Rows


@dataclass(frozen=True)
class WorldConfig:
    """Rows of a generated world."""

    backdrops: tuple[str, ...] = ("plain",)  # kinds of backgrounds, taken in turn
    # share of each kind of edit by its name; empty: the world's own
    quality_mix: dict[str, float] = field(default_factory=dict)
    edits_per_source: int = 1  # number of edits of each source, in consecutive rows
    seed: int = 0  # random seed of the scenes

    def __post_init__(self) -> None:
        if self.edits_per_source < 1:
            raise ValueError(f"edits_per_source: expected at least 1; got {self.edits_per_source}")


@dataclass(frozen=True)
class Rating:
    """Four ratings of b edits, each (b,) in [0, 10], higher is better.

    score = alignment × (0.25 + 0.75 × consistency / 10 × quality / 10).
    """

    score: Float[Tensor, " b"]
    alignment: Float[Tensor, " b"]  # the requested change, seen in the image
    consistency: Float[Tensor, " b"]  # the rest of the scene survived
    quality: Float[Tensor, " b"]  # objects are clean and whole, the background is clean


@runtime_checkable
class Samples(Protocol):
    """b samples of a world with their truth; images are RGB in [0, 1]."""

    id: list[str]
    source: Float[Tensor, "b 3 h w"]
    instruction: list[str]
    target: Float[Tensor, "b 3 h w"]
    mask: Float[Tensor, "b 1 h w"]  # 1 where the edit may change the image
    source_caption: list[str]
    target_caption: list[str]

    @property
    def world(self) -> str: ...  # its name

    @property
    def edit_type(self) -> list[str]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> "Samples": ...


@dataclass(frozen=True)
class World:
    """Interface of a world."""

    version: int
    size: int  # pixels a side
    quality_mix: dict[str, float]  # shares of the kinds of edits among its rows, if none are given
    scorers: dict[str, dict[str, Any]]  # options with its models, by the scorer's name
    judge: str  # name of the scorer that agrees best with its truth
    editor: str  # name of its editor
    open_rows: "Callable[[DataConfig], Rows]"
    open_sequences: "Callable[[SequencesConfig], Sequences]"
    # (data, judged): pairs with their differences, or single differences with a verdict
    open_differences: "Callable[[DataConfig, bool], Sequence[DifferenceRow]]"
    # (split, seed, backdrops, first, n): samples first to first + n - 1; ValueError if there are no such ones
    samples: Callable[[str, int, tuple[str, ...], int, int], Samples]
    # ratings of edits (b, 3, h, w) of samples, 0 for an image that is not finite
    rate: Callable[[Samples, Tensor], Rating]


def world(name: str) -> World:
    """Returns the world of that name.

    Raises:
        KeyError: if there is none.
    """
    return import_module(WORLDS[name]).WORLD
