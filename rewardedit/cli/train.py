"""`rewardedit train RECIPE key=value …`"""

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from rewardedit import config as configs
from rewardedit.cli.engine import add_engine_option
from rewardedit.cli.recipes import load_recipe, read_recipe
from rewardedit.cli.terminal import quiet
from rewardedit.scorer_spec import read_spec

SCORERS = ("scorer", "held_out", "clip_d", "similarity")  # settings that name scorers


class Help(argparse.Action):
    """`rewardedit train RECIPE --help`: the options, and every setting of that recipe."""

    def __init__(self, option_strings: Any, dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, args: argparse.Namespace, *_: Any) -> None:
        parser.print_help()
        if args.recipe is not None:
            print_settings(args.recipe, args.settings or [])
        parser.exit()


def add_parser(commands: Any) -> None:
    example = "run a recipe: rewardedit train quickstart train.lr=1e-4"
    p = commands.add_parser("train", help=example, add_help=False)
    p.add_argument("-h", "--help", action=Help, help="show this; after a RECIPE, every setting of it too")
    p.add_argument("recipe", help="a name from `rewardedit recipes`, or a path to a .yaml file")
    p.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="settings laid over the recipe; dots reach inside groups",
    )
    p.add_argument("--out", help="the run's folder (default: runs/NAME)")
    p.add_argument(
        "--dry-run", action="store_true", help="check everything and print the plan, without computing"
    )
    earlier = p.add_mutually_exclusive_group()
    earlier.add_argument("--resume", action="store_true", help="go on where an interrupted run stopped")
    earlier.add_argument(
        "--overwrite", action="store_true", help="remove an earlier run in the same folder first"
    )
    add_engine_option(p)
    p.set_defaults(run=run, parser=p, words="settings")


def run(args: argparse.Namespace) -> None:
    for name in own_code(read_recipe(args.recipe, args.settings)):  # said before it is imported
        print(f"{args.recipe} runs code that is not rewardedit's: {name}", file=sys.stderr)
    module, config = load_recipe(args.recipe, args.settings)
    if args.out and "://" in args.out:
        raise ValueError(f"--out {args.out}: a training needs a folder of a file system")
    folder = Path(args.out or Path("runs") / config.name)
    if args.dry_run:
        print(configs.dump(config))
        print("\n".join(module.plan(config)))
        return
    from rewardedit.training.run import clear, usage_told

    clear(folder, args.resume, args.overwrite)
    with usage_told(folder):
        module.main(config, folder, resume=args.resume)


def own_code(values: Any, setting: str = "") -> list[str]:
    """The classes that scorers of a recipe name as package.module:Class, which are imported when they are
    used.
    """
    found: list[str] = []
    if setting in SCORERS:
        for spec in values if isinstance(values, list) else [values]:
            if isinstance(spec, str | dict):
                with suppress(ValueError):  # it is no scorer, or a wrong one, which is told when it is read
                    found += [name for name in read_spec(spec) if ":" in name]
    if isinstance(values, dict):
        found += [name for key, value in values.items() for name in own_code(value, key)]
    return list(dict.fromkeys(found))


def print_settings(recipe: str, words: list[str]) -> None:
    """Lists every setting of a recipe with its value, type and description."""
    from rewardedit.cli.settings import describe, names_in

    quiet()  # its trainer is imported, and with it all libraries
    module, config = load_recipe(recipe, words)
    print(
        f"\nsettings of {recipe} (trainer {module.__name__.rpartition('.')[2]}); "
        "* set by the recipe or here:\n"
    )
    print(describe(module.Config, config, names_in(read_recipe(recipe, words))))
