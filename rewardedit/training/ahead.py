"""Reads a step's rows while the step before it is computed."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """What `read` makes of each step, made in a thread of its own while the caller is at the step before."""

    def __init__(self, read: Callable[[int], T], steps: int) -> None:
        """
        Args:
            read: of a step; it draws nothing from a shared generator, for it runs out of turn.
            steps: none is read beyond the last of them.
        """
        self.read = read
        self.steps = steps
        self._reader = ThreadPoolExecutor(1, "rows")
        self._next: Future[T] = Future()
        self._next_step = -1  # which is being read

    def __call__(self, step: int) -> T:
        """Of any step; in order they are there sooner.

        Raises:
            Exception: what `read` raised.
        """
        found = self._next.result() if self._next_step == step else self.read(step)
        self._next_step = step + 1
        if self._next_step < self.steps:
            self._next = self._reader.submit(self.read, self._next_step)
        return found

    def close(self) -> None:
        """Waits for what is being read."""
        self._reader.shutdown()
