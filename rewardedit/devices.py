"""Where models run: the one place that all commands, trainers and benchmarks ask."""

import re
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Literal

import torch

Precision = Literal["no", "bf16", "fp16"]  # mixed precision, as accelerate names it
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MEMORY_FAULT = re.compile(r"out of memory|allocate memory|not enough memory")  # also of the CPU's allocator


def default_device() -> str:
    """Type of the device that models run on: "cuda" where torch sees a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@cache
def cpu_knows_bf16() -> bool:
    """Whether the CPU has instructions for bf16, by what torch's kernels there ask."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def computes_in_bf16(device: str | None = None) -> bool:
    """Whether bf16 saves time on a type of device, by default the one that models run on: on a GPU or a CPU
    that has units for it. On a CPU without, a matrix product takes some 80 times as long in it.
    """
    device = device or default_device()
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device != "cpu" or cpu_knows_bf16()


def autocast(device: str, enabled: bool = True) -> torch.autocast:
    """Computes in bf16 where that saves time; the weights stay as they are."""
    return torch.autocast(device, torch.bfloat16, enabled=enabled and computes_in_bf16(device))


def full_precision(device: str) -> AbstractContextManager[Any]:
    """Computes in the types that tensors have, also in a mixed-precision run. `meta` knows no autocast."""
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


def precision_here(precision: Precision) -> Precision:
    """The mixed precision of a training, or "no" in the place of bf16 where that does not save time."""
    return "no" if precision == "bf16" and not computes_in_bf16() else precision


def require_precision(precision: Precision) -> None:
    """Raises ValueError where a training cannot compute so here."""
    if precision == "fp16" and default_device() == "cpu":
        raise ValueError("mixed_precision: fp16 needs a GPU; take bf16 or no on a CPU")


def inference_dtype(name: str | None = None) -> torch.dtype:
    """Type of the weights of models that are not trained: the one named,
    or float16 on a GPU and float32 on a CPU; float32 also for bfloat16 where that does not save time.

    Raises:
        ValueError: on a name that is not in `DTYPES`.
    """
    if name is None:
        return torch.float32 if default_device() == "cpu" else torch.float16
    if name not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}; got {name!r}")
    dtype = DTYPES[name]
    return torch.float32 if dtype == torch.bfloat16 and not computes_in_bf16() else dtype


def language_dtype() -> torch.dtype:
    """Type of the weights of language models that are not trained: bfloat16 on a GPU, where many of them
    overflow in float16, and float32 on a CPU.
    """
    return torch.float32 if default_device() == "cpu" else torch.bfloat16


def is_out_of_memory(error: BaseException) -> bool:
    """True where memory of a GPU or the machine ran out, of which torch tells in plain RuntimeErrors too."""
    named = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return named or (isinstance(error, RuntimeError) and MEMORY_FAULT.search(str(error)) is not None)


def number_type(dtype: torch.dtype | str) -> torch.dtype:
    """By itself or its name; ValueError where there is none of that name."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype):
        raise ValueError(f"dtype: expected one such as float32 or bfloat16; got {dtype!r}")
    return found


def device_name() -> str:
    """For records of runs and measurements: the GPU's name, or how many threads the CPU computes with."""
    if default_device() == "cuda":
        return torch.cuda.get_device_name()
    return f"CPU, {torch.get_num_threads()} threads"
