"""`rewardedit recipes`, and the lookup of recipes by name."""

import argparse
import importlib
import math
import re
import textwrap
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from rewardedit import config as configs
from rewardedit.cli import phases, spelling
from rewardedit.cli.own_data import held_out_of_own
from rewardedit.models import FOLDER, SMALL
from rewardedit.nearest import hint, nearest, question

CONFIG = "config.yaml"  # in a run's folder
# Module of each method that a recipe's `trainer:` names.
TRAINERS = {
    "adiee_data": "rewardedit.trainers.adiee_data",
    "adiee_scorer": "rewardedit.trainers.adiee_scorer",
    "dpo": "rewardedit.trainers.dpo",
    "flow_grpo": "rewardedit.trainers.flow_grpo",
    "nft": "rewardedit.trainers.nft",
    "refl": "rewardedit.trainers.refl",
    "reward_conditioned": "rewardedit.trainers.reward_conditioned",
    "shapes_autoencoder": "rewardedit.shapes.trainers.autoencoder",
    "shapes_clip": "rewardedit.shapes.trainers.clip",
    "shapes_detector": "rewardedit.shapes.trainers.detector",
    "shapes_editor": "rewardedit.shapes.trainers.editor",
    "shapes_flow_editor": "rewardedit.shapes.trainers.flow_editor",
    "shapes_segmenter": "rewardedit.shapes.trainers.segmenter",
    "shapes_text_encoder": "rewardedit.shapes.trainers.text_encoder",
    "shapes_text_to_image": "rewardedit.shapes.trainers.text_to_image",
    "shapes_vlm": "rewardedit.shapes.trainers.vlm",
    "vifi_clip": "rewardedit.trainers.vifi_clip",
    "vlm_sft": "rewardedit.trainers.vlm_sft",
}
# Titles of groups of trainers for photographs, in their order. None: phases of several.
GROUPS = {
    "edit photographs better": ("reward_conditioned", "refl", "nft", "dpo", "flow_grpo", None),
    "score edits": ("adiee_scorer", "vifi_clip"),
    "make data": ("adiee_data", "vlm_sft"),
}
OTHERS = "others"
TITLE = "rewardedit train NAME runs a recipe, with --dry-run its plan; +?: and some of unknown size"
INDENT = 41  # columns of a recipe's name
MEMORY = 8
DOWNLOAD = 10
FIRST = "quickstart"
START = "start here (no download)"
WORLD = "try things out on drawn shapes (small models, no download)"
WIDTH = 100  # columns of a screen
WORLD_FORM: Any = {"initial_indent": "  ", "subsequent_indent": "  ", "break_on_hyphens": False}


def add_parser(commands: Any) -> None:
    p = commands.add_parser("recipes", help="list the recipes")
    p.add_argument("--all", action="store_true", help="describe those on drawn shapes, too")
    p.set_defaults(run=run, parser=p, words=None)


def run(args: argparse.Namespace) -> None:
    lines = [TITLE, f"{'':{INDENT}}{'memory':>{MEMORY}}{'download':>{DOWNLOAD}}"]
    for title, names in recipe_groups(recipe_names()):
        lines.append(f"{title}:")
        if title == WORLD and not args.all:
            lines += textwrap.wrap(", ".join(names), WIDTH - 2, **WORLD_FORM)
        else:
            lines += map(_described, names)
    print("\n".join(lines))


def recipe_groups(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Recipes under titles: the first one, those for photographs by purpose, then those on drawn shapes."""
    groups: dict[str, list[str]] = {title: [] for title in (START, *GROUPS, OTHERS, WORLD)}
    for name in names:
        if name == FIRST:
            title = START
        elif name.startswith(SMALL):
            title = WORLD
        else:
            trainer = configs.load_yaml(recipe_path(name)).get("trainer")
            title = next((t for t, trainers in GROUPS.items() if trainer in trainers), OTHERS)
        groups[title].append(name)
    return [(title, group) for title, group in groups.items() if group]


def _described(name: str) -> str:
    """A recipe's name, GPU memory and downloads, and the first line of its file."""
    about = header(name)[0]
    needed = gpu_memory(name)
    memory = f"{math.ceil(needed)} GiB" if needed else ""
    line = f"  {name:<{INDENT - 2}}{memory:>{MEMORY}}{downloads(name):>{DOWNLOAD}}  {about}"
    return line.rstrip()


def header(name: str) -> list[str]:
    """The comment lines at the head of a packaged recipe."""
    lines = recipe_path(name).read_text(encoding="utf-8").splitlines()
    return [line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines)]


def gpu_memory(name: str) -> float | None:
    """Largest GiB of all stages, computed, as a recipe's header says, or that of its phases' recipes; None if
    none says it.
    """
    sizes: list[float] = []
    for line in header(name):
        if line.startswith("Memory"):
            sizes += map(float, re.findall(r"\d+\.\d+", line.partition("): ")[2]))
    phases_of = configs.load_yaml(recipe_path(name)).get("phases", ())
    for phase in phases_of if not sizes else ():
        of_phase = gpu_memory(phase["recipe"]) if "recipe" in phase else None
        sizes += [of_phase] if of_phase else []
    return max(sizes, default=None)


def downloads(name: str) -> str:
    """The GB of a recipe's downloads with an empty cache, as its header says; "" without one."""
    sizes = [line.partition(": ")[2] for line in header(name) if line.startswith("Downloads: ")]
    return sizes[0] if sizes else ""


