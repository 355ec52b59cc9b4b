"""Ownership of a run's folder: one process owns it at a time, and only runs of this package are removed.

An earlier run to be replaced is renamed to .NAME.earlier next to it, restored if the new one does not begin,
and deleted once it has begun.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rewardedit import config as configs
from rewardedit.files import remove, require_removable
from rewardedit.files.writers import is_partial_of
from rewardedit.processes import on_main_process
from rewardedit.untrusted import read_json

try:
    import fcntl
except ImportError:  # on Windows, where two runs in one folder are not detected
    fcntl = None

CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
OWNER = ".owner"
WRITTEN_FIRST = (CONFIG, ENVIRONMENT, "inputs.json")
# Descriptors of the owner files that a process has locked, by the process's id (a forked process has another)
# and the folder.
_HELD: dict[tuple[int, Path], int] = {}


def why_no_run(folder: Path) -> str | None:
    """Reason why a folder is not a run of this package, and must not be removed; None if it is one."""
    if folder.is_symlink():
        return "it is a link"
    if not (is_plain_file(folder / CONFIG) and is_plain_file(folder / ENVIRONMENT)):
        return f"it has no {CONFIG} and {ENVIRONMENT} of a run"
    if any(folder.glob(".git")) or any(folder.glob("*/.git")):
        return "there is a git repository in it"
    try:
        configs.load_yaml(folder / CONFIG)["name"]
        trainer_of(folder)
        require_removable(folder)
    except (ValueError, LookupError) as error:
        return str(error)
    return None


def is_plain_file(path: Path) -> bool:
    """True for a regular file that is not a link."""
    return path.is_file() and not path.is_symlink()


def trainer_of(folder: Path) -> str:
    """Name of the trainer of a run.

    Raises:
        ValueError: if its environment.json does not contain it.
    """
    path = folder / ENVIRONMENT
    try:
        trainer = read_json(path.read_text())["trainer"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: expected the name of the run's trainer; cannot be read") from error
    if not isinstance(trainer, str):
        raise ValueError(f"{path}: trainer: expected a name; got {type(trainer).__name__}")
    return trainer


def holds_something(folder: Path) -> bool:
    """True for a folder that holds more than the remains of a run that ended before it had begun.

    Raises:
        ValueError: if it is not a folder.
    """
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder; got a file")
    return not all(_is_left(path.name) for path in folder.iterdir())


def _is_left(name: str) -> bool:
    """True for names of files that a run leaves if it ends before its settings are written."""
    return name in (OWNER, ENVIRONMENT) or any(is_partial_of(name, written) for written in WRITTEN_FIRST)


def earlier(folder: Path) -> Path:
    """Path to which an earlier run is renamed until the new one has begun."""
    whole = folder.absolute()
    return whole.with_name(f".{whole.name}.earlier")


@contextmanager
def run_folder(
    folder: Path, resume: bool = False, overwrite: bool = False, settings: Any = None
) -> Iterator[None]:
    """Reserves a run's folder for this process within the block; the main process decides for all.

    Args:
        settings: settings of the run; files that they name are not removed.

    Raises:
        ValueError: if another process owns the folder; if it holds something and is neither resumed nor
            overwritten, or is not a run; if there is nothing to resume.
    """
    on_main_process(lambda: _enter(folder, resume, overwrite, settings))
    try:
        yield
    finally:
        if _key(folder) in _HELD:
            _leave(folder)


def _enter(folder: Path, resume: bool, overwrite: bool, settings: Any) -> None:
    """Takes the folder for this process; an earlier run in it stays (resume), or is laid aside (overwrite).

    Raises:
        ValueError: as `run_folder` does; the folder is then released.
    """
    if resume and not (folder.is_dir() and any(folder.iterdir())) and not earlier(folder).exists():
        raise ValueError(f"{folder}: there is no run to go on with; leave --resume out to start one")
    hold(folder)
    try:
        _bring_back(folder)
        if resume or not holds_something(folder):
            return
        reason = why_no_run(folder)
        if not overwrite and reason is not None:
            raise ValueError(
                f"{folder} holds files that are no run's; take another folder, by --out or name=…"
            )
        if not overwrite:
            raise ValueError(
                f"{folder} holds an earlier run; go on with --resume, start again with --overwrite, or name=…"
            )

        if reason is not None:
            raise ValueError(f"{folder}: --overwrite removes runs alone, and {reason}; take another folder")
        inside = named_inside(settings, folder)
        if inside is not None:
            raise ValueError(
                f"{folder}: --overwrite would remove {inside}, which the settings name; take another folder"
            )

        release(folder)
        os.replace(folder, earlier(folder))
        hold(folder)
    except BaseException:
        _leave(folder)
        raise


def named_inside(settings: Any, folder: Path) -> str | None:
    """First text in the settings that is a path of the folder or of something in it; None without one."""
    whole = folder.resolve()
    if isinstance(settings, str):
        with suppress(OSError, ValueError):  # too long for a name, or with a null character
            at = Path(settings).resolve()
            if Path(settings).exists() and (at == whole or whole in at.parents):
                return settings
    elif isinstance(settings, dict):
        return next(filter(None, (named_inside(value, folder) for value in settings.values())), None)
    elif isinstance(settings, list | tuple):
        return next(filter(None, (named_inside(value, folder) for value in settings)), None)
    return None


def begun(folder: Path) -> None:
    """Deletes the earlier run, now that the run that replaces it has written its settings."""
    before = earlier(folder)
    if before.is_dir() and why_no_run(before) is None:
        remove(before)


def _leave(folder: Path) -> None:
    """Ends the ownership; if no run has begun, restores the earlier one and removes an empty folder."""
    _bring_back(folder)
    release(folder)
    with suppress(OSError):  # it holds something
        folder.rmdir()


def _bring_back(folder: Path) -> None:
    """Renames an earlier run back if the run that should replace it has not begun."""
    before = earlier(folder)
    held = _key(folder) in _HELD  # otherwise another process may own it by now
    if not held or not before.is_dir() or before.is_symlink() or holds_something(folder):
        return
    for path in folder.iterdir():
        if path.name != OWNER:
            path.unlink()
    release(folder)
    folder.rmdir()
    os.replace(before, folder)
    hold(folder)


def hold(folder: Path) -> None:
    """Makes this process the owner of a run's folder until `release`, or until the process ends; does nothing
    if it is the owner already.

    Raises:
        ValueError: if another process owns the folder, the run that it is a variant of, or one of its
            variants.
    """
    key = _key(folder)
    if key in _HELD and _is_file(folder / OWNER, _HELD[key]):
        return
    at = folder.resolve()
    whole = [at.parent.parent] if at.parent.name == "variants" else []
    for other in (*whole, *(path.parent for path in at.glob(f"variants/*/{OWNER}"))):
        if (other / OWNER).is_file() and _key(other) not in _HELD:
            os.close(_locked(other))
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = _locked(folder)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())
    _HELD[key] = descriptor


def release(folder: Path) -> None:
    """Ends this process's ownership of a run's folder."""
    descriptor = _HELD.pop(_key(folder), None)
    if descriptor is not None:
        if _is_file(folder / OWNER, descriptor):  # before unlocking, while no other process can own it
            with suppress(PermissionError):  # on Windows, which removes no open file
                (folder / OWNER).unlink()
        os.close(descriptor)


def _key(folder: Path) -> tuple[int, Path]:
    return os.getpid(), folder.resolve()


def _locked(folder: Path) -> int:
    """Opens and locks the owner file of a folder; returns its descriptor.

    Raises:
        ValueError: if another process, or another run of this one, has locked it.
    """
    path = folder / OWNER
    while True:
        # Links are not followed: their targets would be overwritten.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        if fcntl is None:
            return descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however it ends
        except BlockingIOError:
            content = os.read(descriptor, 1000)
            os.close(descriptor)
            raise ValueError(f"{folder}: {_owner(content)} runs in it; wait until it has ended") from None
        except OSError:  # a file system without locks
            return descriptor
        if _is_file(path, descriptor):  # its owner may have removed it meanwhile
            return descriptor
        os.close(descriptor)


def _owner(content: bytes) -> str:
    try:
        owner = read_json(content)
        return f"process {int(owner['pid'])} of the machine {str(owner['host'])[:80]}"
    except (ValueError, LookupError, TypeError):  # it is writing the file just now
        return "another process"


def _is_file(path: Path, descriptor: int) -> bool:
    """True if a path leads to the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
