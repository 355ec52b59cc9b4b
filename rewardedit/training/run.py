"""Contents of a run's folder: config.yaml (resolved), environment.json, metrics.jsonl, metrics.json (final),
checkpoints/ and the trainer's results (pipeline/, report.html …).
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from rewardedit import config as configs
from rewardedit.data.digests import file_digests
from rewardedit.files import replaced, write_json
from rewardedit.language.usage import add_up, as_settings, format_usage, read_usage, record_usage
from rewardedit.models import NAMES, digests
from rewardedit.processes import on_main_process, processes
from rewardedit.scorers.load import packaged_files
from rewardedit.stages.stage import differences, usage_in
from rewardedit.training.checkpoints import checkpoints, step_of
from rewardedit.training.environment import environment
from rewardedit.training.run_folder import CONFIG, ENVIRONMENT, begun, hold

INPUTS = "inputs.json"
PHASE = re.compile(r"^(phases|parts)\.[^.]+\.settings\.")  # before the name of a phase's setting
# Settings that may change when a run is resumed: its length, tolerance of bad rows, number of examples and
# evaluation data.
CHANGEABLE = ("train.max_steps:", "bad_rows:", "examples:", "held_out", "evaluate")


def start(folder: Path, config: Any, resume: bool = False, alone: bool = False) -> None:
    """Creates the run's folder and records its settings, environment and inputs.

    Args:
        alone: whether the training needs a single process, since each process would do all of the work.

    Raises:
        ValueError: if a run to be resumed had other settings (except `CHANGEABLE` ones, such as more steps),
            its packaged models had other weights, or its local inputs other contents; if several processes
            start a training for one process.
    """
    configs.require_counts(config)
    count = processes().num_processes
    if alone and count > 1:
        raise ValueError(f"this training does not divide its work: start it as one process; got {count}")

    def write() -> None:
        hold(folder)  # until the process ends, unless the command holds it already
        path = folder / CONFIG
        if resume and path.is_file():
            require_resumable(folder, configs.load_yaml(path), config)
            require_same_weights(folder, config)
            require_same_inputs(folder, config)
        write_json(folder / ENVIRONMENT, {"trainer": trainer_name(config), **environment()})
        with replaced(path) as aside:  # after environment.json: a run with settings also names its trainer
            aside.write_text(configs.dump(config))
        write_json(folder / INPUTS, file_digests(config, folder))
        begun(folder)

    on_main_process(write)


def trainer_name(config: Any) -> str:
    """Name of a config's trainer, as recipes have it: shapes_clip for rewardedit.shapes.trainers.clip."""
    parts = type(config).__module__.split(".")
    return "_".join(name for name in parts if name not in ("rewardedit", "trainers", "training"))


def require_resumable(folder: Path, before: dict[str, Any], config: Any) -> None:
    """Raises ValueError if a run's settings have changed, except those of `CHANGEABLE`,
    or if `train.max_steps` is below the steps done.
    """
    now = configs.parse_value(configs.dump(config))
    changed = differences(before, now)
    others = [line for line in changed if not PHASE.sub("", line).startswith(CHANGEABLE)]
    if others:
        raise ValueError(
            f"{folder} holds a run of other settings: {'; '.join(others)}. "
            "Take those settings again, or start again with --overwrite, or in another folder"
        )
    runs = (folder, *folder.glob("variants/*"))
    done = max(map(step_of, chain.from_iterable(map(checkpoints, runs))), default=0)
    if changed and "train" in now and now["train"].get("max_steps", done) < done:
        raise ValueError(
            f"{folder}: {done} steps are done, and train.max_steps asks for {now['train']['max_steps']}; "
            f"take at least {done}, or start again with --overwrite"
        )


def require_same_weights(folder: Path, config: Any) -> None:
    """Raises ValueError if a packaged model that a run uses, such as shapes/editor or a scorer's own, has
    other weights than when the run began.
    """
    path = folder / "environment.json"
    before = json.loads(path.read_text()).get("models", {}) if path.is_file() else {}
    now = digests()
    taken = sorted(packaged_models(configs.to_dict(config)))
    others = [name for name in taken if before.get(name, now.get(name)) != now.get(name)]
    if others:
        raise ValueError(
            f"{folder} was begun with other weights of {', '.join(others)} than come with this version; "
            "start again with --overwrite, or in another folder"
        )


def require_same_inputs(folder: Path, config: Any) -> None:
    """Raises ValueError if a local file or folder that a run uses has other contents than when the run
    began.
    """
    path = folder / INPUTS
    now = file_digests(config, folder)
    before = json.loads(path.read_text()) if path.is_file() else {}
    # An input that is no longer named is a change of settings, which `require_resumable` checks.
    others = [name for name, digest in before.items() if now.get(name, digest) != digest]
    if others:
        raise ValueError(
            f"{folder} was begun with another content of {', '.join(others)}; start again with --overwrite, "
            "or in another folder"
        )


def packaged_models(settings: Any) -> set[str]:
    """Packaged models that settings name, and those that their scorers load. A run's own `name` is skipped,
    since it may be that of the model that it makes.
    """
    if isinstance(settings, str):
        return {settings} & NAMES.keys()
    if isinstance(settings, list | tuple):
        return set().union(*map(packaged_models, settings))
    names = set()
    for key, value in settings.items() if isinstance(settings, dict) else ():
        if key == "scorer" and value:
            names |= packaged_files(value).keys()
        elif key != "name":
            names |= packaged_models(value)
    return names


def minutes_spent(folder: Path) -> Callable[[], float]:
    """Counts the minutes of a run, including those before it was resumed, and stores the number in
    minutes.json; time after the last count of an earlier call is lost.
    """
    file = folder / "minutes.json"
    before = json.loads(file.read_text())["minutes"] if file.is_file() else 0.0
    began = time.monotonic()

    def spent() -> float:
        minutes = before + (time.monotonic() - began) / 60
        if processes().is_main_process:
            write_json(file, {"minutes": minutes})
        return minutes

    return spent


@contextmanager
def report_usage(folder: Path) -> Iterator[None]:
    """Counts the endpoint usage of a run, including its earlier calls and its stages; reports it at the end,
    and adds it to metrics.json if there was no error.

    Each process stores its usage outside of stages in its own file in the folder; that of a process which
    ends after the main process is in that file only.
    """
    state = processes()
    try:
        with record_usage(folder / f"usage-{state.process_index}.json"):
            yield
    finally:
        used = add_up([usage_in(folder), read_usage(folder.glob("usage-*.json"))])
        if used and state.is_main_process:
            print(format_usage(used))
    if used and state.is_main_process:
        metrics = folder / "metrics.json"
        recorded = json.loads(metrics.read_text()) if metrics.is_file() else {}
        write_json(metrics, {**recorded, "usage": as_settings(used)})
