"""Values that are computed when first needed."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Lazy(Generic[T]):
    """Calls a function on the first call only, and keeps its outcome for later calls: a value or a
    ValueError.

    A stage's models are loaded this way: only in the processes that have shards to make, once in each. A copy
    that is sent to another process does not carry the value, which is computed there anew.
    """

    def __init__(self, make: Callable[[], T], made: T | None = None) -> None:
        """
        Args:
            made: the value, if it has already been made in this process.
        """
        self.make = make
        self.made: list[T] = [] if made is None else [made]
        self.refused: ValueError | None = None

    def __call__(self) -> T:
        if self.refused is not None:
            raise self.refused
        if not self.made:
            try:
                self.made.append(self.make())
            except ValueError as error:
                self.refused = error
                raise
        return self.made[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.make,))
