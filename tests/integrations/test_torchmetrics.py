"""`EditMetric` in torchmetrics itself, also in two processes."""

import copy
import json
import pickle

import pytest
import torch
from torchmetrics import MetricCollection

from rewardedit.integrations.torchmetrics import EditMetric
from tests import forks
from tests.integrations.test_edit_reward import images

TEXT = "make it warmer"


def pairs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and edits (count, 3, 8, 8)."""
    sizes = [(8, 8)] * count
    return torch.stack(images(*sizes)), torch.stack(images(*sizes, seed=1))


def test_the_mean_over_batches_counts_invalid_rows_apart():
    source, edited = pairs(5)
    metric = EditMetric("l1")
    metric.update(source[:2], edited[:2], [TEXT] * 2)
    metric.update(source[2:], edited[2:], [TEXT, " ", TEXT])
    found = metric.compute()
    each = (source - edited).abs().flatten(1).mean(1)
    assert float(found["score"]) == pytest.approx(1 - float(each[[0, 1, 2, 4]].mean()), abs=1e-6)
    assert (int(found["valid"]), int(found["invalid"])) == (4, 1)
    metric.reset()
    metric.update(source[:1], edited[:1], [" "])
    assert metric.compute()["score"].isnan()


def test_it_is_a_metric_like_others():
    source, edited = pairs(2)
    collection = MetricCollection({"a": EditMetric("l1"), "b": EditMetric("psnr")})
    first = collection(source[:1], edited[:1], [TEXT])  # forward: of the batch alone
    collection.update(source[1:], edited[1:], [TEXT])
    assert len(first) == len(collection.compute()) == 6
    metric = pickle.loads(pickle.dumps(copy.deepcopy(collection["a"])))
    assert metric.compute()["score"] == collection["a"].compute()["score"]
    assert metric.higher_is_better
    with pytest.raises(ValueError, match="source: expected the source image of each of 2 edits; got 1"):
        metric.update(source[:1], edited, [TEXT] * 2)


SCRIPT = """
import json, os, sys
import torch
from rewardedit.integrations.torchmetrics import EditMetric
from tests.integrations.test_torchmetrics import TEXT, pairs

rank = int(os.environ["RANK"])
torch.distributed.init_process_group("gloo")
source, edited = pairs(5)
metric = EditMetric("l1")
rows = slice(0, 2) if rank == 0 else slice(2, 5)
texts = [TEXT, TEXT] if rank == 0 else [TEXT, " ", TEXT]
metric.update(source[rows], edited[rows], texts)
if rank == 0:
    print(json.dumps({name: float(value) for name, value in metric.compute().items()}))
else:
    metric.compute()
torch.distributed.destroy_process_group()
"""


def test_two_processes_give_the_mean_of_all(tmp_path):
    (tmp_path / "two.py").write_text(SCRIPT)
    said = forks.launch(tmp_path / "two.py", 2)
    found = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    source, edited = pairs(5)
    one = EditMetric("l1")
    one.update(source, edited, [TEXT, TEXT, TEXT, " ", TEXT])
    assert found == pytest.approx({name: float(value) for name, value in one.compute().items()})
    assert found["invalid"] == 1
