"""Processes that have imported everything: forks of a server,
which is itself a fork made before any test has run.

A new process takes many seconds to import torch, diffusers and transformers, and tests of several processes
and of killed ones start dozens. torch allows no backward pass in a fork of a process that has made one:
the server makes none.
"""

import importlib
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

LIMIT = 500  # seconds for the processes of one script
TRAINERS = ("adiee_data", "dpo", "flow_grpo", "nft", "refl", "reward_conditioned", "vifi_clip")
_servers: list[socket.socket] = []  # this process's, if it has one


@dataclass(frozen=True)
class Ended:
    """Exit statuses and output of a script's processes."""

    statuses: list[int]  # exit statuses, and −N where signal N killed
    output: str  # what they printed, to stdout and stderr


def start() -> None:
    """Starts this process's server; it ends when this process does."""
    for name in ("tests.models", *(f"rewardedit.trainers.{name}" for name in TRAINERS)):
        importlib.import_module(name)
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        _servers.append(ours)
        return
    try:
        ours.close()
        for request in theirs.makefile():
            theirs.sendall(json.dumps(_run(json.loads(request))).encode() + b"\n")
    finally:
        os._exit(0)


def run(script: Path, *words: str, environments: Sequence[dict[str, str]] = ({},)) -> Ended:
    """Runs a script in one process for each of the environments, which are added to this one's.

    Where a process fails the others are killed, as torchrun does.
    """
    with tempfile.NamedTemporaryFile() as output:
        request = {"script": str(script), "words": words, "folder": os.getcwd(), "output": output.name}
        request["environments"] = [{**os.environ, **environment} for environment in environments]
        (server,) = _servers
        server.sendall(json.dumps(request).encode() + b"\n")
        statuses = json.loads(server.makefile().readline())
        return Ended(statuses, Path(output.name).read_text())


def launch(script: Path, processes: int, *words: str) -> str:
    """Runs a script on so many CPU processes with the environment that torchrun gives them;
    returns what they printed.
    """
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    shared |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "ACCELERATE_USE_CPU": "true"}
    ended = run(
        script,
        *words,
        environments=[{**shared, "RANK": str(k), "LOCAL_RANK": str(k)} for k in range(processes)],
    )
    assert ended.statuses == [0] * processes, ended.output[-3000:]
    return ended.output


def run_here(script: Path, *words: str) -> None:
    """Runs a script on one process: this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(script), *words])
        runpy.run_path(str(script), run_name="__main__")


def _run(request: dict[str, Any]) -> list[int]:
    """The statuses of a request's processes."""
    processes = [_fork(request, environment) for environment in request["environments"]]
    statuses: dict[int, int] = {}
    began = time.monotonic()
    while len(statuses) < len(processes):
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            statuses[process] = os.waitstatus_to_exitcode(status)
        if any(statuses.values()) or time.monotonic() - began > LIMIT:
            for other in set(processes) - set(statuses):
                os.kill(other, signal.SIGKILL)
        time.sleep(0.01)
    return [statuses[process] for process in processes]


def _fork(request: dict[str, Any], environment: dict[str, str]) -> int:
    """Starts the script in a process of its own; returns its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(request["folder"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(os.open(request["output"], os.O_WRONLY | os.O_APPEND), stream)
        # pytest's own streams, which what is printed would otherwise go to
        sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1, closefd=False) for stream in (1, 2))
        sys.argv = [request["script"], *request["words"]]
        torch.set_num_threads(1)  # a forked process has none of the threads that its parent had
        runpy.run_path(request["script"], run_name="__main__")
        status = 0
    except SystemExit as stopped:
        status = stopped.code if isinstance(stopped.code, int) else int(bool(stopped.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)
