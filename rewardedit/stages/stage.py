"""Stages of a run: computed once, in shards, by all processes;
results are keyed by their settings.

A stage's folder holds its results and `made_of.json`, the settings that they were made with; `StageFolder`
says how it gets there. If endpoints were used, `usage.json` holds their usage.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rewardedit.batch_sizes import free_memory
from rewardedit.config import to_dict
from rewardedit.files import AnyPath, remove, rename, to_json, write_json
from rewardedit.language.endpoint import Usage
from rewardedit.language.usage import USAGE, read_usage, write_usage
from rewardedit.processes import processes
from rewardedit.stages.executors import Backoff, Make, Shards, engine, is_whole_shard
from rewardedit.stages.hidden import CLAIM, USED, is_hidden
from rewardedit.stages.leases import Leases
from rewardedit.untrusted import read_json_file

MADE_OF = "made_of.json"
MAKING = "making.json"
Share = tuple[int, int]  # (3, 16): the third of 16 parts of the shards
Finish = Callable[[list[AnyPath]], None]  # makes a result from the paths of all shards


class StageUnfinished(RuntimeError):
    """A share of a stage was made; a call without a share must finish the stage."""


def stage(
    folder: AnyPath,
    made_of: Any,
    make: Make,
    shards: int = 1,
    name: str = "part-{:05d}",
    finish: Finish | None = None,
    share: Share | None = None,
) -> list[AnyPath]:
    """Makes the missing shards in `folder`, and returns the paths of all shards when they are complete.

    The engine in use divides the shards (see `executors`); the content of a shard does not depend on the
    process that makes it. An interrupted stage resumes from its complete shards, with any number of
    processes. No process waits in a collective, which would time out: a process that is done polls the
    folder, which all must share, until the others are done too. The launcher ends all processes if one fails.

    Args:
        made_of: everything that the result depends on, as a mapping of settings, which may hold dataclasses.
        make: writes the shard of a number to the given path: a file or a folder.
        name: format of the shards' names.
        finish: makes the result from all shards, on the main process; the shards are removed afterwards.
        share: makes only this part of the shards and waits for no other; the parts may run at any time, on
            any machine.

    Raises:
        StageUnfinished: if only a share was requested, and the stage was not complete before.
        ValueError: if the folder was made with other settings, or holds files that no stage has made.
    """
    state = processes()
    paths = [folder / name.format(i) for i in range(shards)]
    place = StageFolder(folder, plain({**made_of, "shards": shards}), paths)

    if state.is_main_process:
        place.begin()
    else:
        _await(place.has_begun)

    number, count = (1, 1) if share is None else share
    if not place.is_over():
        engine()(Shards(make, paths, range(number - 1, shards, count), place.is_over))

    if share is not None and not place.is_over():
        _require_end_by_share(place, finish)

    if state.is_main_process:
        _end_by_lease(place, finish)
        with suppress(FileNotFoundError):  # others have removed the folder
            place.clear(with_shards=finish is not None)
    else:
        _await(place.is_over)
    return paths


def usage_in(folder: AnyPath) -> dict[str, Usage]:
    """Endpoint usage of all stages in a folder, including shards of interrupted stages."""
    shards = [path for path in folder.rglob(f".*{USED}") if not (path.parent / USAGE).exists()]
    return read_usage([*folder.rglob(USAGE), *shards])


def _await(condition: Callable[[], bool]) -> None:
    """Polls a condition of the folder, which other processes bring about."""
    backoff = Backoff()
    while not condition():
        backoff()


def _require_end_by_share(place: "StageFolder", finish: Finish | None) -> None:
    """Raises StageUnfinished if a call for a share must leave the end to another call."""
    done = sum(map(is_whole_shard, place.paths))
    total = len(place.paths)
    if done < total:
        raise StageUnfinished(f"{place.folder}: {done} of {total} shards are done; run the other shares")
    if finish is not None:  # several processes must not finish at the same time
        raise StageUnfinished(
            f"{place.folder}: all {total} shards are done; run once more without --shard to merge them"
        )


def _end_by_lease(place: "StageFolder", finish: Finish | None) -> None:
    """Ends the stage, or waits until another command has: the same command may run more than once."""
    leases = Leases()
    backoff = Backoff()
    while not place.is_over():
        with leases.claim(place.folder / MADE_OF) as granted:
            if granted and not place.is_over():
                place.end(finish)
                return
        backoff()


class StageFolder:
    """The folder of a stage, which several commands may share; its files alone say how far the stage is.

        absent     no record
          │  begin: the main process records the settings
        begun      making.json; per shard .SHARD.claim while a process makes it, then .SHARD.sizes and .SHARD
          │  shards, by any processes, until all are whole (`executors`)
        complete   making.json and all shards; .made_of.json.claim while a process ends the stage
          │  end: usage is added up, the shards are merged, making.json is renamed
        finished   made_of.json; `clear` removes hidden files, and shards that were merged
          │  the user of the result may remove it
        gone       no record

    Begun without a shard or a claim, the stage may begin again with other settings. Each step can be
    interrupted and is then taken again, by any command. Hidden files: see `hidden`.
    """

    def __init__(self, folder: AnyPath, settings: dict[str, Any], paths: list[AnyPath]) -> None:
        """
        Args:
            settings: everything that the result depends on, as `plain` returns it.
            paths: paths of all shards.
        """
        self.folder = folder
        self.settings = settings
        self.paths = paths

    def begin(self) -> None:
        """Records the settings of the stage, which is about to be made.

        Raises:
            ValueError: if the folder holds files that no stage has made.
        """
        folder = self.folder
        try:
            before = recorded(folder)
        except ValueError:
            if self._is_fixed():
                raise
            before = {}  # nothing was made with the damaged record

        if before is not None and (before == self.settings or self._is_fixed()):
            return
        if before is None and folder.is_dir() and any(not p.name.startswith(".") for p in folder.iterdir()):
            if recorded(folder) is not None:  # another command has just written it
                return
            raise ValueError(
                f"{folder} holds files that do not say what they were made of; use another folder, or "
                "remove them"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / MAKING, self.settings)

    def has_begun(self) -> bool:
        """True once the settings are recorded, or others that must not be replaced."""
        before = recorded(self.folder)
        return before is not None and (before == self.settings or self._is_fixed())

    def is_over(self) -> bool:
        """True once the stage is finished or gone; another process may have begun it again since.

        Raises:
            ValueError: if another command now makes something else there.
        """
        settings = recorded(self.folder)
        if settings is None:
            return True
        require_same(self.folder, settings, self.settings)
        return (self.folder / MADE_OF).exists()

    def end(self, finish: Finish | None) -> None:
        """Makes the result of all shards and marks it as complete; does nothing if others have done so while
        this process slept, and have removed the shards.
        """
        try:
            used = read_usage(path for path in self.folder.iterdir() if path.suffix == USED)
            write_usage(self.folder / USAGE, used, in_stage=True)
            if finish is not None:
                finish(self.paths)
            rename(self.folder / MAKING, MADE_OF)
        except Exception:
            if not self.is_over():
                raise

    def clear(self, with_shards: bool) -> None:
        """Removes hidden files, some of which dead workers have left, and the shards if asked to."""
        merged = {path.name for path in self.paths} if with_shards else set()
        for path in self.folder.iterdir():
            if is_hidden(path) or path.name in merged:
                remove(path)

    def _is_fixed(self) -> bool:
        """True if there is a shard or a process makes one: the recorded settings must not be replaced."""
        results = {MADE_OF, *(path.name for path in self.paths)}
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return any(name in results or name.endswith(CLAIM) for name in names)


def plain(made_of: Any) -> Any:
    """The settings as they are read back from JSON."""
    return json.loads(to_json(to_dict(made_of)))


def require_same(where: AnyPath, before: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raises ValueError, which lists the differences, if two groups of settings differ."""
    if before != settings:
        raise ValueError(
            f"{where} was made with other settings: {'; '.join(differences(before, settings))}. "
            "Use those settings again, or another folder, or remove this one"
        )


