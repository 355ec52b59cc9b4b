"""Figures of a part, and the clock and the memory that they are read from."""

import gc
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rewardedit import devices
from rewardedit.files import write_json

GIB = 2**30


class Figures:
    """Figures that a part has measured so far, kept in a file, and whether something failed."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        self.failed = False

    def add(self, name: str, value: Any) -> None:
        """Keeps a figure under a name."""
        self.values[name] = value
        print(f"{name}: {value}", flush=True)
        if self.path is not None:
            write_json(self.path, self.values)  # whole, whenever the part is cut off

    def measure(self, name: str, work: Callable[[], Any]) -> None:
        """Adds the result of `work`, or the error that it raises, and frees what it used."""
        try:
            self.add(name, work())
        except Exception as error:
            traceback.print_exc()
            self.failed = True
            line = str(error).partition("\n")[0]
            self.add(name, {"error": f"{type(error).__name__}: {line}"})
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def skip(self, name: str, reason: str) -> None:
        """Records that a figure cannot be measured here, which is no failure."""
        self.add(name, {"skipped": reason})


def device() -> torch.device:
    """The device that the parts measure."""
    return torch.device(devices.default_device())


def now() -> float:
    """Time after the GPU has finished all its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = now()
    work()
    return now() - began


def milliseconds(work: Callable[[], object], rounds: int = 5) -> float:
    """Median time of several rounds, after one to warm up."""
    times = [seconds(work) for _ in range(rounds + 1)]
    return 1000 * statistics.median(times[1:])


def reset_peak() -> None:
    """Begins to measure the peak of the GPU's memory anew."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float | None:
    """Peak of the memory of tensors on the GPU since `reset_peak`; None without a GPU."""
    return torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else None


def reset_reserved() -> None:
    """Begins to measure the peak of the memory that torch takes from the GPU anew; what is free is given
    back, and has to be taken again.
    """
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_reserved_gib() -> float | None:
    """Peak of the memory that torch has taken from the GPU since `reset_reserved`, with that of CUDA graphs,
    which holds no tensors while they are replayed; None without a GPU.
    """
    return torch.cuda.max_memory_reserved() / GIB if torch.cuda.is_available() else None