def recipe_folders() -> list[Path]:
    """Folders of the packaged recipes: for photographs, and on drawn shapes."""
    from rewardedit import recipes

    return [Path(next(iter(recipes.__path__))), FOLDER.parent / "recipes"]


def recipe_path(name: str) -> Path:
    """The file of a packaged recipe.

    Raises:
        ValueError: on an unknown recipe.
    """
    if name in recipe_names():
        photographs, shapes = recipe_folders()
        folder = shapes if name.startswith(SMALL) else photographs
        return folder / f"{name.removeprefix(SMALL)}.yaml"
    remedy = question(nearest(name, recipe_names())) or "see rewardedit recipes"
    if Path(name).is_dir() or ("/" in name and not name.startswith(SMALL)):
        remedy = "expected a recipe, or the folder of a run that has begun"
    raise ValueError(f"no recipe {name!r}; {remedy}")


def recipe_names() -> list[str]:
    """The packaged recipes: for photographs, then those on drawn shapes in the order of `make world`."""
    photographs, shapes = recipe_folders()
    made = (shapes / "order.txt").read_text().split()
    return [*sorted(path.stem for path in photographs.glob("*.yaml")), *(f"{SMALL}{name}" for name in made)]


def run_name(recipe: str) -> str:
    """Name of a recipe's run, with a dash in place of the slash."""
    return recipe.replace("/", "-")


def read_recipe(name: str, words: Sequence[str]) -> dict[str, Any]:
    """A recipe's values as they are written, overridden by `key=value` words; all values of each phase.

    Args:
        name: of a packaged recipe or of one phase or part of it, such as shapes/adiee-data/more; or a path to
            a .yaml file, or to the folder of a run.

    Raises:
        ValueError: on an unknown recipe, phase or part.
    """
    path = Path(name)
    if is_run(name):
        from rewardedit.training.run_folder import trainer_of

        values = phases.of_a_run({"trainer": trainer_of(path), **configs.load_yaml(path / CONFIG)})
    elif name not in recipe_names() and path.parent.as_posix() in recipe_names():
        entries = phases.entries_in_full(read_recipe(path.parent.as_posix(), []))
        if path.name not in entries:
            raise ValueError(
                f"{name}: expected one of {', '.join(entries) or 'no phases'}; got {path.name!r}"
                f"{hint(path.name, entries)}"
            )
        values = {**entries[path.name], "name": run_name(name)}
    elif path.suffix == ".yaml":
        values = {"name": path.stem, **configs.load_yaml(path)}
    else:
        values = {"name": run_name(name), **configs.load_yaml(recipe_path(name))}
    if phases.has_phases(values):
        return phases.in_full(values, words, lambda other: read_recipe(other, []))
    return held_out_of_own(configs.override(values, words), configs.assignments(words))


def is_run(name: str) -> bool:
    """True if what was given as a recipe is the folder of a run; the name of a packaged recipe never
    is one.
    """
    return name not in recipe_names() and (Path(name) / CONFIG).is_file()


def require_known(name: str, words: Sequence[str]) -> None:
    """Checks the names in a recipe and in `key=value` words, and imports no trainer.

    Raises:
        ValueError: on an unknown recipe, trainer or setting.
    """
    if is_run(name):  # its own settings are known
        return
    values = read_recipe(name, words)
    trainings = {"": (values.pop("trainer", None), values)}
    if phases.has_phases(values):
        entries = phases.entries_in_full(values)
        trainings = {f"{key}.": (entry.pop("trainer"), entry) for key, entry in entries.items()}
    for where, (trainer, settings) in trainings.items():
        require_trainer(name if not where else where.removesuffix("."), trainer)
        spelling.require_known(TRAINERS[trainer], "Config", settings, where)


def load_recipe(name: str, words: Sequence[str]) -> tuple[Any, Any]:
    """A recipe's trainer module and its resolved config.

    Raises:
        ValueError: on an unknown recipe, trainer or setting.
    """
    from rewardedit.untrusted import require_component

    values = read_recipe(name, words)
    if isinstance(values["name"], str):
        require_component(values["name"], "name")  # it is a folder's
    if not phases.has_phases(values):
        return build(name, values.pop("trainer", None), values)

    from rewardedit.training import phases as trainings

    for group in phases.GROUPS:
        for key, entry in values.get(group, {}).items():
            require_component(key, group)
            _, settings = build(key, entry["trainer"], entry["settings"], f"{key}.")
            values[group][key] = trainings.Phase(entry["trainer"], settings)
    return trainings, trainings.Config(**values)


def build(name: str, trainer: Any, values: dict[str, Any], where: str = "") -> tuple[Any, Any]:
    """A trainer's module and the config of these values.

    Raises:
        ValueError: on an unknown trainer or setting.
    """
    require_trainer(name, trainer)
    module = importlib.import_module(TRAINERS[trainer])
    return module, configs.build(module.Config, values, where)


def require_trainer(name: str, trainer: Any) -> None:
    """Raises ValueError if a recipe's trainer is none of ours."""
    if trainer not in TRAINERS:
        near = hint(str(trainer), TRAINERS)
        raise ValueError(f"{name}: trainer: expected one of {', '.join(TRAINERS)}; got {trainer!r}{near}")
