"""`rewardedit doctor`"""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

from rewardedit.cli.doctor_text import in_full, needs_of, screen
from rewardedit.cli.downloads import size_of
from rewardedit.cli.recipes import load_recipe, recipe_names, recipe_path
from rewardedit.cli.terminal import first_line, quiet

FIRST_RECIPE = "quickstart"  # it runs with what comes with the package


def add_parser(commands: Any) -> None:
    p = commands.add_parser(
        "doctor",
        help="say what is installed, what runs where, and what each recipe still needs",
        epilog="It downloads nothing. The exit code is 0 if everything that works offline is ready, else 1.",
    )
    p.add_argument("recipe", metavar="RECIPE", nargs="?", help="list everything that this recipe needs")
    p.add_argument("--all", action="store_true", help="list every package, model and need")
    p.add_argument("--json", action="store_true", help="print everything as JSON")
    p.set_defaults(run=run, parser=p, words=None)


def run(args: argparse.Namespace) -> int:
    if args.recipe is not None and not args.recipe.endswith(".yaml"):
        recipe_path(args.recipe)  # refuses an unknown one
    findings = examine(recipe_names() if args.recipe is None else [args.recipe])
    lines = in_full(findings) if args.all else screen(findings)
    print(json.dumps(findings, indent=1, ensure_ascii=False) if args.json else "\n".join(lines))
    return 1 if findings["broken"] else 0


def examine(names: list[str]) -> dict[str, Any]:
    """All findings as plain values; `broken` has a line for each thing that is needed and does not work.

    Args:
        names: of the recipes.
    """
    from rewardedit.cli import checks

    broken: list[str] = []
    with contextlib.suppress(ImportError):  # failed imports are reported below
        quiet(imported=True)
    packages = checks.packages()
    broken += [f"{p.name}: {p.problem}" for p in packages if p.problem]
    device = attempt("device", lambda: dataclasses.asdict(checks.device()), broken)
    attention = attempt("attention", lambda: dataclasses.asdict(checks.attention()), broken)
    models = checks.packaged_models()
    for model in models:
        if model.default and model.bytes is None:
            broken.append(f"{model.name}: its weights are missing; install rewardedit again")
    cache = checks.hub_cache()
    recipes = {name: examine_recipe(name, cache) for name in names}
    if FIRST_RECIPE in recipes:
        broken += [f"recipe {FIRST_RECIPE}: {line}" for line in needs_of(recipes[FIRST_RECIPE])]
    return {
        "python": sys.version.split()[0],
        "packages": list(map(dataclasses.asdict, packages)),
        "device": device,
        "attention": attention,
        "packaged_models": list(map(dataclasses.asdict, models)),
        "cache": {
            "folder": str(cache.folder),
            "repos": list(map(dataclasses.asdict, cache.repos)),
        },
        "recipes": recipes,
        "broken": broken,
    }


def attempt(what: str, find: Callable[[], dict[str, Any]], broken: list[str]) -> dict[str, Any] | None:
    """Returns a finding; if a library fails, returns None and adds its message to `broken`."""
    try:
        return find()
    except Exception as error:  # of any library
        broken.append(f"{what}: {type(error).__name__}: {first_line(error)}")
        return None


def examine_recipe(name: str, cache: Any) -> dict[str, Any]:
    """Lists what a recipe still needs, or says why it cannot be read."""
    try:
        from rewardedit.cli.needs import missing_requirements, source_of

        trainer, config = load_recipe(name, [])
        needs = missing_requirements(config, source_of(trainer, config), cache, recipe_names())
    except Exception as error:  # a library that cannot be imported raises anything
        return {"needs": [], "problem": first_line(error)}
    known = [{**dataclasses.asdict(need), "gb": size_of(need.name)} for need in needs]
    return {"needs": known, "problem": None}
