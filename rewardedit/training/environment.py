"""Environment of a run or a measurement: versions, device, commit and date,
stored next to its results.
"""

import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from rewardedit import devices
from rewardedit.data.worlds import WORLDS, world
from rewardedit.models import digests

PACKAGES = ("rewardedit", "torch", "diffusers", "transformers", "peft", "accelerate", "numpy")


def environment() -> dict[str, Any]:
    """Versions (including the generated world and its models), device and commit, as recorded in a run folder
    and in a benchmark result.
    """
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "device": devices.device_name(),
        "world": world(next(iter(WORLDS))).version,
        "models": digests(),
        "commit": commit(Path(__file__).parent),
        "date": time.strftime("%Y-%m-%d"),
    }


def commit(folder: Path) -> str | None:
    """Commit of the checkout that contains a folder; None without git or a repository."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=folder)
    except OSError:
        return None
    return found.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
