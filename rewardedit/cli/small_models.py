"""Small models by the word `--world`, and a warning where one meets images of another kind."""

import sys
from collections.abc import Mapping
from typing import Any

from rewardedit.data.worlds import World, world
from rewardedit.models import EDITOR, NAMES, SIDE, WORLDS, names_in
from rewardedit.processes import processes
from rewardedit.scorer_spec import ScorerSpec, with_options

SCORER = "for photographs leave --world out, or name a published model"
MODEL = f"for photographs leave --world out, or name an editor of photographs, e.g. --model {EDITOR}"
TRAINING = "a recipe for photographs, such as magicbrush-refl-24gb, names published models"
SCORERS = ("relabel", "reward")  # settings of trainers that hold a scorer


def world_of(name: str | None) -> World | None:
    """Returns the world that `--world` names."""
    return None if name is None else world(name)


def in_world(spec: ScorerSpec, world: World | None) -> ScorerSpec:
    """Returns a scorer's spec with the models of a world, where it names none itself."""
    return spec if world is None else with_options(spec, world.scorers)


def size_of(image: Any) -> tuple[int, int] | None:
    """Returns width and height of a PIL image or of a tensor (…, h, w); None for anything else."""
    if hasattr(image, "shape"):
        return int(image.shape[-1]), int(image.shape[-2])
    size = getattr(image, "size", None)
    return size if isinstance(size, tuple) else None


def first_size(rows: Any) -> tuple[int, int] | None:
    """Returns the size of the first row's source image; None if it cannot be read, or rows are streamed."""
    try:
        return size_of(rows[0].source)
    except Exception:  # any: reading the rows will say what is wrong
        return None


def file_size(path: Any) -> tuple[int, int] | None:
    """Returns the size of an image file; None if it cannot be read."""
    from rewardedit.untrusted import open_image

    try:
        with open_image(path) as image:
            return image.size
    except (OSError, ValueError):  # reading the image will say what is wrong
        return None


def warn_of_small_models(used: Mapping[str, set[str]], size: tuple[int, int] | None, remedy: str) -> None:
    """Prints a line on stderr for the parts that use a small model on other images than they know.

    Args:
        used: packaged models by the part that uses them, such as a scorer's name.
        size: width and height of the images; None: unknown, and nothing is printed.
        remedy: what to do for photographs.
    """
    parts = {name: names & NAMES.keys() for name, names in used.items() if names & NAMES.keys()}
    if not parts or size in (None, (SIDE, SIDE)) or not processes().is_main_process:
        return
    models = ", ".join(sorted(set().union(*parts.values())))
    known = f"small models ({models}) know only drawn shapes of {SIDE} × {SIDE} pixels"
    other = f"results for other images (here {size[0]} × {size[1]}) are meaningless"
    print(
        f"warning: {', '.join(parts)}: {known}; {other}; {remedy}",
        file=sys.stderr,
    )


def warn_of_training(config: Any) -> None:
    """Warns as `warn_of_small_models` of the base and the scorer of a training on other rows."""
    from rewardedit.data import DataConfig
    from rewardedit.data.table import Table
    from rewardedit.scorers.load import packaged_models

    for phase in getattr(config, "trainings", dict)().values():
        warn_of_training(phase.settings)
    data = getattr(config, "data", None)
    if not isinstance(data, DataConfig) or data.name in (*WORLDS, "labelled"):
        return
    used = {"base": names_in(getattr(config, "base", None))}
    for name in SCORERS:
        if hasattr(config, name):
            used[f"{name}.scorer"] = packaged_models(getattr(config, name).scorer)
    if any(used.values()):
        side = data.size or SIDE + 1
        size = first_size(Table(data.path, data.columns, data.root)) if data.name == "table" else (side, side)
        warn_of_small_models(used, size, TRAINING)
