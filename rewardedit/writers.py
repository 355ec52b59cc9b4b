"""This process among all that may write to a folder, and what those that died have left there."""

import hashlib
import os
import secrets
import socket
from functools import cache

LONGEST = 150  # bytes of a name in the hidden name that it is written under


def machine() -> str:
    """Where this process's number means this process: its host and, of containers, its own numbering."""
    try:
        numbering = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        numbering = ""
    return f"{socket.gethostname()} {numbering}".strip()


def is_running(process: int) -> bool:
    """True where this machine has a process of this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def partial_name(name: str) -> str:
    """A hidden name, not used before, to write a file or folder under that is to be called `name`."""
    return f"{_before_writer(name)}{_machine_digits()}-{os.getpid()}-{secrets.token_hex(4)}.partial"


def is_partial_of(partial: str, name: str) -> bool:
    """True for a `partial_name` of `name`, by any process."""
    return partial.startswith(_before_writer(name)) and partial.endswith(".partial")


def is_left_of(partial: str, name: str) -> bool:
    """True for a `partial_name` of `name` that a process of this machine has left which is dead."""
    if not is_partial_of(partial, name):
        return False
    writer = partial.removeprefix(_before_writer(name)).removesuffix(".partial").split("-")
    if len(writer) != 3 or writer[0] != _machine_digits() or not writer[1].isdecimal():
        return False
    return len(writer[1]) < 10 and not is_running(int(writer[1]))


def _before_writer(name: str) -> str:
    return f".{name.encode()[:LONGEST].decode(errors='ignore')}."


@cache
def _machine_digits() -> str:
    return hashlib.sha256(machine().encode()).hexdigest()[:8]
