"""Stages of a run: computed once, in shards, by all processes;
results are keyed by their settings.

A stage's folder holds its results and `made_of.json`, the settings that they were made with, which is written
last. While the stage is unfinished, the settings are in `making.json`. If endpoints were used, `usage.json`
holds their usage.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from rewardedit.config import to_dict
from rewardedit.files import AnyPath, remove, rename, to_json, write_json
from rewardedit.language.endpoint import Usage
from rewardedit.language.usage import USAGE, read_usage, write_usage
from rewardedit.processes import processes
from rewardedit.stages.executors import SIZES, USED, Backoff, Make, Shards, engine, is_whole_shard
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
    settings = plain({**made_of, "shards": shards})
    is_over = partial(_is_over, folder, settings)

    if state.is_main_process:
        _begin(folder, settings, paths)
    else:
        _await(partial(_has_begun, folder, settings, paths))

    part, parts = (1, 1) if share is None else share
    local = range(part - 1, shards, parts)
    if not is_over():
        engine()(Shards(make, paths, local, is_over))

    if share is not None and not is_over():
        _require_end_by_share(folder, paths, finish)

    if state.is_main_process:
        _end_by_lease(folder, paths, finish, is_over)
        with suppress(FileNotFoundError):  # others have removed the folder
            _clear(folder, paths if finish is not None else [])
    else:
        _await(is_over)
    return paths


def usage_in(folder: AnyPath) -> dict[str, Usage]:
    """Endpoint usage of all stages in a folder, including shards of interrupted stages."""
    shards = [path for path in folder.rglob(f".*{USED}") if not (path.parent / USAGE).exists()]
    return read_usage([*folder.rglob(USAGE), *shards])


def _is_over(folder: AnyPath, settings: dict[str, Any]) -> bool:
    """True if the stage is finished; its user may have removed the folder since, and another process may have
    created it again.

    Raises:
        ValueError: if another command now makes something else there.
    """
    found = recorded(folder)
    if found is None:
        return True
    require_same(folder, found, settings)
    return (folder / MADE_OF).exists()


def _await(condition: Callable[[], bool]) -> None:
    """Polls a condition of the folder, which other processes bring about."""
    backoff = Backoff()
    while not condition():
        backoff()


def _require_end_by_share(folder: AnyPath, paths: list[AnyPath], finish: Finish | None) -> None:
    """Raises StageUnfinished if a call for a share must leave the end to another call."""
    there = sum(map(is_whole_shard, paths))
    if there < len(paths):
        raise StageUnfinished(f"{folder}: {there} of {len(paths)} shards are done; run the other shares")
    if finish is not None:  # several processes must not finish at the same time
        raise StageUnfinished(
            f"{folder}: all {len(paths)} shards are done; run once more without --shard to merge them"
        )


def _end_by_lease(
    folder: AnyPath, paths: list[AnyPath], finish: Finish | None, is_over: Callable[[], bool]
) -> None:
    """Ends the stage, or waits until another command has: the same command may run more than once."""
    leases = Leases()
    backoff = Backoff()
    while not is_over():
        with leases.claim(folder / MADE_OF) as granted:
            if granted and not is_over():
                _end(folder, paths, finish, is_over)
                return
        backoff()


def _end(
    folder: AnyPath,
    paths: list[AnyPath],
    finish: Finish | None,
    is_over: Callable[[], bool],
) -> None:
    """Makes the result of all shards and marks it as complete; does nothing if others have done so while this
    process slept, and have removed the shards.
    """
    try:
        used = read_usage(path for path in folder.iterdir() if path.suffix == USED)
        write_usage(folder / USAGE, used, in_stage=True)
        if finish is not None:
            finish(paths)
        rename(folder / MAKING, MADE_OF)
    except Exception:
        if not is_over():
            raise


def _clear(folder: AnyPath, shards: list[AnyPath]) -> None:
    """Removes these shards, and files left by workers that died."""
    gone = {path.name for path in shards}
    for path in folder.iterdir():
        left = path.name.startswith(".") and path.suffix in (".claim", ".partial", ".tries", USED, SIZES)
        if left or path.name in gone:
            remove(path)


def plain(made_of: Any) -> Any:
    """The settings as they are read back from JSON."""
    return json.loads(to_json(to_dict(made_of)))


def require_same(where: AnyPath, found: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raises ValueError, which lists the differences, if two groups of settings differ."""
    if found != settings:
        raise ValueError(
            f"{where} was made with other settings: {'; '.join(differences(found, settings))}. "
            "Use those settings again, or another folder, or remove this one"
        )


def differences(found: Any, settings: Any, name: str = "") -> list[str]:
    """Differences of two settings, e.g. ["relabel.scorer: clip_d there, l1 here"]."""
    if isinstance(found, dict) and isinstance(settings, dict):
        dotted = f"{name}." if name else ""
        lines = []
        for key in found | settings:
            lines += differences(found.get(key), settings.get(key), f"{dotted}{key}")
        return lines
    return [] if found == settings else [f"{name}: {json.dumps(found)} there, {json.dumps(settings)} here"]


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
    results that were made with the same settings are reused.

    Args:
        make: trains the variant of a name in a folder.
    """
    results = {}
    for i, name in enumerate(names):
        own = folder if i == 0 else folder / "variants" / name
        results[name] = own / result
        settings = {"variant": name, **made_of}
        if not is_made(results[name], settings):
            make(name, own)
            mark_made(results[name], settings)
    return results


def _begin(folder: AnyPath, settings: dict[str, Any], paths: list[AnyPath]) -> None:
    """Records the settings of a stage that is about to be made.

    Raises:
        ValueError: if the folder holds files that no stage has made.
    """
    try:
        found = recorded(folder)
    except ValueError:
        if _is_begun(folder, paths):
            raise
        found = {}  # nothing was made with the damaged record

    if found is not None and (found == settings or _is_begun(folder, paths)):
        return
    if found is None and folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        if recorded(folder) is not None:  # another command has just written it
            return
        raise ValueError(
            f"{folder} holds files that do not say what they were made of; use another folder, or remove them"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / MAKING, settings)


def _has_begun(folder: AnyPath, settings: dict[str, Any], paths: list[AnyPath]) -> bool:
    """True if the main process has written the settings, or others that must not be replaced are there."""
    found = recorded(folder)
    return found is not None and (found == settings or _is_begun(folder, paths))


def _is_begun(folder: AnyPath, paths: list[AnyPath]) -> bool:
    """True if the stage has a shard, or a process is making one: its settings must not be replaced."""
    begun = {MADE_OF, *(path.name for path in paths)}
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return any(name in begun or name.endswith(".claim") for name in names)


def recorded(folder: AnyPath) -> dict[str, Any] | None:
    """Settings that a stage or result was made with, or is being made with; None if it was not begun.

    Raises:
        ValueError: if they cannot be read.
    """
    for name in (MADE_OF, MAKING, MADE_OF):  # the second may be renamed to the first in the meantime
        found = _read_record(folder / name)
        if found is not None:
            return found
    return None


def _read_record(path: AnyPath) -> dict[str, Any] | None:
    """Reads recorded settings; None if there is no record.

    Raises:
        ValueError: if the file is no such record.
    """
    try:
        found = read_json_file(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{error}; remove {path.parent} to make it again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected settings by name; remove {path.parent} to make it again")
    return found
