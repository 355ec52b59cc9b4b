"""Estimated time of a number of operations on this device."""

import time
from functools import cache

import torch

from rewardedit import devices
from rewardedit.devices import Precision
from rewardedit.training.trainable import autocast_type

EFFICIENCY = 0.35  # assumed speed of a denoiser, as a share of that of a plain matrix product

# Assumed seconds of a denoiser's forward pass on CUDA with few rows: its kernels are launched one by one.
# Stable Diffusion 1.5's took 26 to 43 ms with three rows of 512 pixels a side on an H200. CUDA graphs and
# compiled blocks, which save launches, are not considered.
LAUNCH = 0.03


def time_line(what: str, operations: float, precision: Precision) -> str:
    """Line with the time that so many operations take on this device."""
    return f"{what} time on this machine, estimated: {duration(operations / (EFFICIENCY * _rate(precision)))}"


def unet_seconds(operations: float, precision: Precision) -> float:
    """Estimated seconds of a denoiser's forward pass with so many operations, on this device."""
    if devices.default_device() == "cuda":
        return gpu_seconds(operations, _rate(precision))
    return operations / (EFFICIENCY * _rate(precision))


def gpu_seconds(operations: float, rate: float) -> float:
    """Estimated seconds of a denoiser's forward pass with so many operations, on a GPU.

    Args:
        rate: operations per second of a matrix product on it.
    """
    return max(operations / (EFFICIENCY * rate), LAUNCH)


@cache
def _rate(precision: Precision) -> float:
    """Operations per second of a matrix product on this device, in the type that training uses."""
    device = devices.default_device()
    dtype = autocast_type(devices.precision_here(precision)) or torch.float32
    n = 4096 if device == "cuda" else 768
    a = torch.randn(n, n, device=device, dtype=dtype)
    float((a @ a)[0, 0])
    began = time.perf_counter()
    for _ in range(5):
        out = a @ a
    float(out[0, 0])
    return 5 * 2 * n**3 / (time.perf_counter() - began)


def duration(seconds: float) -> str:
    """A time in words: "12 minutes", "3.4 hours", "506 hours"."""
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < 100 else f"{hours:,.0f} hours"
