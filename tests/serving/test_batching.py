import asyncio
from collections.abc import Sequence

import pytest
import torch
from fastapi.testclient import TestClient

from rewardedit.batch import PixelSample
from rewardedit.serving.app import make_app
from rewardedit.serving.batching import Batcher
from rewardedit.serving.budget import Refusal
from rewardedit.serving.metrics import Metrics
from rewardedit.serving.on_ray import Replica
from rewardedit.serving.scorer_set import Row, Score, ScorerInfo, ScorerSet
from rewardedit.serving.settings import ServeConfig
from rewardedit.serving.workers import WorkerDied
from tests.serving.helpers import L1, wait_until_ready


class Counting:
    """A worker that keeps its batches, and dies of an instruction."""

    can_restart = True

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.starts = 0

    async def start(self) -> list[ScorerInfo]:
        self.starts += 1
        return []

    async def score(self, samples: Sequence[PixelSample], names: Sequence[str]) -> list[Row]:
        self.batches.append([sample.instruction for sample in samples])
        await asyncio.sleep(0)
        if any(sample.instruction == "die" for sample in samples):
            raise WorkerDied("dead")
        return [{name: Score(float(sample.instruction)) for name in names} for sample in samples]

    def close(self) -> None:
        return None


def samples(instructions: Sequence[str], height: int = 4) -> list[PixelSample]:
    pixels = torch.zeros(3, height, 4, dtype=torch.uint8)
    return [PixelSample("0", pixels, text, pixels) for text in instructions]


def run(worker: Counting, *calls: Sequence[PixelSample], size: int = 4, names: str = "a") -> list[list[Row]]:
    """The rows of calls that are made at the same time."""

    async def go() -> list[list[Row]]:
        batcher = Batcher([worker], size, 0.01, 1000, Metrics())
        work = asyncio.create_task(batcher.run())
        found = await asyncio.gather(*(batcher.score(call, [names]) for call in calls))
        work.cancel()
        return found

    return asyncio.run(go())


def test_calls_share_batches_and_keep_their_order():
    worker = Counting()
    calls = [samples([str(10 * i + j) for j in range(3)]) for i in range(4)]
    found = run(worker, *calls)
    assert [[row["a"].score for row in rows] for rows in found] == [
        [10 * i + j for j in range(3)] for i in range(4)
    ]
    assert [len(batch) for batch in worker.batches] == [4, 4, 4]


def test_a_batch_holds_edits_of_one_size():
    worker = Counting()
    run(worker, samples(["1", "2"]), samples(["3"], height=5), samples(["4"]))
    assert sorted(worker.batches) == [["1", "2", "4"], ["3"]]


def test_large_images_come_in_smaller_batches():
    worker = Counting()
    run(worker, samples(list("1234"), height=2**19))  # two megapixels each
    assert [len(batch) for batch in worker.batches] == [2, 2]


def test_the_edit_that_kills_workers_is_found():
    worker = Counting()
    (found,) = run(worker, samples(["1", "die", "2"]))
    assert [row["a"].score for row in found] == [1, None, 2]
    assert found[1]["a"].reason == "3 processes have died while they scored this edit"
    assert worker.batches[:2] == [["1", "die", "2"]] * 2
    assert sorted(worker.batches[2:]) == [["1"], ["2"], ["die"]]
    assert worker.starts == 4


def test_requests_end_when_the_last_worker_is_lost():
    worker = Counting()
    worker.can_restart = False

    async def go() -> None:
        batcher = Batcher([worker], 4, 0, 1000, Metrics())
        work = asyncio.create_task(batcher.run())
        with pytest.raises(Exception, match="the scorers have failed"):
            await batcher.score(samples(["die"]), ["a"])
        with pytest.raises(WorkerDied):
            await work
        with pytest.raises(Refusal, match="the scorers have failed"):
            await asyncio.wait_for(batcher.score(samples(["1"]), ["a"]), 5)

    asyncio.run(go())


def test_a_replica_of_ray_is_unhealthy_without_workers():
    replica = Replica()
    replica.app = make_app(ScorerSet(L1), ServeConfig())
    with TestClient(replica.app, base_url="http://localhost") as client:
        wait_until_ready(client)
        replica.check_health()
    with pytest.raises(RuntimeError, match="the scorers have failed"):
        replica.check_health()
