"""The command on two processes: they divide the stages, none waits in a collective,
and the results are one process's.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rewardedit import EditBatch, Scores
from rewardedit.cli import load_recipe, main
from rewardedit.files import read_log
from rewardedit.prepared import Prepared
from rewardedit.scorers import Scorer
from rewardedit.training.run import start
from rewardedit.training.run_folder import release
from tests.forks import launch
from tests.shards import read_shards

TIMEOUT = 6  # seconds of the process group, as its 10 minutes are beside a stage of hours
# seconds that rank 0 takes for a shard of scores
SLOW = 8

SCRIPT = f"""
import datetime, os, pathlib, sys, time
import torch
from accelerate import PartialState
from rewardedit.cli import main
from rewardedit.trainers import reward_conditioned

torch.set_num_threads(1)
folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
(folder / f"ready-{{rank}}").touch()  # imports may take longer on one of the two than the timeout
while not all((folder / f"ready-{{r}}").exists() for r in range(2)):
    time.sleep(0.05)
PartialState(cpu=True, timeout=datetime.timedelta(seconds={TIMEOUT}))
fresh, out, *words = sys.argv[2:]
short = ["data.limit=4", "candidates=null", "evaluate=null", "train.batch_size=2", "train.max_steps=1"]
for folder, more, wanted in (
    (out, [], 2),
    (out, ["--overwrite"], 0),
    (out, ["--resume"], 0),
    (fresh, short, 0),
):
    time.sleep(2 * rank)  # the slower one finds what the other has made
    assert main([*words, "--out", folder, *more]) == wanted, (rank, more)
"""


class Slow(Scorer):
    """l1 that notes which process scored what, and takes its time on the first."""

    range = (-1.0, 0.0)

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        rank = int(os.environ.get("RANK", 0))
        log = Path(os.environ["SCORED"])
        if len(batch) == 2:  # as batches of a relabelling are
            with log.open("a") as file:
                file.write(f"{rank} {batch.instruction[0]}\n")
            if "SLOW" in os.environ and rank == 0:
                time.sleep(float(os.environ["SLOW"]) / 16)  # a shard has 16 batches
        return Scores.make(-(batch.edited - batch.source).abs().mean((1, 2, 3)))


def words_of(base: str) -> list[str]:
    data = ["data.limit=36", "data.size=32", f"relabel.scorer={__name__}:Slow", "relabel.batch_size=2"]
    candidates = [
        f"candidates.editors=[{base}]",
        "candidates.source=false",
        "candidates.batch_size=2",
        "candidates.num_inference_steps=1",
    ]
    train = [
        "max_steps=2",
        "batch_size=4",
        "lr_warmup_steps=1",
        "tracker=none",
        "mixed_precision=no",
        "ema=null",
        "log_every=1",
        "optimizer=adamw",
    ]
    evaluate = [
        "n=7",
        "val_n=4",
        "batch_size=4",
        "num_inference_steps=[1]",
        "guidance_scale=[1.0,1.2]",
        "autocast=false",
    ]
    more = [*(f"train.{word}" for word in train), *(f"evaluate.{word}" for word in evaluate)]
    return [f"base={base}", *data, *candidates, *more]


@pytest.mark.slow
def test_two_processes_divide_the_stages_and_make_what_one_makes(tiny_editor, tmp_path, monkeypatch):
    """A run that is refused, one that is written over, resumed, and a fresh one, in one launch."""
    monkeypatch.setenv("SCORED", str(tmp_path / "scored-by-one"))
    one, two, fresh = (tmp_path / name for name in ("one", "two", "fresh"))
    words = ["train", "quickstart", *words_of(tiny_editor)]
    assert main([*words, "--out", str(one)]) == 0

    start(two, load_recipe("quickstart", [])[1])
    release(two)
    (two / "left over").touch()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    scored = tmp_path / "scored-by-two"
    monkeypatch.setenv("SCORED", str(scored))
    monkeypatch.setenv("SLOW", str(SLOW))
    said = launch(script, 2, str(tmp_path), str(fresh), str(two), *words)
    assert "holds an earlier run" in said
    assert said.count("gain over the base") == 2
    assert (fresh / "pipeline" / "made_of.json").is_file()

    # Each scored its own shards, and none when it was resumed: in the run that was written over the first
    # process the first, which takes it long, and the second the other two; in the fresh one, of one shard,
    # who came first. The main process scores a batch of two more in each of the two evaluations: the edits
    # that are asked for the worst.
    lines = scored.read_text().splitlines()
    by_rank = [sum(line.startswith(f"{rank} ") for line in lines) for rank in (0, 1)]
    assert by_rank in ([16 + 2 + 2, 16 + 4], [16 + 2, 16 + 4 + 2])
    assert not (two / "left over").exists()
    assert read_shards(two / "relabelled") == read_shards(one / "relabelled")
    for name in ("cache/edited.npy", "cache/source.npy"):
        assert np.array_equal(np.load(one / name), np.load(two / name))
    made = [
        [path.read_bytes() for path in sorted((run / "candidates").rglob("*.parquet"))] for run in (one, two)
    ]
    assert len(made[0]) == 2
    assert made[0] == made[1]
    losses = [[line["loss"] for line in read_log(run)] for run in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    unets = [
        load_file(run / "pipeline" / "unet" / "diffusion_pytorch_model.safetensors") for run in (one, two)
    ]
    for name, value in unets[0].items():
        torch.testing.assert_close(unets[1][name], value, rtol=1e-3, atol=1e-4)
    metrics = [json.loads((run / "metrics.json").read_text()) for run in (one, two)]
    for variant, means in metrics[0]["rewards"].items():
        assert metrics[1]["rewards"][variant] == pytest.approx(means, abs=1e-3)
    assert not (two / "evaluation").exists()
