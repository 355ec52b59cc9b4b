"""`rewardedit train RECIPE key=value …`"""

import argparse
from pathlib import Path
from typing import Any

from rewardedit import config as configs
from rewardedit.cli.recipes import load_recipe


def add_parser(commands: Any) -> None:
    p = commands.add_parser("train", help="run a recipe: rewardedit train quickstart train.lr=1e-4")
    p.add_argument("recipe", help="a name from `rewardedit recipes`, or a path to a .yaml file")
    p.add_argument("settings", nargs="*", metavar="key=value", help="settings laid over the recipe; dots reach inside groups")
    p.add_argument("--out", help="the run's folder (default: runs/NAME)")
    p.add_argument("--dry-run", action="store_true", help="check everything and print the plan, without computing")
    p.add_argument("--resume", action="store_true", help="go on where an interrupted run stopped")
    p.add_argument("--overwrite", action="store_true", help="remove an earlier run in the same folder first")
    p.set_defaults(run=run, parser=p, words="settings")


def run(args: argparse.Namespace) -> None:
    module, config = load_recipe(args.recipe, args.settings)
    folder = Path(args.out or Path("runs") / config.name)
    if args.dry_run:
        print(configs.dump(config))
        print("\n".join(module.plan(config)))
        return
    from rewardedit.training.run import clear

    clear(folder, args.resume, args.overwrite)
    module.main(config, folder, resume=args.resume)