def differences(before: Any, settings: Any, name: str = "") -> list[str]:
    """Differences of two settings, e.g. ["relabel.scorer: clip_d there, l1 here"]."""
    if isinstance(before, dict) and isinstance(settings, dict):
        dotted = f"{name}." if name else ""
        lines = []
        for key in before | settings:
            lines += differences(before.get(key), settings.get(key), f"{dotted}{key}")
        return lines
    return [] if before == settings else [f"{name}: {json.dumps(before)} there, {json.dumps(settings)} here"]


def is_made(result: Path, made_of: dict[str, Any]) -> bool:
    """True if a result is complete and was made with these settings."""
    try:
        return _read_record(result / MADE_OF) == plain(made_of)
    except ValueError:  # a damaged record: the result is made again
        return False


def is_finished(folder: AnyPath) -> bool:
    """True if a stage or a result was marked as complete, whatever it was made of."""
    return (folder / MADE_OF).is_file()


def mark_made(result: Path, made_of: dict[str, Any]) -> None:
    """Marks a result as complete and records its settings; call it last."""
    if processes().is_main_process:
        write_json(result / MADE_OF, plain(made_of))


def variants(
    names: Sequence[str], folder: Path, result: str, made_of: dict[str, Any], make: Callable[[str, Path], Any]
) -> dict[str, Path]:
    """Trains several variants one after another, each by all processes together; returns their results.

    The first runs in `folder`, the others in folder/variants/NAME; each leaves `result` there. Complete
    results that were made with the same settings are reused. What a training leaves in memory is freed before
    the next one.

    Args:
        make: trains the variant of a name in a folder.
    """
    results = {}
    for i, name in enumerate(names):
        variant = folder if i == 0 else folder / "variants" / name
        results[name] = variant / result
        settings = {"variant": name, **made_of}
        if not is_made(results[name], settings):
            make(name, variant)
            free_memory()
            mark_made(results[name], settings)
    return results


def recorded(folder: AnyPath) -> dict[str, Any] | None:
    """Settings that a stage or result was made with, or is being made with; None if it was not begun.

    Raises:
        ValueError: if they cannot be read.
    """
    for name in (MADE_OF, MAKING, MADE_OF):  # the second may be renamed to the first in the meantime
        settings = _read_record(folder / name)
        if settings is not None:
            return settings
    return None


def _read_record(path: AnyPath) -> dict[str, Any] | None:
    """Reads recorded settings; None if there is no record.

    Raises:
        ValueError: if the file is no such record.
    """
    try:
        settings = read_json_file(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{error}; remove {path.parent} to make it again") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: expected settings by name; remove {path.parent} to make it again")
    return settings
