"""Kills a run at random moments of each of its stages, goes on with --resume, and compares with a run that nobody killed.

Command: python tests/kills.py [--kills 10] [--seed 0] [STAGE …]

The run is `rewardedit train quickstart` with candidates and a tiny editor: candidates, scores and labels (`relabelled`),
latents (`cache`) and training (`pipeline`). Each kill is a SIGKILL, to a fresh run, at a moment drawn uniformly from the time
that the stage took in the unbroken run. The exit status is 1 where a resumed run made anything else.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

STAGES = ("candidates", "relabelled", "cache", "pipeline")
MADE = ("*.safetensors", "*.parquet", "*.npy", "*.png", "scale.json", "made_of.json")  # of a run, equal to the byte


@dataclass(frozen=True)
class Outcome:
    """What became of one kill."""

    stage: str
    second: float  # after the start
    was_killed: bool  # the run may have ended before
    differs: list[str]  # files that a resumed run has otherwise, or not at all


def words_of(base: Path) -> list[str]:
    """The run: every stage, as short as it can be."""
    data = ["data.rows=24", "data.size=32", "relabel.scorer=l1", "relabel.batch=2", "evaluate=null"]
    candidates = [f"candidates.editors=[{base}]", "candidates.batch=2", "candidates.steps=2"]
    train = ["steps=12", "batch=4", "warmup=1", "tracker=none", "precision=no", "ema=0.9", "checkpoint_every=2", "log_every=1"]
    return ["train", "quickstart", f"base={base}", *data, *candidates, *(f"train.{word}" for word in train)]


def start(words: Sequence[str]) -> int:
    """Starts the command in a process of its own, forked from this one, which has imported all already; returns its id."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        torch.set_num_threads(1)  # a forked process has none of the threads that its parent had
        from rewardedit.cli import main

        status = main(list(words))
    finally:
        os._exit(status)


def run(words: Sequence[str]) -> None:
    """Runs the command to its end.

    Raises:
        RuntimeError: where it fails.
    """
    _, status = os.waitpid(start(words), 0)
    if status:
        raise RuntimeError(f"rewardedit {' '.join(words)}: status {os.waitstatus_to_exitcode(status)}")


def kill(words: Sequence[str], second: float) -> bool:
    """Runs the command and kills it after so many seconds; False where it had ended before."""
    process, began = start(words), time.monotonic()
    while time.monotonic() - began < second:
        if os.waitpid(process, os.WNOHANG)[0]:
            return False
        time.sleep(0.005)
    os.killpg(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


def made(folder: Path) -> dict[str, bytes]:
    """What a run has made, by its name."""
    paths = {path for pattern in MADE for path in folder.rglob(pattern) if "checkpoints" not in path.parts}
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def windows(folder: Path, began: float) -> dict[str, tuple[float, float]]:
    """When each stage of a run began and ended, in seconds after the run's start."""
    ends = {name: max(path.stat().st_mtime for path in (folder / name).rglob("made_of.json")) - began for name in STAGES}
    starts = dict(zip(STAGES, [0.0, *list(ends.values())[:-1]], strict=True))
    return {name: (starts[name], ends[name]) for name in STAGES}


def outcomes(base: Path, folder: Path, stages: Sequence[str] = STAGES, kills: int = 10, seed: int = 0) -> list[Outcome]:
    """Kills `kills` runs in each stage and resumes them.

    Args:
        base: of a tiny editor.
        folder: for the runs.
    """
    words, began = words_of(base), time.time()
    run([*words, "--out", str(folder / "whole")])
    whole, times = made(folder / "whole"), windows(folder / "whole", began)
    rng = np.random.default_rng(seed)
    found = []
    for stage in stages:
        for k in range(kills):
            out, second = folder / f"{stage}-{k}", float(rng.uniform(*times[stage]))
            was_killed = kill([*words, "--out", str(out)], second)
            run([*words, "--out", str(out), "--resume"])
            resumed = made(out)
            differs = [name for name in {**whole, **resumed} if whole.get(name) != resumed.get(name)]
            found.append(Outcome(stage, second, was_killed, differs))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills runs at random moments, resumes them and compares.")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"some of {', '.join(STAGES)}; all without one")
    parser.add_argument("--kills", type=int, default=10, help="for each stage")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    asked = parser.parse_args()
    from tests.models import tiny_pipeline

    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        tiny_pipeline().save_pretrained(Path(folder) / "base")
        found = outcomes(Path(folder) / "base", Path(folder), asked.stages or STAGES, asked.kills, asked.seed)
    for outcome in found:
        what = f"differs: {', '.join(outcome.differs[:3])}" if outcome.differs else "equal"
        print(f"{outcome.stage:<12}{outcome.second:6.2f} s  {'killed' if outcome.was_killed else 'had ended'}  {what}")
    broken = sum(bool(outcome.differs) for outcome in found)
    print(f"{len(found) - broken} of {len(found)} resumed runs made what an unbroken one makes")
    return int(bool(broken))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())
