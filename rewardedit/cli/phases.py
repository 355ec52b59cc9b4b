"""Recipes of several trainings: `phases:`, a list, or `parts:`, a mapping from names.

Each entry overrides the recipe's own settings, or those of another recipe that it names by `recipe`, as
`key=value` words would: `train.lr: 1e-4` reaches into a group. Words on the command line override all
entries; those that begin with an entry's name, as phase-2.train.lr=1e-4, only that one. `first_phase: 2`
leaves out the first phase.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rewardedit import config as configs
from rewardedit.cli.own_data import held_out_of_own

GROUPS = ("phases", "parts")
OF_THE_RUN = ("name", "first_phase")  # settings of the whole

Values = dict[str, Any]


def has_phases(values: Values) -> bool:
    return any(group in values for group in GROUPS)


def in_full(values: Values, words: Sequence[str], read: Callable[[str], Values]) -> Values:
    """The recipe with all settings of each phase or part, as `training.phases.Config` holds them, and the
    recipe that it names.

    Args:
        read: reads another recipe.

    Raises:
        ValueError: if the entries are no phases or parts.
    """
    group, entries = entries_of(values)
    given = configs.assignments(words)
    values = dict(values)
    for key in OF_THE_RUN:
        if key in given:
            values[key] = given.pop(key)
    base = {key: value for key, value in values.items() if key not in (*GROUPS, *OF_THE_RUN)}

    trainings: dict[str, Values] = {}
    for key, entry in entries.items():
        changes = entry | meant_for(key, given, entries)
        recipe = changes.pop("recipe", None)
        settings = {"name": f"{values['name']}-{key}", **base} if recipe is None else read(recipe)
        if has_phases(settings):
            raise ValueError(f"{key}: {recipe} has phases itself; name a recipe of one training")
        for name, value in changes.items():
            settings = configs.laid_over(settings, name, value)
        settings = held_out_of_own(settings, meant_for(key, given, entries))
        trainer = settings.pop("trainer", None)
        trainings[key] = {"trainer": trainer, "settings": settings, "recipe": recipe}
    return {"name": values["name"], group: from_first(trainings, values.get("first_phase", 1))}


def entries_of(values: Values) -> tuple[str, dict[str, Values]]:
    """The group that a recipe has, phases or parts, and its entries by name."""
    group, *more = [name for name in GROUPS if name in values]
    entries = values[group]
    if group == "phases" and isinstance(entries, list):
        entries = {f"phase-{number}": entry for number, entry in enumerate(entries, 1)}
    if more or not entries or not isinstance(entries, dict):
        raise ValueError(
            f"{group}: expected a list of phases, or parts by name; got {configs.shown(values[group])}"
        )
    for key, entry in entries.items():
        if not isinstance(entry, dict):
            raise ValueError(f"{key}: expected a group of settings; got {configs.shown(entry)}")
    return group, entries


def meant_for(key: str, given: Values, entries: dict[str, Values]) -> Values:
    """Settings on the command line for an entry: those for all, then its own without its name."""
    for_all: Values = {}
    for_entry: Values = {}
    for name, value in given.items():
        first = name.partition(".")[0]
        if first == key:
            for_entry[name.removeprefix(f"{key}.")] = value
        elif first not in entries:
            for_all[name] = value
    return for_all | for_entry


def from_first(entries: dict[str, Values], first: Any) -> dict[str, Values]:
    """The entries without those before the first phase that is run."""
    if not isinstance(first, int) or not 1 <= first <= len(entries):
        raise ValueError(f"first_phase: expected 1 to {len(entries)}; got {configs.shown(first)}")
    return dict(list(entries.items())[first - 1 :])


def entries_in_full(values: Values) -> dict[str, Values]:
    """All phases or parts of a recipe that was read, each as a recipe of one training."""
    entries = values.get("phases") or values.get("parts") or {}
    return {key: {"trainer": entry["trainer"], **entry["settings"]} for key, entry in entries.items()}


def of_a_run(values: Values) -> Values:
    """A run's recorded settings as a recipe that gives them."""
    group = "parts" if values.get("parts") else "phases"
    rest = {key: value for key, value in values.items() if key not in GROUPS}
    entries = entries_in_full(values)
    return {**rest, group: entries} if entries else rest
