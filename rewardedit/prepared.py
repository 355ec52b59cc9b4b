"""`Prepared`: inputs computed once per source and instruction, reused for any number of edits."""

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Broadcast:
    """A value that all rows have in common, such as a language model's prefix:
    `Prepared.take` passes it on uncopied.
    """

    value: Any


@dataclass(frozen=True)
class Prepared:
    """Inputs of a pipeline, or values that a scorer prepared, for b rows.

    `inputs` holds, by name: tensors (b, …), lists of b entries, values that are `Broadcast`,
    or another `Prepared` of the rows.
    """

    inputs: dict[str, Any]

    def __len__(self) -> int:
        """The number of rows.

        Raises:
            ValueError: if no input belongs to rows.
        """
        rows = _row_count(self)
        if rows is None:
            raise ValueError("no input has rows, so their number is unknown")
        return rows

    def take(self, index: Sequence[int]) -> "Prepared":
        """These rows, in this order; a row may be taken more than once:
        `take([0] * n)` serves n edits of the first.
        """
        return Prepared({name: _take(value, list(index)) for name, value in self.inputs.items()})


def _take(value: Any, index: list[int]) -> Any:
    if isinstance(value, Broadcast):
        return value
    if isinstance(value, Prepared):
        return value.take(index)
    if isinstance(value, Tensor):
        return value[index]
    return [value[i] for i in index]


def is_of_inference_mode(value: Any) -> bool:
    """True if any tensor in a value, however deep, was made in torch's inference mode."""
    if isinstance(value, Tensor):
        return value.is_inference()
    if is_dataclass(value):
        return is_of_inference_mode(list(vars(value).values()))
    if isinstance(value, dict):
        return is_of_inference_mode(list(value.values()))
    return isinstance(value, list | tuple) and any(map(is_of_inference_mode, value))


def _row_count(value: Any) -> int | None:
    """Number of rows of a value; None if it does not belong to rows."""
    if isinstance(value, Broadcast):
        return None
    if isinstance(value, Prepared):
        for inner in value.inputs.values():
            if (count := _row_count(inner)) is not None:
                return count
        return None
    return len(value)
