"""Devices and number types of models, chosen here for all commands, trainers and benchmarks."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal

import torch

from rewardedit.untrusted import MEMORY_FAULT

Precision = Literal["no", "bf16", "fp16"]  # mixed precision, as accelerate names it
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PLANS = ContextVar("plans_for_a_gpu", default=False)  # a plan is made, see `planning_for_gpu`
TF32 = "REWARDEDIT_TF32"  # environment variable: 1 lets a GPU multiply matrices of fp32 models in TF32


def default_device() -> str:
    """Type of the device that models run on: "cuda" if torch sees a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@cache
def cpu_knows_bf16() -> bool:
    """True if the CPU has instructions for bf16, by the same check as torch's CPU kernels."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def computes_in_bf16(device: str | None = None) -> bool:
    """True if bf16 saves time on a type of device, by default the one that models run on: on a GPU or a CPU
    that has units for it. On a CPU without them, a matrix product takes some 80 times as long in bf16.
    """
    device = device or default_device()
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device != "cpu" or cpu_knows_bf16()


def autocast(device: str, enabled: bool = True) -> torch.autocast:
    """Context that computes in bf16 if that saves time; the weights stay as they are."""
    return torch.autocast(device, torch.bfloat16, enabled=enabled and computes_in_bf16(device))


def no_autocast(device: str) -> AbstractContextManager[Any]:
    """Context that computes in the tensors' own types, even in mixed precision. `meta` has no autocast."""
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


def tf32(device: str) -> AbstractContextManager[None]:
    """Context in which a GPU multiplies fp32 matrices in TF32, with 10 bits of mantissa, as it convolves by
    torch's default: for scorers and other models that are not trained. Only if the environment variable
    REWARDEDIT_TF32 is 1, as scores change in the third or fourth digit; never on a CPU.
    """
    return _tf32() if device == "cuda" and os.environ.get(TF32) == "1" else nullcontext()


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def precision_here(precision: Precision) -> Precision:
    """The mixed precision of a training, or "no" instead of bf16 if that does not save time."""
    return "no" if precision == "bf16" and not computes_in_bf16() else precision


def require_precision(precision: Precision) -> None:
    """Raises ValueError if a training cannot compute in this precision here."""
    if precision == "fp16" and default_device() == "cpu":
        raise ValueError("mixed_precision: fp16 needs a GPU; use bf16 or no on a CPU")


def inference_dtype(name: str | None = None) -> torch.dtype:
    """Type of the weights of models that are not trained: the named one,
    or float16 on a GPU and float32 on a CPU; float32 also instead of bfloat16 if that does not save time.

    Raises:
        ValueError: on a name that is not in `DTYPES`.
    """
    if name is None:
        return torch.float32 if default_device() == "cpu" else torch.float16
    if name not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}; got {name!r}")
    dtype = DTYPES[name]
    return torch.float32 if dtype == torch.bfloat16 and not computes_in_bf16() else dtype


def llm_dtype(dtype: torch.dtype | str | None = None) -> torch.dtype:
    """Type of the weights of language models that are not trained: the given one, or bfloat16 where torch
    sees a GPU, as many of them overflow in float16, and float32 on a CPU.

    Raises:
        ValueError: on an unknown name.
    """
    if dtype is not None:
        return parse_dtype(dtype)
    return torch.float32 if default_device() == "cpu" and not PLANS.get() else torch.bfloat16


@contextmanager
def planning_for_gpu() -> Iterator[None]:
    """Context in which `llm_dtype` is a GPU's on every machine: plans estimate the memory of a GPU."""
    token = PLANS.set(True)
    try:
        yield
    finally:
        PLANS.reset(token)


def is_out_of_memory(error: BaseException) -> bool:
    """True if memory of a GPU or the machine ran out, which torch also reports by plain RuntimeErrors."""
    named = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return named or (isinstance(error, RuntimeError) and MEMORY_FAULT.search(str(error)) is not None)


def parse_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """Returns a torch type given by itself or its name; raises ValueError for an unknown name."""
    parsed = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(parsed, torch.dtype):
        raise ValueError(f"dtype: expected one such as float32 or bfloat16; got {dtype!r}")
    return parsed


def require_device(name: str) -> None:
    """Raises ValueError unless a text names a device, such as cuda:1 or cpu; it need not be there."""
    try:
        torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device: expected a name such as cuda:1 or cpu; got {name!r}") from error


def require_device_there(name: str) -> None:
    """Raises ValueError unless a device that is named so can be computed on here."""
    require_device(name)
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"device: expected cpu or one of the {torch.cuda.device_count()} GPUs that torch sees here, the "
            f"first of which is cuda:0; got {name}"
        ) from error


def is_training_device(name: str | None, processes: int = 1) -> bool:
    """True if a device is one that trains, with one process a GPU from cuda:0 on; None is."""
    if name is None:
        return True
    device = torch.device(name)
    return device.type == default_device() and (device.index or 0) < processes


def device_name() -> str:
    """Name of the device for records of runs and measurements: the GPU's, or the CPU's number of threads."""
    if default_device() == "cuda":
        return torch.cuda.get_device_name()
    return f"CPU, {torch.get_num_threads()} threads"
