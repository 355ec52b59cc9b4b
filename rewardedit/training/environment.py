"""Environment of a run or a measurement: versions, device, processor, commit and date,
stored next to its results.
"""

import os
import platform
import re
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from rewardedit import devices
from rewardedit.data.worlds import WORLDS, world
from rewardedit.models import digests

PACKAGES = ("rewardedit", "torch", "diffusers", "transformers", "peft", "accelerate", "numpy")
COMMIT = "REWARDEDIT_COMMIT"  # environment variable with the commit of a copy that has no git
CPU_INFO = Path("/proc/cpuinfo")
# Instructions that change how fast a model runs, as Linux names them on x86 and ARM.
FLAGS = re.compile(r"avx2|fma|avx512(f|_\w+)|avx_vnni|amx_\w+|asimd(hp|dp)|sve2?|i8mm|bf16")


def environment() -> dict[str, Any]:
    """Versions (including the generated world and its models), device, processor and commit, as recorded in a
    run folder and in a benchmark result.
    """
    made_from, source = commit(Path(__file__).parent)
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "device": devices.device_name(),
        "cpu": cpu(),
        "world": world(next(iter(WORLDS))).version,
        "models": digests(),
        "commit": made_from,
        "commit_from": source,
        "date": time.strftime("%Y-%m-%d"),
    }


def commit(folder: Path) -> tuple[str | None, str | None]:
    """Commit of the checkout that contains a folder, and where it is known from: "git", or the variable
    REWARDEDIT_COMMIT where there is no repository; None for both without either.

    Raises:
        ValueError: if the variable is needed and holds something else.
    """
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=folder)
    except OSError:
        done = None
    if done is not None and done.stdout.strip():
        return done.stdout.strip(), "git"
    named = os.environ.get(COMMIT, "").strip()
    if not named:
        return None, None
    if not re.fullmatch(r"[0-9a-f]{7,64}", named):
        raise ValueError(
            f"{COMMIT}: expected what `git rev-parse HEAD` prints, got {named[:80]!r}; correct it"
        )
    return named, COMMIT


def cpu() -> dict[str, Any]:
    """The processor's name, numbers and instructions that matter, its cores, and the threads in use. The name
    alone says little: machines of one name differ by a factor of 1.9.
    """
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.is_file() else []
    pairs = [line.partition(":") for line in lines]
    fields = {name.strip().lower(): value.strip() for name, _, value in reversed(pairs)}
    words = (fields.get("flags") or fields.get("features") or "").split()
    return {
        "name": fields.get("model name") or platform.processor() or platform.machine(),
        **{name: fields.get(name) for name in ("cpu family", "model", "stepping")},
        "flags": sorted(filter(FLAGS.fullmatch, words)),
        "capability": torch.backends.cpu.get_cpu_capability(),  # that torch's own kernels use
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
