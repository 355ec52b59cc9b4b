"""Reads a step's rows while the step before it is computed."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Calls `read` for the next step in a separate thread while the caller computes the current one."""

    def __init__(self, read: Callable[[int], T], steps: int) -> None:
        """
        Args:
            read: reads a step; must not use a shared random generator, since it runs ahead of the caller.
            steps: number of steps; none is read beyond the last one.
        """
        self.read = read
        self.steps = steps
        self._reader = ThreadPoolExecutor(1, "rows")
        self._next: Future[T] = Future()
        self._next_step = -1  # the step that is being read

    def __call__(self, step: int) -> T:
        """Returns what `read` returns for a step; steps in order are read ahead.

        Raises:
            Exception: whatever `read` raised.
        """
        value = self._next.result() if self._next_step == step else self.read(step)
        self._next_step = step + 1
        if self._next_step < self.steps:
            self._next = self._reader.submit(self.read, self._next_step)
        return value

    def close(self) -> None:
        """Waits for the step that is being read."""
        self._reader.shutdown()
