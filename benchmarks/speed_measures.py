"""Measures of a path beside what a user would run instead: time, memory, share of the CPU's limit."""

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")  # 5 sets the highest memory so far to that of the moment
Ways = dict[str, Callable[[], Any]]  # "plain" and "ours", each a piece of work


def compare(ways: Ways, rounds: int) -> dict[str, float]:
    """Ratio of the times of "plain" and "ours" in interleaved pairs, after one pair to warm up: the median,
    half of the range between the quartiles, the number of pairs; and the median of our seconds.
    """
    for work in ways.values():
        work()
    ratios = []
    ours = []
    for number in range(rounds):
        times = {}
        for name in list(ways) if number % 2 else reversed(ways):
            began = time.perf_counter()
            ways[name]()
            times[name] = time.perf_counter() - began
        ratios.append(times["plain"] / times["ours"])
        ours.append(times["ours"])
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "ratio": statistics.median(ratios),
        "spread": (quarters[2] - quarters[0]) / 2,
        "n": rounds,
        "seconds": statistics.median(ours),
    }


def measure_path(
    make: Callable[[], Ways], rounds: int, dtype: torch.dtype = torch.float32, memory: bool = True
) -> dict[str, float]:
    """The figures of `compare`; `limit_share`, our operations in a second as a share of `matrix_limit`, and
    `limit_gflops`, where there are any; and `mib` and `mib_plain`, the memory that each takes beyond its
    models and inputs.

    Args:
        make: makes the work; pickled, for processes that have done nothing else.
        dtype: in which most of the work computes.
        memory: False leaves it out.
    """
    ways = make()
    figures = compare(ways, rounds)
    with FlopCounterMode(display=False) as counter:
        ways["ours"]()
    if operations := counter.get_total_flops():
        figures["limit_gflops"] = matrix_limit(dtype) / 1e9
        figures["limit_share"] = operations / figures["seconds"] / matrix_limit(dtype)
    if memory and RESET.exists():
        figures["mib"] = peak_mib(make, "ours")
        figures["mib_plain"] = peak_mib(make, "plain")
    return figures


@cache
def matrix_limit(dtype: torch.dtype, side: int = 1024, rounds: int = 10) -> float:
    """Most operations a second of a product of square matrices on this CPU, with torch's threads."""
    a = torch.randn(side, side).to(dtype)
    fastest = float("inf")
    for _ in range(rounds + 1):
        began = time.perf_counter()
        a @ a
        fastest = min(fastest, time.perf_counter() - began)
    return 2 * side**3 / fastest


def peak_mib(make: Callable[[], Ways], way: str) -> float:
    """MiB that one call of a way takes at most beyond what there was before it, in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as alone:
        return alone.apply(peak_of_call, (make, way, torch.get_num_threads()))


def peak_of_call(make: Callable[[], Ways], way: str, threads: int) -> float:
    """The figure of `peak_mib`, in this process."""
    torch.set_num_threads(threads)
    work = make()[way]
    gc.collect()
    RESET.write_text("5")
    before = memory_mib("VmRSS")
    work()
    return memory_mib("VmHWM") - before


def memory_mib(line: str) -> float:
    """MiB in a line of this process's status: VmRSS, of the moment, or VmHWM, the most."""
    for text in STATUS.read_text().splitlines():
        name, _, value = text.partition(":")
        if name == line:
            return int(value.split()[0]) / 1024
    raise ValueError(f"{STATUS}: expected a line {line}")
