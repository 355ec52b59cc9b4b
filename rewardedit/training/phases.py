"""Trainings of several phases, each of which may take results of earlier ones, or of independent parts.

    phases:
      - {tasks: [caption]}
      - {init_from: phase-1/vlm, tasks: [match]}

Each runs in a folder of its name in the run's folder. A text such as phase-1/vlm in a later phase is the
result there. A finished phase is not repeated if its settings are the same, and those of the phases that it
takes results from.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewardedit import config as configs
from rewardedit.batch_sizes import free_memory
from rewardedit.files import write_json
from rewardedit.processes import on_main_process, print_on_main, processes
from rewardedit.stages.stage import MAKING, is_finished, is_made, mark_made, plain, recorded, require_same
from rewardedit.training import run
from rewardedit.training.estimate import PlanIncomplete, first_reason

REFERENCE = re.compile(r"(phase-\d+)/.")  # the result of an earlier phase, by its path in the run's folder


@dataclass(frozen=True)
class Phase:
    """One training of several."""

    trainer: str  # method, as a recipe names it
    settings: Any  # its trainer's settings


@dataclass(frozen=True)
class Config:
    """Trainings that follow one another."""

    name: str  # name of the run and of its folder in runs/
    phases: dict[str, Phase] = field(
        default_factory=dict
    )  # phase-1, phase-2 …, which may build on each other
    parts: dict[str, Phase] = field(default_factory=dict)  # independent trainings by name

    def __post_init__(self) -> None:
        earlier: set[str] = set()
        for key, phase in self.phases.items():
            missing = sorted(taken(phase.settings) - earlier)
            if missing:
                raise ValueError(
                    f"{key}: takes the result of {missing[0]}, which is no earlier phase of this run; "
                    f"name another model or data set, as {key}.SETTING=…"
                )
            earlier.add(key)

    def trainings(self) -> dict[str, Phase]:
        """All phases or parts by the names of their folders, in order."""
        return self.phases | self.parts


def taken(settings: Any) -> set[str]:
    """Earlier phases whose results these settings name."""
    return {match[1] for match in map(REFERENCE.match, texts(configs.to_dict(settings))) if match}


def texts(settings: Any) -> Iterator[str]:
    """All texts in settings."""
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, dict | list):
        for value in settings.values() if isinstance(settings, dict) else settings:
            yield from texts(value)


def resolved(settings: Any, folder: Path) -> Any:
    """A phase's settings with the paths of earlier results in the run's folder."""
    whole = folder.resolve()
    # The same from wherever in the current folder the run is named.
    inside = whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole

    def place(text: str) -> str:
        return str(inside / text) if REFERENCE.match(text) else text

    return configs.build(type(settings), replaced(configs.to_dict(settings), place))


def replaced(settings: Any, place: Callable[[str], str]) -> Any:
    """Plain settings with each text replaced."""
    if isinstance(settings, dict):
        return {key: replaced(value, place) for key, value in settings.items()}
    if isinstance(settings, list):
        return [replaced(value, place) for value in settings]
    return place(settings) if isinstance(settings, str) else settings


def module_of(phase: Phase) -> Any:
    """The module of a phase's trainer."""
    return sys.modules[type(phase.settings).__module__]


def plan(config: Config, folder: Path) -> list[str]:
    """Lines to print: the plans of all phases, as far as they can be made before earlier ones have run.

    Raises:
        PlanIncomplete: naming the first thing that is missing and that no earlier phase makes.
    """
    lines: list[str] = []
    reasons: dict[Exception, str] = {}
    for key, phase in config.trainings().items():
        lines.append(f"{key}: {phase.settings.name}")
        settings = resolved(phase.settings, folder) if key in config.phases else phase.settings
        awaited = sorted(name for name in taken(phase.settings) if not is_finished(folder / name))
        try:
            lines += [f"  {line}" for line in module_of(phase).plan(settings)]
        except (ValueError, OSError) as error:
            lines += [f"  {line}" for line in getattr(error, "lines", [])]
            if awaited:
                lines.append(f"  what depends on the results of {', '.join(awaited)} is known after them")
            else:
                reasons[error] = f"{key}: {error}"
    if reasons:
        reason = first_reason(list(reasons))
        raise PlanIncomplete(lines, reasons[reason]) from reason
    return lines


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Runs all phases or parts in `folder`; those that are finished are not repeated.

    Returns:
        The folder of the last one.
    """
    run.start(folder, config, resume)
    trainings = config.trainings()
    made_of: dict[str, dict[str, Any]] = {}
    for number, (key, phase) in enumerate(trainings.items(), 1):
        phase_folder = folder / key
        takes = {name: made_of[name] for name in sorted(taken(phase.settings) & made_of.keys())}
        made_of[key] = {"trainer": phase.trainer, "settings": phase.settings, "takes": takes}
        if is_made(phase_folder, made_of[key]):
            print_on_main(f"{key} of {len(trainings)} is finished")
            continue
        print_on_main(f"{key}, {number} of {len(trainings)}: {phase.settings.name}")
        begin(phase_folder, made_of[key])
        settings = resolved(phase.settings, folder) if key in config.phases else phase.settings
        module_of(phase).main(settings, phase_folder, resume=(phase_folder / run.CONFIG).is_file())
        mark_made(phase_folder, made_of[key])
        free_memory()

    if processes().is_main_process:
        files = {key: folder / key / "metrics.json" for key in trainings}
        metrics = {key: json.loads(path.read_text()) for key, path in files.items() if path.is_file()}
        write_json(folder / "metrics.json", metrics)
    return folder / list(trainings)[-1]


def begin(folder: Path, made_of: dict[str, Any]) -> None:
    """Records what a phase is about to be made of.

    Raises:
        ValueError: if it was begun from results of phases with other settings; its own are for the trainer to
            compare.
    """

    def write() -> None:
        before = recorded(folder)
        if before is not None:
            require_same(folder, before["takes"], plain(made_of)["takes"])
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / MAKING, plain(made_of))

    on_main_process(write)


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and prints where the last result is."""
    print_on_main(f"the last result is in {train(config, folder, resume)}")
