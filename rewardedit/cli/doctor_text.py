"""The findings of `rewardedit doctor` in words: on one screen, or in full."""

import textwrap
from collections.abc import Mapping
from typing import Any

from rewardedit.cli.downloads import in_short, total
from rewardedit.cli.recipes import recipe_groups
from rewardedit.models import RECIPES
from rewardedit.models.extras import install_command

WIDTH = 100  # columns of a screen
WIDE = 41  # columns of a recipe's name
SHORT = 14  # recipes; longer groups are listed by their state
SHOWN = 4  # needed packages that a screen names
IN_ORDER = "Everything that works offline is ready"
HINT = "rewardedit doctor RECIPE lists what one needs, --all everything; +?: and some of unknown size"


def needs_of(recipe: dict[str, Any]) -> list[str]:
    """One line for each thing that keeps a recipe from running."""
    lines = [f"needs the {need['kind']} {need['name']}: {need['remedy']}" for need in recipe["needs"]]
    if recipe["problem"]:
        lines.append(f"cannot be read: {recipe['problem']}")
    return lines


def screen(findings: dict[str, Any]) -> list[str]:
    """The findings on one screen; with a single recipe, everything that it needs."""
    recipes = findings["recipes"]
    if len(recipes) == 1:
        ((name, recipe),) = recipes.items()
        return [*of_recipe(name, recipe), *_end(findings)]
    lines = [*_machine(findings), *_packages(findings["packages"])]
    lines += [*_models(findings), *_cache(findings["cache"])]
    for title, names in recipe_groups(list(recipes)):
        lines.append(f"{title}:")
        states = {name: state_of(recipes[name]) for name in names}
        lines += _apart(states) if len(states) <= SHORT else _together(states)
    return [*lines, *_end(findings), HINT]


def of_recipe(name: str, recipe: dict[str, Any]) -> list[str]:
    """A recipe's state and everything that it needs."""
    needs = needs_of(recipe)
    lines = [f"{name}: {'not ready' if needs else 'ready'}", *_indented(needs)]
    downloads = _downloads(recipe)
    if downloads:
        lines.append(f"  {total(downloads)}")
    return lines


def state_of(recipe: dict[str, Any]) -> str:
    """A recipe's state in a few words."""
    if recipe["problem"]:
        return f"cannot be read: {recipe['problem']}"
    downloads = _downloads(recipe)
    runs: list[str] = []
    others: list[str] = []
    for need in recipe["needs"]:
        if need["kind"] == "run":
            command = need["remedy"].removesuffix(" makes it")
            runs.append(f"after {command.removeprefix('rewardedit train ')}")
        elif not need["on_hub"]:
            others.append(f"needs {need['name']}")

    states = [f"downloads {in_short(downloads)}"] if downloads else []
    return "; ".join([*states, *dict.fromkeys(runs), *others]) or "ready"


def _downloads(recipe: dict[str, Any]) -> list[str]:
    return [need["name"] for need in recipe["needs"] if need["on_hub"]]


def _machine(findings: dict[str, Any]) -> list[str]:
    device = findings["device"]
    attention = findings["attention"]
    where = f"{device['name']} ({device['hardware']}; {device['reason']})" if device else "unknown"
    kernel = f"{attention['backend']} ({attention['reason']})" if attention else "unknown"
    return [f"device: {where}", f"attention: {kernel}"]


def _packages(packages: list[dict[str, Any]]) -> list[str]:
    """Versions of the needed packages, faults, and the extras that are not installed."""
    needed: list[str] = []
    missing: list[str] = []
    faults: list[str] = []
    for package in packages:
        name = package["name"]
        if package["version"] and not package["extra"]:
            needed.append(f"{name} {package['version']}")
        if package["extra"] and not package["version"]:
            missing.append(name)
        if package["problem"]:
            faults.append(f"  {name}: {package['problem']}")

    rest = [f"{len(needed) - SHOWN} more"] if len(needed) > SHOWN else []
    lines = [*_wrapped("packages: ", [*needed[:SHOWN], *rest]), *faults]
    if missing:
        lines += _wrapped("optional, not installed: ", missing)
    return lines


def _models(findings: dict[str, Any]) -> list[str]:
    models = findings["packaged_models"]
    sizes: list[int] = []
    missing: list[str] = []
    for model in models:
        if model["bytes"] is None:
            missing.append(line_of_model(model))
        else:
            sizes.append(model["bytes"])
    total_size = size(sum(sizes))
    return [f"models that come with the package: {len(sizes)} of {len(models)}, {total_size}", *missing]


def _cache(cache: dict[str, Any]) -> list[str]:
    repos = cache["repos"]
    inside = f"{len(repos)} repositories, {size(sum(repo['bytes'] for repo in repos))}" if repos else "empty"
    lines = [f"Hugging Face cache: {inside} in {cache['folder']}"]
    return [*lines, *(line_of_repo(repo) for repo in repos if repo["problem"])]


def _apart(states: Mapping[str, str]) -> list[str]:
    """A recipe's state in a line, or in several below one another."""
    lines: list[str] = []
    for name, state in states.items():
        head = f"  {name:<{WIDE}}"
        lines += textwrap.wrap(
            state, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
        )
    return lines


def _together(states: Mapping[str, str]) -> list[str]:
    """The number of those that are ready, and the names of the others."""
    others = [name for name, state in states.items() if state != "ready"]
    ready = f"  {len(states) - len(others)} ready"
    return _wrapped(f"{ready}; after others: ", others) if others else [ready]


def _wrapped(head: str, names: list[str]) -> list[str]:
    indent = " " * (len(head) - len(head.lstrip()) + 2)
    text = ", ".join(names)
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False
    ) or [head]


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _end(findings: dict[str, Any]) -> list[str]:
    if findings["broken"]:
        return ["broken", *_indented(findings["broken"])]
    return [IN_ORDER]


def in_full(findings: dict[str, Any]) -> list[str]:
    """All findings, a line for each."""
    lines = [f"python {findings['python']}", "packages", *map(line_of_package, findings["packages"])]
    lines += _machine(findings)
    lines += ["models that come with the package", *map(line_of_model, findings["packaged_models"])]
    lines += [f"Hugging Face cache: {findings['cache']['folder']}"]
    lines += list(map(line_of_repo, findings["cache"]["repos"])) or ["  empty"]
    lines += ["recipes"]
    for name, recipe in findings["recipes"].items():
        lines += _indented(of_recipe(name, recipe))
    return [*lines, *_end(findings)]


def line_of_package(package: dict[str, Any]) -> str:
    if package["problem"]:
        return f"  {package['name']}: {package['problem']}"
    if package["version"]:
        return f"  {package['name']} {package['version']}"
    return f"  {package['name']}: not installed; optional: {install_command(package['extra'])}"


def line_of_model(model: dict[str, Any]) -> str:
    if model["bytes"] is None:
        recipe = RECIPES.get(model["name"], model["name"])
        return f"  {model['name']}: not there; rewardedit train {recipe} makes one"
    return f"  {model['name']}: {size(model['bytes'])}"


def line_of_repo(repo: dict[str, Any]) -> str:
    problem = f"; {repo['problem']}" if repo["problem"] else ""
    return f"  {repo['kind']} {repo['name']}: {size(repo['bytes'])}{problem}"


def size(n: int) -> str:
    """Bytes in a unit that fits."""
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"
