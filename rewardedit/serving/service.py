"""Parts that all protocols share: edits as they were sent in, scores by name out."""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rewardedit.batch import PixelSample
from rewardedit.serving.batching import Batcher
from rewardedit.serving.budget import Budget, Refusal, Reservation
from rewardedit.serving.edits import BadEdit, RawEdit, decode_edit
from rewardedit.serving.metrics import Metrics
from rewardedit.serving.scorer_set import Row, ScorerInfo, ScorerSet
from rewardedit.serving.settings import ServeConfig
from rewardedit.serving.workers import Place, ProcessWorker, ThreadWorker, Worker
from rewardedit.untrusted import printable

Outcome = Row | BadEdit  # of one edit


class Service:
    """The scorers behind one server, with its queue and its limits."""

    def __init__(self, scorers: ScorerSet, config: ServeConfig) -> None:
        self.names = tuple(scorers.specs)
        self.config = config
        self.metrics = Metrics()
        self.batcher = Batcher(
            _workers(scorers, config),
            config.batch_size,
            config.max_wait_ms / 1000,
            config.max_queue,
            self.metrics,
        )
        self.metrics.queue.set_function(lambda: self.batcher.queued)
        self.decoded = Budget(config.max_decoded_mb * 2**20, "decoded images")
        self.decoders = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "decode")

    @property
    def is_ready(self) -> bool:
        """True once all models are loaded, while at least one worker can score."""
        return self.batcher.started.is_set() and self.batcher.running > 0

    def infos(self) -> list[ScorerInfo]:
        """Descriptions of the scorers.

        Raises:
            Refusal: 503 while they are loaded.
        """
        self._require_started()
        return self.batcher.infos

    def fingerprint(self, name: str) -> str:
        """The fingerprint of a served scorer."""
        return next(info.fingerprint for info in self.batcher.infos if info.name == name)

    async def score(self, edits: Sequence[RawEdit], names: Sequence[str] | None = None) -> list[Outcome]:
        """Decodes and scores edits; bad ones do not keep the others from being scored.

        Args:
            names: of the scorers; None: all.

        Raises:
            Refusal: 413 for too many edits, 422 for an unknown scorer, 429 if the server is full, 503 while
                models are loaded.
        """
        self._require_started()
        names = self._require_names(names)
        if len(edits) > self.config.max_items:
            raise Refusal(
                413, f"items: expected at most {self.config.max_items}; got {len(edits)}; send fewer"
            )
        with Reservation(self.decoded) as reservation:
            decoded = await self._decode(edits, reservation)
            samples = [sample for sample in decoded if isinstance(sample, PixelSample)]
            rows = iter(await self.batcher.score(samples, names) if samples else ())
            outcomes = [next(rows) if isinstance(sample, PixelSample) else sample for sample in decoded]
        self._count(outcomes, names)
        return outcomes

    async def _decode(
        self, edits: Sequence[RawEdit], reservation: Reservation
    ) -> list[PixelSample | BadEdit]:
        loop = asyncio.get_running_loop()
        calls = []
        for edit in edits:
            work = (decode_edit, edit, self.config.max_pixels, reservation)
            calls.append(loop.run_in_executor(self.decoders, *work))
        # all of them, as those that still run would take from a reservation that is over
        decoded = await asyncio.gather(*calls, return_exceptions=True)
        for sample in decoded:
            if isinstance(sample, BaseException):
                raise sample
        return [sample for sample in decoded if not isinstance(sample, BaseException)]

    def _require_started(self) -> None:
        if not self.batcher.started.is_set():
            raise Refusal(503, "models are still loading; try again", 5)

    def _require_names(self, names: Sequence[str] | None) -> tuple[str, ...]:
        if names is None:
            return self.names
        unknown = sorted(set(names) - set(self.names))
        if unknown or not names:
            got = printable(", ".join(unknown)) or "none"
            raise Refusal(422, f"scorers: expected some of {', '.join(self.names)}; got {got}")
        return tuple(dict.fromkeys(names))

    def _count(self, outcomes: Sequence[Outcome], names: Sequence[str]) -> None:
        for outcome in outcomes:
            for name in names:
                valid = not isinstance(outcome, BadEdit) and outcome[name].score is not None
                self.metrics.scores.labels(name, "valid" if valid else "invalid").inc()


def _workers(scorers: ScorerSet, config: ServeConfig) -> list[Worker]:
    if config.replicas == 1:
        return [ThreadWorker(scorers, config.batch_size)]
    places = [Place(number, config.replicas) for number in range(config.replicas)]
    return [ProcessWorker(scorers, config.batch_size, place) for place in places]
