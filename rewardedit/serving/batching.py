"""Dynamic batching: edits of all requests wait in one queue, and each worker takes batches from it.

A batch holds edits of one size, with the same optional fields, for the same scorers, so that the scores are
those of a direct call. A worker takes the batch that has waited longest among those that are full or whose
first edit has waited `max_wait` seconds. If a worker dies, its batch goes back to the queue; an edit on which
two workers have died is scored alone, and is invalid if a third dies.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rewardedit.batch import OPTIONAL, PixelSample
from rewardedit.serving.budget import Refusal
from rewardedit.serving.metrics import Metrics
from rewardedit.serving.scorer_set import Row, Score, ScorerInfo
from rewardedit.serving.settings import MEGAPIXEL
from rewardedit.serving.workers import Worker, WorkerDied

MOST_DEATHS = 3  # of workers on one edit, after which it is invalid
FAILED = "the scorers have failed; the server ends"
PAUSE = 5.0  # seconds before a worker that could not be started again is tried anew
Key = tuple[object, ...]

logger = logging.getLogger(__name__)


@dataclass
class Job:
    """One edit that waits for its scores."""

    sample: PixelSample
    names: tuple[str, ...]  # names of its scorers
    arrived: float  # by time.monotonic
    row: asyncio.Future[Row]
    deaths: int = 0  # number of workers that ended while they scored it

    @property
    def key(self) -> Key:
        """Equal for edits that may be scored in one batch."""
        fields = tuple(getattr(self.sample, name) is not None for name in OPTIONAL)
        alone = id(self) if self.deaths >= MOST_DEATHS - 1 else None
        return (tuple(self.sample.source.shape), fields, self.names, alone)


class Batcher:
    """The queue of edits, and the workers that empty it."""

    def __init__(
        self, workers: Sequence[Worker], batch_size: int, max_wait: float, max_queue: int, metrics: Metrics
    ) -> None:
        self.workers = workers
        self.batch_size = batch_size
        self.max_wait = max_wait
        self.max_queue = max_queue
        self.metrics = metrics
        self.infos: list[ScorerInfo] = []  # of the scorers, once they are loaded
        self.running = 0  # number of workers that are ready
        self.started = asyncio.Event()  # all workers have been ready
        self.failed = False  # `run` is over: nothing is scored any more
        self._waiting: dict[Key, deque[Job]] = {}
        self._arrived = asyncio.Event()

    @property
    def queued(self) -> int:
        """Number of edits that wait."""
        return sum(map(len, self._waiting.values()))

    async def score(self, samples: Sequence[PixelSample], names: Sequence[str]) -> list[Row]:
        """Scores of the edits by the named scorers, in order.

        Raises:
            Refusal: 429 if the queue has no room for all of them, 503 if no worker is left.
        """
        if self.failed:
            raise Refusal(503, FAILED)
        if self.queued + len(samples) > self.max_queue:
            raise Refusal(429, f"the queue is full, {self.max_queue} edits; try again", 1)
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        jobs = [Job(sample, tuple(names), now, loop.create_future()) for sample in samples]
        for job in jobs:
            self._waiting.setdefault(job.key, deque()).append(job)
        self._arrived.set()
        return await asyncio.gather(*(job.row for job in jobs))

    async def run(self) -> None:
        """Starts the workers and lets them score until this is cancelled.

        Raises:
            Exception: if a worker cannot be started at first, or has died and cannot be started again.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for worker in self.workers:
                    group.create_task(self._work(worker))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self.failed = True
            self._refuse_waiting()
            for worker in self.workers:
                worker.close()

    def _refuse_waiting(self) -> None:
        """Ends the requests that wait when there is no worker left."""
        self.running = 0
        for jobs in self._waiting.values():
            for job in jobs:
                if not job.row.done():
                    job.row.set_exception(Refusal(503, FAILED))
        self._waiting.clear()

    async def _work(self, worker: Worker) -> None:
        self.infos = await worker.start()
        self._count(1)
        if self.running == len(self.workers):
            self.started.set()
        while True:
            jobs = await self._next_batch()
            self.metrics.batches.observe(len(jobs))
            try:
                rows = await worker.score([job.sample for job in jobs], jobs[0].names)
            except WorkerDied as death:
                self._put_back(jobs)
                if not worker.can_restart:
                    raise
                await self._restart(worker, death)
                continue
            for job, row in zip(jobs, rows, strict=True):
                if not job.row.done():
                    job.row.set_result(row)

    async def _restart(self, worker: Worker, death: WorkerDied) -> None:
        """Starts a dead worker, as often as it takes."""
        self._count(-1)
        self.metrics.restarts.inc()
        while True:
            logger.warning("%s; it is started again", death)
            try:
                await worker.start()
                break
            except Exception as error:  # any: memory may be short for a while
                logger.warning("it could not be started (%s); next try in %g s", error, PAUSE)
                await asyncio.sleep(PAUSE)
        self._count(1)

    def _count(self, change: int) -> None:
        self.running += change
        self.metrics.workers.set(self.running)

    async def _next_batch(self) -> list[Job]:
        """Waits for a batch that is full or has waited long enough, and takes it out of the queue."""
        while True:
            self._arrived.clear()
            now = time.monotonic()
            ready = []
            for key, jobs in self._waiting.items():
                if len(jobs) >= self._most(jobs[0]) or now >= jobs[0].arrived + self.max_wait:
                    ready.append((jobs[0].arrived, key))
            if ready:
                _, key = min(ready, key=lambda entry: entry[0])
                return self._take(key)

            firsts = [jobs[0].arrived for jobs in self._waiting.values()]
            rest = min(firsts) + self.max_wait - now if firsts else None
            try:
                await asyncio.wait_for(self._arrived.wait(), rest)
            except TimeoutError:
                continue

    def _most(self, job: Job) -> int:
        """Most edits of its size in a batch: fewer where images are larger than a megapixel."""
        pixels = job.sample.source.shape[-2] * job.sample.source.shape[-1]
        return max(1, min(self.batch_size, self.batch_size * MEGAPIXEL // pixels))

    def _take(self, key: Key) -> list[Job]:
        jobs = self._waiting[key]
        batch = [jobs.popleft() for _ in range(min(len(jobs), self._most(jobs[0])))]
        if not jobs:
            del self._waiting[key]
        return batch

    def _put_back(self, jobs: Sequence[Job]) -> None:
        """Puts the batch of a dead worker back to the head of the queue."""
        for job in reversed(jobs):
            job.deaths += 1
            if job.deaths < MOST_DEATHS:
                self._waiting.setdefault(job.key, deque()).appendleft(job)
            elif not job.row.done():
                reason = f"{MOST_DEATHS} processes have died while they scored this edit"
                job.row.set_result(dict.fromkeys(job.names, Score(None, reason)))
        self._arrived.set()
