"""Who makes what in a folder that several processes share: claims, which end with the process that made them.

A claim is a hidden file beside what is being made. Its owner writes it anew every few seconds. A process that
finds it unchanged for a minute takes it for abandoned; by its own clock, as those of two machines differ.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from rewardedit.files import AnyPath, create, write_json

BEAT = 5.0  # seconds between two writings of a claim
ABANDONED = 60.0  # seconds without one, after which the owner is taken for dead


def writer_name() -> str:
    """This process, among all that may write to a shared folder."""
    return f"{socket.gethostname()}-{os.getpid()}-{_token(os.getpid())}"


@cache
def _token(process: int) -> str:
    """Tells apart processes of one number on machines of one name, as containers may be."""
    return secrets.token_hex(4)


def machine() -> str:
    """Where this process's number means this process: its host and, of containers, its own numbering."""
    try:
        numbering = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        numbering = ""
    return f"{socket.gethostname()} {numbering}".strip()


class Claims:
    """The claims that a process makes, and what it has seen of those of others."""

    def __init__(self, beat: float = BEAT, abandoned: float = ABANDONED) -> None:
        self.beat = beat
        self.abandoned = abandoned
        self.seen: dict[str, tuple[str, float]] = {}  # by path: a claim's text, and since when it says so

    @contextmanager
    def claim(self, path: AnyPath) -> Iterator[bool]:
        """Whether this process is to make `path`; while the block runs no other takes it.

        Two processes may both be told so where one took the other for dead, so that what is made must be put
        in its place in one piece.
        """
        file = path.with_name(f".{path.name}.claim")
        if not self._take(file):
            yield False
            return
        over = threading.Event()
        heart = threading.Thread(target=self._keep, args=(file, over), daemon=True)
        heart.start()
        try:
            yield True
        finally:
            over.set()
            heart.join()
            file.unlink(missing_ok=True)

    def _take(self, file: AnyPath) -> bool:
        try:
            create(file, _owner(0))
            return True
        except FileExistsError:
            if not self._is_abandoned(file):
                return False
        except FileNotFoundError:  # the folder is gone: all was made, and taken from there
            return False
        write_json(file, json.loads(_owner(0)), writer_name())
        return True

    def _is_abandoned(self, file: AnyPath) -> bool:
        try:
            text = file.read_text()
        except FileNotFoundError:  # given up between two looks
            return False
        try:
            owner = json.loads(text)
        except ValueError:  # not yet written, or half of it
            owner = {}
        if owner.get("machine") == machine() and not _is_running(owner["pid"]):
            return True
        before, since = self.seen.get(str(file), (None, 0.0))
        if text != before:
            self.seen[str(file)] = (text, time.monotonic())
            return False
        return time.monotonic() - since > self.abandoned

    def _keep(self, file: AnyPath, over: threading.Event) -> None:
        beats = 0
        while not over.wait(self.beat):
            beats += 1
            with suppress(OSError):  # a full disk, or one that is away for a moment
                write_json(file, json.loads(_owner(beats)), writer_name())


def _owner(beats: int) -> str:
    return json.dumps({"machine": machine(), "pid": os.getpid(), "beats": beats})


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
