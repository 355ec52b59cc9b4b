"""Workers, each with the scorers in a thread of this process or in a process of its own."""

import asyncio
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from rewardedit.batch import PixelSample
from rewardedit.serving.scorer_set import LoadedScorers, Row, ScorerInfo, ScorerSet

Result = TypeVar("Result")
VISIBLE = "CUDA_VISIBLE_DEVICES"
END_SECONDS = 5.0  # that a process has to end by itself


class WorkerDied(RuntimeError):
    """A worker that cannot score any more; its batch has no scores."""


@runtime_checkable
class Worker(Protocol):
    """Scores one batch at a time; `start` loads the scorers, also anew after `WorkerDied`."""

    can_restart: bool

    async def start(self) -> list[ScorerInfo]: ...

    async def score(self, samples: Sequence[PixelSample], names: Sequence[str]) -> list[Row]: ...

    def close(self) -> None: ...


class SerialThread:
    """One thread that makes calls in order. It does not keep the program from ending."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    async def call(self, function: Callable[[], Result]) -> Result:
        """Returns what the function returns in the thread."""
        future: Future[Any] = Future()
        self._calls.put((future, function))
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            future, function = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:  # any: it is raised where it was called from
                future.set_exception(error)
            else:
                future.set_result(result)


class ThreadWorker:
    """Scores in a thread of this process; a GPU that has failed ends the server."""

    can_restart = False

    def __init__(self, scorers: ScorerSet, batch_size: int) -> None:
        self.scorers = scorers
        self.batch_size = batch_size
        self.thread = SerialThread()
        self.loaded: LoadedScorers | None = None

    async def start(self) -> list[ScorerInfo]:
        self.loaded = await self.thread.call(lambda: self.scorers.load(self.batch_size))
        return self.loaded.infos

    async def score(self, samples: Sequence[PixelSample], names: Sequence[str]) -> list[Row]:
        loaded = self.loaded
        assert loaded is not None
        try:
            return await self.thread.call(lambda: loaded.score(samples, names))
        except RuntimeError as error:
            raise WorkerDied(str(error)) from error

    def close(self) -> None:
        self.loaded = None


@dataclass(frozen=True)
class Place:
    """The share of a machine that one of several processes uses."""

    number: int  # number of this process
    count: int  # number of processes

    def occupy(self) -> None:
        """Leaves this process its GPU, or its share of the CPU. To be called before CUDA is used."""
        devices = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
        devices = devices or list(map(str, range(torch.cuda.device_count())))
        if devices:
            os.environ[VISIBLE] = devices[self.number % len(devices)]
        elif "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // self.count))


class ProcessWorker:
    """Scores in a process of its own, which may die: its batch is scored by another, or by its successor."""

    can_restart = True

    def __init__(self, scorers: ScorerSet, batch_size: int, place: Place) -> None:
        self.scorers = scorers
        self.batch_size = batch_size
        self.place = place
        self.thread = SerialThread()
        self.process: Any = None
        self.pipe: Connection | None = None

    async def start(self) -> list[ScorerInfo]:
        return await self.thread.call(self._start)

    def _start(self) -> list[ScorerInfo]:
        self.close()
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, self.scorers, self.batch_size, self.place)
        process = context.Process(target=_score_for_pipe, args=arguments, daemon=True)
        try:
            process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()  # so that the end of the process ends the pipe
        self.process = process
        self.pipe = ours
        answer = self._receive()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def score(self, samples: Sequence[PixelSample], names: Sequence[str]) -> list[Row]:
        return await self.thread.call(lambda: self._score(samples, names))

    def _score(self, samples: Sequence[PixelSample], names: Sequence[str]) -> list[Row]:
        assert self.pipe is not None
        try:
            self.pipe.send((list(map(_packed, samples)), list(names)))
        except OSError as error:
            raise WorkerDied("the process that scores has died") from error
        return self._receive()

    def _receive(self) -> Any:
        assert self.pipe is not None
        try:
            return self.pipe.recv()
        except (EOFError, OSError) as error:
            raise WorkerDied("the process that scores has died") from error

    def close(self) -> None:
        """Ends the process."""
        if self.process is None:
            return
        assert self.pipe is not None
        self.pipe.close()
        self.process.join(END_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process = None


def _packed(sample: PixelSample) -> dict[str, Any]:
    """A sample's fields with its pixels as arrays, which a pipe passes on without shared memory."""
    fields = {}
    for name, value in vars(sample).items():
        fields[name] = value.numpy() if isinstance(value, Tensor) else value
    return fields


def _unpacked(fields: dict[str, Any]) -> PixelSample:
    images = ("source", "edited", "mask")
    tensors = {name: torch.from_numpy(fields[name]) for name in images if fields[name] is not None}
    return PixelSample(**(fields | tensors))


def _score_for_pipe(pipe: Connection, scorers: ScorerSet, batch_size: int, place: Place) -> None:
    """Scores the batches that come through a pipe, until its other end is closed.

    Signals are the server's: what it has accepted is scored to the end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    place.occupy()
    try:
        loaded = scorers.load(batch_size)
    except Exception as error:  # any: the server reports it
        pipe.send(_plain(error))
        return
    pipe.send(loaded.infos)
    while True:
        try:
            samples, names = pipe.recv()
        except EOFError:
            return
        pipe.send(loaded.score(list(map(_unpacked, samples)), names))


def _plain(error: Exception) -> Exception:
    """The error as one that any process can read."""
    text = str(error) or type(error).__name__
    return ValueError(text) if isinstance(error, ValueError | OSError) else RuntimeError(text)
