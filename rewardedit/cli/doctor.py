"""`rewardedit doctor`"""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

from rewardedit.cli.recipes import load_recipe, recipe_names, run_name
from rewardedit.cli.terminal import quiet, sentence
from rewardedit.extras import install_command

FIRST_RECIPE = "quickstart"  # it runs with what comes with the package


def add_parser(commands: Any) -> None:
    p = commands.add_parser(
        "doctor",
        help="say what is installed, what runs where, and what each recipe still needs",
        epilog="Nothing is fetched. The exit code is 0 where all that works offline works, and 1 where not.",
    )
    p.add_argument("--json", action="store_true", help="print the same as JSON")
    p.set_defaults(run=run, parser=p, words=None)


def run(args: argparse.Namespace) -> int:
    found = examine()
    print(json.dumps(found, indent=1, ensure_ascii=False) if args.json else "\n".join(lines_of(found)))
    return 1 if found["broken"] else 0


def examine() -> dict[str, Any]:
    """All findings as plain values; `broken` has a line for each thing that is needed and does not work."""
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
    recipes = {name: examine_recipe(name, cache) for name in recipe_names()}
    first = recipes[FIRST_RECIPE]
    broken += [f"recipe {FIRST_RECIPE}: {line}" for line in needs_of(first)]
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
        broken.append(f"{what}: {type(error).__name__}: {sentence(error)}")
        return None


def examine_recipe(name: str, cache: Any) -> dict[str, Any]:
    """Lists what a recipe still needs, or says why it cannot be read."""
    try:
        from rewardedit.cli.needs import find_needs, source_of

        trainer, config = load_recipe(name, [])
        needs = find_needs(config, source_of(trainer, config), cache, recipe_names())
    except Exception as error:  # a library that cannot be imported raises anything
        return {"needs": [], "problem": sentence(error)}
    return {"needs": list(map(dataclasses.asdict, needs)), "problem": None}


def needs_of(recipe: dict[str, Any]) -> list[str]:
    """One line for each thing that keeps a recipe from running."""
    lines = [f"needs the {need['kind']} {need['name']}: {need['remedy']}" for need in recipe["needs"]]
    return [*lines, *([f"cannot be read: {recipe['problem']}"] if recipe["problem"] else [])]


def lines_of(found: dict[str, Any]) -> list[str]:
    """The findings in plain words."""
    device = found["device"]
    attention = found["attention"]
    where = f"{device['name']} ({device['hardware']}; {device['reason']})" if device else "unknown"
    kernel = f"{attention['backend']} ({attention['reason']})" if attention else "unknown"
    lines = [f"python {found['python']}", "packages", *map(line_of_package, found["packages"])]
    lines += [f"device: {where}", f"attention: {kernel}"]
    lines += ["models that come with the package", *map(line_of_model, found["packaged_models"])]
    lines += [f"Hugging Face cache: {found['cache']['folder']}"]
    lines += map(line_of_repo, found["cache"]["repos"]) if found["cache"]["repos"] else ["  empty"]
    lines += ["recipes"]
    for name, recipe in found["recipes"].items():
        needs = needs_of(recipe)
        lines += [f"  {name}: {'not ready' if needs else 'ready'}", *(f"    {line}" for line in needs)]
    if found["broken"]:
        return [*lines, "broken", *(f"  {line}" for line in found["broken"])]
    return [*lines, "all that works offline is in order"]


def line_of_package(package: dict[str, Any]) -> str:
    if package["problem"]:
        return f"  {package['name']}: {package['problem']}"
    if package["version"]:
        return f"  {package['name']} {package['version']}"
    return f"  {package['name']}: not installed; optional: {install_command(package['extra'])}"


def line_of_model(model: dict[str, Any]) -> str:
    if model["bytes"] is None:
        recipe = next(name for name in recipe_names() if run_name(name) == model["name"])
        return f"  {model['name']}: not there; rewardedit train {recipe} makes one"
    return f"  {model['name']}: {size(model['bytes'])}"


def line_of_repo(repo: dict[str, Any]) -> str:
    problem = f"; {repo['problem']}" if repo["problem"] else ""
    return f"  {repo['kind']} {repo['name']}: {size(repo['bytes'])}{problem}"


def size(n: int) -> str:
    """Bytes in a unit that fits."""
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"
