"""Stages on a Ray cluster of two nodes on this machine, compared with those of one process.

Command: python tests/stages/ray_cluster.py FOLDER EDITOR
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import ray
from ray.cluster_utils import Cluster

from rewardedit import Scorer, load_editor
from rewardedit.cli import main
from rewardedit.data import DataConfig, open_rows
from rewardedit.scorers import load_scorer
from rewardedit.scoring import read_records, score_shards
from rewardedit.stages.executors import use_engine
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.stage import stage
from rewardedit.training.latents import make_cache
from rewardedit.training.trainable import RewardLabels

NODE = {"num_cpus": 2, "object_store_memory": 80_000_000}


def scores(folder: Path) -> None:
    """Scores by both engines are the same, though a worker is killed in the middle."""
    rows = open_rows(DataConfig("shapes", limit=192, size=32))
    plain = score_shards(folder / "plain", {}, rows, lambda: {"l1": load_scorer("l1")}, 32, batch=2)
    killed = folder / "killed"
    third = [record["instruction"] for record in read_records(plain[2])[:2]]

    class Killed(Scorer):
        """l1, whose process is killed at the third shard, once."""

        def score(self, batch, prepared):
            if batch.instruction == third and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return load_scorer("l1")(batch)

    with use_engine("ray"):
        run_on_ray = score_shards(folder / "ray", {}, rows, Lazy(lambda: {"l1": Killed()}), 32, batch=2)
    assert killed.exists()
    assert len(plain) == 6
    assert [read_records(path) for path in run_on_ray] == [read_records(path) for path in plain]
    names = {path.name for path in (folder / "ray").iterdir()}
    assert names == {"made_of.json", *(path.name for path in plain)}


def failures(folder: Path) -> None:
    """A shard that cannot be made is reported in one line."""

    def wrong(number: int, path: Path) -> None:
        raise ValueError("row 3: the image is missing")

    def broken(number: int, path: Path) -> None:
        raise OSError("the weights are not on this machine")

    def deadly(number: int, path: Path) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    expected = {
        wrong: "row 3: the image is missing",
        broken: "OSError: the weights are not on this machine",
        deadly: "3 workers died",
    }
    for make, reason in expected.items():
        with use_engine("ray"), pytest.raises(ValueError, match=reason):
            stage(folder / make.__name__, {}, make, 1)


def latents(folder: Path, editor: str) -> None:
    """Workers load the editor anew, and encode the same."""
    data = DataConfig("shapes", limit=40, size=32)
    caches = []
    for engine in ("processes", "ray"):
        with use_engine(engine):
            cache = make_cache(
                open_rows(data), data, load_editor(editor), folder / f"cache-{engine}", None, 1
            )
            assert len(cache.texts(load_editor(editor), RewardLabels(None, [0] * 40)).arrays["embeds"]) > 1
            caches.append(cache)
    assert np.array_equal(caches[0].edited, caches[1].edited)
    assert caches[0].ids == caches[1].ids


def commands(folder: Path, editor: str) -> None:
    """`rewardedit relabel` with candidates, by either engine."""
    words = [
        "relabel",
        "data.name=shapes",
        "data.limit=40",
        "data.size=32",
        "relabel.scorer=l1",
        "relabel.batch_size=1",
    ]
    words += [f"candidates.editors=[{editor}]", "candidates.batch_size=1", "candidates.num_inference_steps=1"]
    made = []
    for engine in ("processes", "ray"):
        out = folder / f"by-{engine}"
        assert main([*words, "--engine", engine, "--out", str(out)]) == 0
        made.append({path.relative_to(out): pq.read_table(path) for path in sorted(out.rglob("*.parquet"))})
    assert len(made[0]) > 4
    assert made[0].keys() == made[1].keys()
    assert all(made[0][name].equals(made[1][name]) for name in made[0])


if __name__ == "__main__":
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False)
    out, editor = Path(sys.argv[1]), sys.argv[2]
    scores(out)
    failures(out)
    latents(out, editor)
    commands(out, editor)
    ray.shutdown()
    cluster.shutdown()
    print("all shards are equal")
