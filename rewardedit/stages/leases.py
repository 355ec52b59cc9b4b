"""Leases (claims) on files in a shared folder; a lease expires when its owner dies.

A claim is a hidden file next to the file that is being made. Its owner rewrites it every few seconds. A
process that finds it unchanged for a minute takes it for abandoned; it uses its own monotonic clock, as the
clocks of two machines differ. An owner that slept so long finds another's token in the claim, or no claim:
then it neither writes nor removes it, and does not recreate a folder that others have removed.
"""

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rewardedit.files import AnyPath, create, replaced
from rewardedit.files.writers import is_running, machine
from rewardedit.stages.hidden import CLAIM, beside
from rewardedit.untrusted import CONTENT_ERRORS, read_json

HEARTBEAT = 5.0  # seconds between two rewrites of a claim
TIMEOUT = 60.0  # seconds without a rewrite, after which the owner is taken for dead
LARGEST_PROCESS = 2**31 - 1


class Leases:
    """The claims of a process, and its observations of others' claims."""

    def __init__(self, heartbeat: float | None = None, timeout: float | None = None) -> None:
        self.heartbeat = HEARTBEAT if heartbeat is None else heartbeat
        self.timeout = TIMEOUT if timeout is None else timeout
        self.seen: dict[str, tuple[bytes, float]] = {}  # content of each claim file, and since when
        self.tokens: dict[str, str] = {}  # tokens of this process's own claims, by file

    @contextmanager
    def claim(self, path: AnyPath) -> Iterator[bool]:
        """Tries to lease `path` while the block runs; yields True if this process holds the lease.

        Two processes may both get True if one took the other for dead, so the result must be put into place
        atomically, and only if the claim still `is_held` then.
        """
        file = beside(path, CLAIM)
        token = secrets.token_hex(8)
        if not self._take(file, token):
            yield False
            return

        self.tokens[str(file)] = token
        over = threading.Event()
        heart = threading.Thread(target=self._keep, args=(file, token, over), daemon=True)
        heart.start()
        try:
            yield True
        finally:
            over.set()
            heart.join()
            with suppress(OSError):
                if self.is_held(path):
                    file.unlink(missing_ok=True)
            del self.tokens[str(file)]

    def is_held(self, path: AnyPath) -> bool:
        """True while this process holds the claim of `path`; False once another took it for dead."""
        file = beside(path, CLAIM)
        return _is_of(_content(file), self.tokens.get(str(file), ""))

    def _take(self, file: AnyPath, token: str) -> bool:
        try:
            create(file, _owner(token, 0))
            return True
        except FileExistsError:
            if not self._is_abandoned(file):
                return False
        except FileNotFoundError:  # the folder is gone: all was made and removed
            return False
        with suppress(FileNotFoundError), replaced(file, in_stage=True) as aside:
            aside.write_text(_owner(token, 0))
        return _is_of(_content(file), token)  # another may have taken it at the same moment

    def _is_abandoned(self, file: AnyPath) -> bool:
        content = _content(file)
        if content is None:  # released in the meantime
            return False
        if _is_dead(_read_owner(content)):
            return True
        before, since = self.seen.get(str(file), (None, 0.0))
        if content != before:
            self.seen[str(file)] = (content, time.monotonic())
            return False
        return time.monotonic() - since > self.timeout

    def _keep(self, file: AnyPath, token: str, over: threading.Event) -> None:
        beats = 0
        while not over.wait(self.heartbeat):
            beats += 1
            with suppress(OSError):  # the disk may be unavailable for a moment
                if not _write_anew(file, token, _owner(token, beats).encode()):
                    return


def _owner(token: str, beats: int) -> str:
    return json.dumps({"machine": machine(), "pid": os.getpid(), "token": token, "beats": beats})


def _content(file: AnyPath) -> bytes | None:
    """Content of a claim, which may be half-written; None if there is no claim."""
    if file.exists() and not file.is_file():
        raise ValueError(f"{file}: expected a lease file; got something else; remove it")
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _read_owner(content: bytes) -> dict[str, Any]:
    """The owner that a claim names; {} if it cannot be read."""
    try:
        owner = read_json(content)
    except CONTENT_ERRORS:
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_dead(owner: dict[str, Any]) -> bool:
    process = owner.get("pid")
    if owner.get("machine") != machine() or not isinstance(process, int):
        return False
    return not (0 < process <= LARGEST_PROCESS and is_running(process))


def _is_of(content: bytes | None, token: str) -> bool:
    return content is not None and bool(token) and _read_owner(content).get("token") == token


def _write_anew(file: AnyPath, token: str, content: bytes) -> bool:
    """Rewrites a claim's content; writes nothing and returns False if it is another's or gone.

    It is written in place: another process that takes the claim replaces the file, so that its file is never
    the one open here. This needs no room on a full disk, and makes no folder.
    """
    if not isinstance(file, Path):
        held = _is_of(_content(file), token)
        if held:
            file.write_bytes(content)
        return held
    try:
        with file.open("r+b") as opened:
            if not _is_of(opened.read(), token):
                return False
            opened.seek(0)
            opened.write(content)
            opened.truncate()
            return True
    except FileNotFoundError:
        return False
