"""Whose the folder of a run is: one process owns it at a time, and only a run of ours is ever removed.

An earlier run that is to be replaced is renamed to .NAME.earlier beside it, comes back where the new one does
not begin, and is deleted when it has begun.
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
from rewardedit.processes import on_main_process
from rewardedit.untrusted import read_json
from rewardedit.writers import is_partial_of

try:
    import fcntl
except ImportError:  # on Windows, where two runs in a folder are not told apart
    fcntl = None

CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
OWNER = ".owner"
WRITTEN_FIRST = (CONFIG, ENVIRONMENT, "inputs.json")
# Descriptors of the owner's files that a process has locked, by its id, which a fork does not inherit, and
# their folders.
_HELD: dict[tuple[int, Path], int] = {}


def why_no_run(folder: Path) -> str | None:
    """The reason why a folder is no run of ours, that may be removed; None where it is one."""
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
    """True for a regular file that is no link."""
    return path.is_file() and not path.is_symlink()


def trainer_of(folder: Path) -> str:
    """The name of the trainer that a run is of.

    Raises:
        ValueError: where its environment.json does not say it.
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
    """True for a folder in which there is more than a run leaves that was ended before it had begun.

    Raises:
        ValueError: where it is no folder.
    """
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder; got a file")
    return not all(_is_left(path.name) for path in folder.iterdir())


def _is_left(name: str) -> bool:
    """True for what is in a folder whose run was ended before its settings were written down."""
    return name in (OWNER, ENVIRONMENT) or any(is_partial_of(name, written) for written in WRITTEN_FIRST)


def earlier(folder: Path) -> Path:
    """The name under which an earlier run waits until the new one has begun."""
    whole = folder.absolute()
    return whole.with_name(f".{whole.name}.earlier")


@contextmanager
def run_folder(
    folder: Path, resume: bool = False, overwrite: bool = False, settings: Any = None
) -> Iterator[None]:
    """A folder for a run, which is this process's alone within the block; one process decides for all.

    Args:
        settings: of the run; what they name is not removed.

    Raises:
        ValueError: where another process owns the folder; where it holds something and is neither resumed nor
            written over, or is no run; where there is nothing to resume.
    """
    on_main_process(lambda: _enter(folder, resume, overwrite, settings))
    try:
        yield
    finally:
        if _key(folder) in _HELD:
            _leave(folder)


def _enter(folder: Path, resume: bool, overwrite: bool, settings: Any) -> None:
    if resume and not (folder.is_dir() and any(folder.iterdir())) and not earlier(folder).exists():
        raise ValueError(f"{folder}: there is no run to go on with; leave --resume out to start one")
    hold(folder)
    try:
        _bring_back(folder)
        if resume or not holds_something(folder):
            return
        if not overwrite:
            raise ValueError(
                f"{folder} holds an earlier run; go on with --resume, start again with --overwrite, or name=…"
                if why_no_run(folder) is None
                else f"{folder} holds files that are no run's; take another folder, by --out or name=…"
            )
        reason = why_no_run(folder)
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
    """A text in settings that is the path of something in a folder, or of the folder; None without one."""
    whole = folder.resolve()
    if isinstance(settings, str):
        with suppress(OSError, ValueError):  # longer than a name may be, or with a null in it
            at = Path(settings).resolve()
            if Path(settings).exists() and (at == whole or whole in at.parents):
                return settings
    elif isinstance(settings, dict):
        return next(filter(None, (named_inside(value, folder) for value in settings.values())), None)
    elif isinstance(settings, list | tuple):
        return next(filter(None, (named_inside(value, folder) for value in settings)), None)
    return None


def begun(folder: Path) -> None:
    """Deletes the earlier run whose place a run takes that has now written down its settings."""
    before = earlier(folder)
    if before.is_dir() and why_no_run(before) is None:
        remove(before)


def _leave(folder: Path) -> None:
    """Ends the ownership; where no run has begun, the earlier one comes back, and an empty folder goes."""
    _bring_back(folder)
    release(folder)
    with suppress(OSError):  # it holds something
        folder.rmdir()


def _bring_back(folder: Path) -> None:
    """Gives an earlier run its name back where the one that was to replace it has not begun."""
    before = earlier(folder)
    held = _key(folder) in _HELD  # else it may be another's by now
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
    """Makes this process the owner of a run's folder until `release`, or its end; nothing where it is.

    Raises:
        ValueError: where another process is, or is the owner of the run that the folder is a variant of, or
            of one of its variants.
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
        if _is_file(folder / OWNER, descriptor):  # before it is unlocked: others may not have it yet
            with suppress(PermissionError):  # on Windows, where it is open
                (folder / OWNER).unlink()
        os.close(descriptor)


def _key(folder: Path) -> tuple[int, Path]:
    return os.getpid(), folder.resolve()


def _locked(folder: Path) -> int:
    """The descriptor of the owner's file of a folder, locked.

    Raises:
        ValueError: where another process, or another run of this one, has locked it.
    """
    path = folder / OWNER
    while True:
        # No link is followed: what it leads to would be written over.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        if fcntl is None:
            return descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however it ends
        except BlockingIOError:
            told = os.read(descriptor, 1000)
            os.close(descriptor)
            raise ValueError(f"{folder}: {_owner(told)} runs in it; wait until it has ended") from None
        except OSError:  # of a file system without locks
            return descriptor
        if _is_file(path, descriptor):  # its owner may have removed it meanwhile
            return descriptor
        os.close(descriptor)


def _owner(told: bytes) -> str:
    try:
        owner = read_json(told)
        return f"process {int(owner['pid'])} of the machine {str(owner['host'])[:80]}"
    except (ValueError, LookupError, TypeError):  # it is just writing that
        return "another process"


def _is_file(path: Path, descriptor: int) -> bool:
    """True where a path leads to the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
