"""`rewardedit recipes`, and the lookup of recipes by name."""

import argparse
import difflib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardedit import config as configs

CONFIG = "config.yaml"  # in a run's folder
# Module of each method that a recipe's `trainer:` names.
TRAINERS = {
    "adiee_data": "rewardedit.trainers.adiee_data",
    "adiee_scorer": "rewardedit.trainers.adiee_scorer",
    "captioner": "rewardedit.trainers.captioner",
    "refl": "rewardedit.trainers.refl",
    "reward_conditioned": "rewardedit.trainers.reward_conditioned",
    "shapes_autoencoder": "rewardedit.shapes.trainers.autoencoder",
    "shapes_clip": "rewardedit.shapes.trainers.clip",
    "shapes_detector": "rewardedit.shapes.trainers.detector",
    "shapes_editor": "rewardedit.shapes.trainers.editor",
    "shapes_segmenter": "rewardedit.shapes.trainers.segmenter",
    "shapes_text_encoder": "rewardedit.shapes.trainers.text_encoder",
    "shapes_text_to_image": "rewardedit.shapes.trainers.text_to_image",
    "shapes_vlm": "rewardedit.shapes.trainers.vlm",
    "vifi_clip": "rewardedit.trainers.vifi_clip",
}
WORLD = "the offline world (small models on rendered shapes, without downloads)"


def add_parser(commands: Any) -> None:
    p = commands.add_parser("recipes", help="list the recipes")
    p.set_defaults(run=run, parser=p, words=None)


def run(args: argparse.Namespace) -> None:
    for folder in recipe_folders():
        if folder != recipe_folders()[0]:
            print(f"\n{WORLD}:")
        for path in sorted(folder.glob("*.yaml")):
            first = path.read_text().splitlines()[0].lstrip("# ")
            print(f"{path.stem:<41}{first}")


def recipe_folders() -> list[Path]:
    """Folders of the packaged recipes: for photographs, and of the offline world."""
    from rewardedit import recipes

    return [Path(next(iter(recipes.__path__))), Path(__file__).parents[1] / "shapes" / "recipes"]


def recipe_path(name: str) -> Path:
    """The file of a packaged recipe.

    Raises:
        ValueError: on an unknown recipe.
    """
    for folder in recipe_folders():
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    near = difflib.get_close_matches(name, recipe_names(), 1)
    remedy = f"did you mean {near[0]}?" if near else "see rewardedit recipes"
    if Path(name).is_dir() or "/" in name:
        remedy = "expected a recipe, or the folder of a run that has begun"
    raise ValueError(f"no recipe {name!r}; {remedy}")


def recipe_names() -> list[str]:
    """The packaged recipes: for photographs first, then of the offline world, each sorted."""
    return [path.stem for folder in recipe_folders() for path in sorted(folder.glob("*.yaml"))]


def read_recipe(name: str, words: Sequence[str]) -> dict[str, Any]:
    """A recipe's values as they are written, overridden by `key=value` words.

    Args:
        name: of a packaged recipe, or a path to a .yaml file, or to the folder of a run.

    Raises:
        ValueError: on an unknown recipe.
    """
    path = Path(name)
    if is_run(name):
        from rewardedit.training.run_folder import trainer_of

        return configs.override(
            {"trainer": trainer_of(path), **configs.load_yaml(path / CONFIG)}, list(words)
        )
    if path.suffix != ".yaml":
        path = recipe_path(name)
    return configs.override({"name": path.stem, **configs.load_yaml(path)}, list(words))


def is_run(name: str) -> bool:
    """True if what was given as a recipe is the folder of a run; the name of a packaged recipe never
    is one.
    """
    return name not in recipe_names() and (Path(name) / CONFIG).is_file()


def load_recipe(name: str, words: Sequence[str]) -> tuple[Any, Any]:
    """A recipe's trainer module and its resolved config.

    Raises:
        ValueError: on an unknown recipe, trainer or setting.
    """
    from rewardedit.untrusted import require_component

    values = read_recipe(name, words)
    trainer = values.pop("trainer", None)
    if trainer not in TRAINERS:
        raise ValueError(f"{name}: trainer: expected one of {', '.join(TRAINERS)}; got {trainer!r}")
    if isinstance(values["name"], str):
        require_component(values["name"], "name")  # it is a folder's
    module = importlib.import_module(TRAINERS[trainer])
    return module, configs.build(module.Config, values)
