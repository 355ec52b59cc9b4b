import asyncio

import pytest

from rewardedit.serving.scorer_set import ScorerSet
from rewardedit.serving.workers import Place, ProcessWorker


def test_a_failed_start_can_be_tried_again():
    worker = ProcessWorker(ScorerSet({"own": lambda batch: batch}), 1, Place(0, 1))  # cannot be sent
    for _ in range(2):
        with pytest.raises(Exception, match="pickle"):
            asyncio.run(worker.start())
    worker.close()
