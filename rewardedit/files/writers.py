"""Names of partial files by their writing process, so that those of dead processes can be recognised."""

import hashlib
import os
import secrets
import socket
from functools import cache

LONGEST = 150  # most bytes of a name that its hidden name includes


def machine() -> str:
    """Scope in which this process's id is unique: the host and, in a container, its own id namespace."""
    try:
        numbering = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        numbering = ""
    return f"{socket.gethostname()} {numbering}".strip()


def is_running(process: int) -> bool:
    """True if this machine has a process with this id."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def partial_name(name: str) -> str:
    """A new hidden name under which to write a file or folder that will be renamed to `name`."""
    return f"{_before_writer(name)}{_machine_digits()}-{os.getpid()}-{secrets.token_hex(4)}.partial"


def is_partial_of(partial: str, name: str) -> bool:
    """True for a `partial_name` of `name`, by any process."""
    return partial.startswith(_before_writer(name)) and partial.endswith(".partial")


def is_left_of(partial: str, name: str) -> bool:
    """True for a `partial_name` of `name` that a dead process of this machine has left behind."""
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
