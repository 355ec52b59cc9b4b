"""Logging of a training besides metrics.jsonl: to every experiment tracker that accelerate supports."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from PIL import Image

from rewardedit.config import load_yaml
from rewardedit.models.extras import install_command
from rewardedit.processes import print_on_main

# accelerate's names; "all" uses every one that is installed.
Tracker = Literal[
    "tensorboard",
    "wandb",
    "comet_ml",
    "aim",
    "mlflow",
    "clearml",
    "dvclive",
    "swanlab",
    "trackio",
    "all",
    "none",
]
PROJECT = "rewardedit"
EXTRAS = ("tensorboard", "wandb")  # extras of this package; other trackers are installed by their own names
DEFAULT = "tensorboard"  # skipped if it is not installed
# Form in which `log_images` of each of accelerate's trackers takes one image; the other trackers have no such
# method.
AS_BATCH = "batch"
AS_LIST = "list"
AS_IMAGE = "image"
TAKES_IMAGES = {
    "tensorboard": AS_BATCH,
    "wandb": AS_LIST,
    "swanlab": AS_LIST,
    "aim": AS_IMAGE,
    "clearml": AS_IMAGE,
}


def require_tracker(tracker: Tracker) -> None:
    """Raises ValueError if a tracker that was requested by name is not installed."""
    if tracker in ("none", "all", DEFAULT) or tracker in map(str, get_available_trackers()):
        return
    raise ValueError(f"tracker: {tracker} is not installed; {_install(tracker)}, or take tracker: none")


def _install(tracker: str) -> str:
    return install_command(tracker) if tracker in EXTRAS else f"pip install {tracker}"


def installed_trackers(tracker: Tracker) -> list[str]:
    """Trackers that a setting stands for. The default is left out if it is not installed, and a line reports
    that.
    """
    available = list(map(str, get_available_trackers()))
    if tracker == "none":
        return []
    if tracker == "all":
        if not available:
            print_on_main("no tracker: none that accelerate knows is installed; metrics are in metrics.jsonl")
        return available
    if tracker in available:
        return [tracker]
    print_on_main(
        f"no tracker: {tracker} is not installed ({_install(tracker)}); metrics are in metrics.jsonl"
    )
    return []


def start_trackers(accelerator: Accelerator, folder: Path) -> None:
    """Starts the accelerator's trackers with the settings of the run in `folder`."""
    settings = run_settings(folder)
    name = run_name(folder, settings)
    options = {
        "wandb": {"name": name},
        "trackio": {"name": name},
        "swanlab": {"experiment_name": name},
        "mlflow": {"run_name": name},
        "clearml": {"task_name": name},
        "dvclive": {"dir": str(folder / "logs" / "dvclive")},  # its own default is the working directory
    }
    accelerator.init_trackers(PROJECT, flatten(settings), options)


def run_settings(folder: Path) -> dict[str, Any]:
    """Resolved recipe of the run in `folder`, or of the comparison that it is part of,
    and `folder` itself.
    """
    config = (folder.parent.parent if folder.parent.name == "variants" else folder) / "config.yaml"
    recipe = load_yaml(config) if config.is_file() else {}  # a run started from Python has none
    return {**recipe, "folder": str(folder)}


def run_name(folder: Path, settings: Mapping[str, Any]) -> str:
    """Name of the recipe; for a part of a comparison, e.g. "magicbrush-refl-pairs_only"."""
    recipe = settings.get("name", folder.name)
    return f"{recipe}-{folder.name}" if folder.parent.name == "variants" else recipe


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str | int | float | bool]:
    """Settings by their dotted names, e.g. `train.lr`; lists and None, which not every tracker accepts,
    become text.
    """
    flat: dict[str, str | int | float | bool] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, str | int | float) else str(value)
    return flat


def without_images(accelerator: Accelerator) -> list[str]:
    """The accelerator's trackers that accept no images."""
    return [tracker.name for tracker in accelerator.trackers if tracker.name not in TAKES_IMAGES]


def log_images(accelerator: Accelerator, files: list[Path], step: int) -> None:
    """Logs image files as `validation/NAME`, on the main process, to the trackers that accept images."""
    for path in files:
        name = f"validation/{path.stem}"
        with Image.open(path) as image:
            image.load()
        for tracker in accelerator.trackers:
            takes = TAKES_IMAGES.get(tracker.name)
            if takes == AS_BATCH:
                tracker.log_images({name: np.asarray(image)[None]}, step, dataformats="NHWC")
            elif takes == AS_LIST:
                tracker.log_images({name: [image]}, step)
            elif takes == AS_IMAGE:
                tracker.log_images({name: image}, step)
