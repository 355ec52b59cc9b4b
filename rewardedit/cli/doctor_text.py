"""The findings of `rewardedit doctor` in words: on one screen, or in full."""

import textwrap
from collections.abc import Mapping
from typing import Any

from rewardedit.cli.downloads import total
from rewardedit.cli.recipes import recipe_groups
from rewardedit.models import RECIPES
from rewardedit.models.extras import install_command

WIDTH = 100  # columns of a screen
SHORT = 14  # recipes; longer groups are listed by their state
IN_ORDER = "all that works offline is in order"


def needs_of(recipe: dict[str, Any]) -> list[str]:
    """One line for each thing that keeps a recipe from running."""
    lines = [f"needs the {need['kind']} {need['name']}: {need['remedy']}" for need in recipe["needs"]]
    if recipe["problem"]:
        lines.append(f"cannot be read: {recipe['problem']}")
    return lines


def screen(found: dict[str, Any]) -> list[str]:
    """The findings on one screen; with a single recipe, everything that it needs."""
    recipes = found["recipes"]
    if len(recipes) == 1:
        ((name, recipe),) = recipes.items()
        return [*of_recipe(name, recipe), *_end(found)]
    lines = [*_machine(found), *_packages(found["packages"]), *_models(found), *_cache(found["cache"])]
    for title, names in recipe_groups(list(recipes)):
        lines.append(f"recipes: {title}")
        states = {name: state_of(recipes[name]) for name in names}
        lines += _apart(states) if len(states) <= SHORT else _together(states)
    hint = "rewardedit doctor RECIPE lists what one needs; rewardedit doctor --all lists everything"
    return [*lines, *_end(found), hint]


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
            others.append(f"needs {need['kind']} {need['name']}")

    states = [total(downloads)] if downloads else []
    return "; ".join([*states, *dict.fromkeys(runs), *others]) or "ready"


def _downloads(recipe: dict[str, Any]) -> list[str]:
    return [need["name"] for need in recipe["needs"] if need["on_hub"]]


def _machine(found: dict[str, Any]) -> list[str]:
    device = found["device"]
    attention = found["attention"]
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

    lines = [*_wrapped("packages: ", needed), *faults]
    if missing:
        lines += _wrapped("optional, not installed: ", missing)
    return lines


def _models(found: dict[str, Any]) -> list[str]:
    models = found["packaged_models"]
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
    """A line for each recipe."""
    wide = max(map(len, states)) + 2
    return [_cut(f"  {name:<{wide}}{state}") for name, state in states.items()]


def _together(states: Mapping[str, str]) -> list[str]:
    """Those that are ready, and those that are not, in two lists."""
    ready: list[str] = []
    others: list[str] = []
    for name, state in states.items():
        if state == "ready":
            ready.append(name)
        else:
            others.append(name)

    lines = _wrapped("  ready: ", ready) if ready else []
    if others:
        lines += _wrapped("  after others: ", others)
    return lines


def _wrapped(head: str, names: list[str]) -> list[str]:
    indent = " " * (len(head) - len(head.lstrip()) + 2)
    text = ", ".join(names)
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False
    ) or [head]


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 2] + " …"


def _end(found: dict[str, Any]) -> list[str]:
    if found["broken"]:
        return ["broken", *_indented(found["broken"])]
    return [IN_ORDER]


def in_full(found: dict[str, Any]) -> list[str]:
    """All findings, a line for each."""
    lines = [f"python {found['python']}", "packages", *map(line_of_package, found["packages"])]
    lines += _machine(found)
    lines += ["models that come with the package", *map(line_of_model, found["packaged_models"])]
    lines += [f"Hugging Face cache: {found['cache']['folder']}"]
    lines += list(map(line_of_repo, found["cache"]["repos"])) or ["  empty"]
    lines += ["recipes"]
    for name, recipe in found["recipes"].items():
        lines += _indented(of_recipe(name, recipe))
    return [*lines, *_end(found)]


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
