"""`rewardedit recipes`, and what a recipe's name stands for."""

import argparse
import difflib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardedit import config as configs

CONFIG = "config.yaml"  # in a run's folder
TRAINERS = (
    "adiee_data",
    "adiee_scorer",
    "captioner",
    "refl",
    "reward_conditioned",
    "shapes_autoencoder",
    "shapes_clip",
    "shapes_detector",
    "shapes_editor",
    "shapes_segmenter",
    "shapes_text_encoder",
    "shapes_text_to_image",
    "shapes_vlm",
    "vifi_clip",
)


def add_parser(commands: Any) -> None:
    p = commands.add_parser("recipes", help="list the recipes")
    p.set_defaults(run=run, parser=p, words=None)


def run(args: argparse.Namespace) -> None:
    for name in recipe_names():
        first = (recipe_folder() / f"{name}.yaml").read_text().splitlines()[0].lstrip("# ")
        print(f"{name:<36}{first}")


def recipe_folder() -> Path:
    """Where the packaged recipes are."""
    from rewardedit import recipes

    return Path(next(iter(recipes.__path__)))


def recipe_names() -> list[str]:
    """The packaged recipes, sorted."""
    return sorted(path.stem for path in recipe_folder().glob("*.yaml"))


def read_recipe(name: str, words: Sequence[str]) -> dict[str, Any]:
    """A recipe's values as they are written, with `key=value` words laid over them.

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
        path = recipe_folder() / f"{name}.yaml"
        if not path.is_file():
            near = difflib.get_close_matches(name, recipe_names(), 1)
            remedy = f"did you mean {near[0]}?" if near else "see rewardedit recipes"
            if Path(name).is_dir() or "/" in name:
                remedy = "expected a recipe, or the folder of a run that has begun"
            raise ValueError(f"no recipe {name!r}; {remedy}")
    return configs.override({"name": path.stem, **configs.load_yaml(path)}, list(words))


def is_run(name: str) -> bool:
    """True where what stands in the place of a recipe is the folder of a run; a packaged recipe's name is
    never one.
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
    module = importlib.import_module(f"rewardedit.trainers.{trainer}")
    return module, configs.build(module.Config, values)
