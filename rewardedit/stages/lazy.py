"""Values that are made when they are first needed."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Calls a function the first time it is called itself, and remembers what came of it: a value or a
    refusal.

    A stage's models are loaded so: on the processes that have something to make, once in each. A copy that
    is sent to another process goes without the value, which is made there anew.
    """

    def __init__(self, make: Callable[[], T], made: T | None = None) -> None:
        """
        Args:
            made: what has been made already, in this process.
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
