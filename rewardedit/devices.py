"""Where models run: the one place that all commands, trainers and benchmarks ask."""

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def default_device() -> str:
    """Type of the device that models run on: "cuda" where torch sees a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def inference_dtype(name: str | None = None) -> torch.dtype:
    """Type of the weights of models that are not trained: the one named,
    or float16 on a GPU and float32 on a CPU.

    Raises:
        ValueError: on a name that is not in `DTYPES`.
    """
    if name is None:
        return torch.float32 if default_device() == "cpu" else torch.float16
    if name not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}; got {name!r}")
    return DTYPES[name]


def device_name() -> str:
    """For records of runs and measurements: the GPU's name, or how many threads the CPU computes with."""
    if default_device() == "cuda":
        return torch.cuda.get_device_name()
    return f"CPU, {torch.get_num_threads()} threads"
