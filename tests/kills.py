"""Kills a run at random moments of each of its stages, goes on with --resume,
and compares with a run that nobody killed.

Command: python tests/kills.py [--moments 10] [--seed 0] [--keep NAME] [STAGE …]

The runs are `rewardedit train quickstart` with candidates and a tiny editor: candidates, scores and labels
(`relabelled`), latents (`cache`) and training (`pipeline`); `rewardedit train shapes-adiee-data`: a method's
edits (`methods`), what is measured of them (`measured`) and labelled rows (`rows`); and `rewardedit relabel`
and `rewardedit score` (`relabel`, `score`), which the same commands go on with. Each kill is a SIGKILL or
SIGTERM in turn, to a fresh run, at a moment that is drawn uniformly from the time that the stage took in the
unbroken run and counted from when the stage begins. The exit status is 1 where a resumed run made anything
else; --keep writes benchmarks/results/NAME.json, and kill.json with the sum over training, relabelling,
candidates and scoring where they are among the stages.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
# of a run, equal to the byte
MADE = ("*.safetensors", "*.parquet", "*.npy", "scale.json", "made_of.json")
SIGNALS = (signal.SIGKILL, signal.SIGTERM)  # in turn
TRIES = 10  # of a kill that is to fall into its stage


@dataclass(frozen=True)
class Outcome:
    """What became of one kill."""

    stage: str
    second: float  # after the stage's beginning
    # the stage that was not whole when the run was killed; None: the run had ended before
    killed_in: str | None
    differs: list[str]  # files that a resumed run has otherwise, or not at all


def quickstart(base: Path, out: Path) -> list[str]:
    """Every stage of reward conditioning, as short as it can be."""
    data = ["data.rows=24", "data.size=32", "relabel.scorer=l1", "relabel.batch_size=2", "evaluate=null"]
    candidates = [
        f"candidates.editors=[{base}]",
        "candidates.batch_size=2",
        "candidates.num_inference_steps=2",
    ]
    train = [
        "max_steps=12",
        "batch_size=4",
        "lr_warmup_steps=1",
        "tracker=none",
        "mixed_precision=no",
        "ema=0.9",
        "checkpoint_every=2",
        "log_every=1",
    ]
    settings = [f"base={base}", *data, *candidates, *(f"train.{word}" for word in train)]
    return ["train", "quickstart", *settings, "--out", str(out)]


def adiee_data(base: Path, out: Path) -> list[str]:
    """Every stage of a scorer's training data, with one method."""
    method = f"methods={{editor: {{model: {base}, num_inference_steps: 2, grade: strong}}}}"
    rows = ["data.shapes.rows=72", "sequences.shapes.rows=20", "batch_size=2", "examples=1"]
    settings = [method, f"autoencoder={base}", *rows]
    return ["train", "shapes-adiee-data", *settings, "--out", str(out)]


def relabel(base: Path, out: Path) -> list[str]:
    """Labels of several shards of rows."""
    return ["relabel", "data.rows=600", "relabel.scorer=l1", "relabel.batch_size=2", "--out", str(out)]


def score(base: Path, out: Path) -> list[str]:
    """Scores of several shards of rows."""
    rows = ["name=shapes", "rows=5000", "size=16"]
    return ["score", *rows, "--scorer", "l1", "--out", str(out / "scores.parquet")]


@dataclass(frozen=True)
class Run:
    """A command that is killed."""

    words: Callable[[Path, Path], list[str]]  # of the command, for a base and the run's folder
    stages: dict[str, str]  # in their order, by name: a folder of the run, or its one file
    resume: tuple[str, ...] = ("--resume",)  # added where it was killed before

    def start(self, base: Path, out: Path, resumed: bool = False) -> int:
        """Starts the command in a process of its own; returns its id."""
        return start([*self.words(base, out), *(self.resume if resumed else ())])

    def run(self, base: Path, out: Path, resumed: bool = False) -> None:
        """Runs the command to its end.

        Raises:
            RuntimeError: where it fails.
        """
        _, status = os.waitpid(self.start(base, out, resumed), 0)
        if status:
            words = " ".join(self.words(base, out))
            raise RuntimeError(f"rewardedit {words}: status {os.waitstatus_to_exitcode(status)}")


RUNS = {
    "quickstart": Run(quickstart, {name: name for name in ("candidates", "relabelled", "cache", "pipeline")}),
    "shapes-adiee-data": Run(adiee_data, {name: name for name in ("methods", "measured", "rows")}),
    "relabel": Run(relabel, {"relabel": "relabelled"}, resume=()),
    "score": Run(score, {"score": "scores.parquet"}, resume=()),
}
STAGES = tuple(stage for run in RUNS.values() for stage in run.stages)
COMMANDS = {"train": "pipeline", "relabel": "relabel", "candidates": "candidates", "score": "score"}


def start(words: Sequence[str]) -> int:
    """Starts the command in a process of its own, forked from this one, which has imported all already;
    returns its id.
    """
    sys.stdout.flush()
    process = os.fork()
    if process:
        os.setpgid(process, process)  # a group of its own, in both, as either may come first
        return process
    status = 1
    try:
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        torch.set_num_threads(1)  # a forked process has none of the threads that its parent had
        from rewardedit.cli import main

        status = main(list(words))
    finally:
        os._exit(status)


def kill(run: Run, base: Path, out: Path, after: Sequence[Path], second: float, how: int) -> None:
    """Runs the command and ends it by the signal `how` so many seconds after the folder `out` has the files
    `after`, if it still runs.
    """
    process = run.start(base, out)
    began = None
    while began is None or time.monotonic() - began < second:
        if os.waitpid(process, os.WNOHANG)[0]:
            return
        if began is None and all((out / path).exists() for path in after):
            began = time.monotonic()
        time.sleep(0.002)
    os.killpg(process, how)
    os.waitpid(process, 0)


def made(folder: Path) -> dict[str, bytes]:
    """What a run has made, by its name."""
    paths = {path for pattern in MADE for path in folder.rglob(pattern) if "checkpoints" not in path.parts}
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def marks(folder: Path, stages: dict[str, str]) -> dict[str, list[Path]]:
    """What says that a stage of a run is whole, relative to the run's folder."""
    found = {}
    for name, result in stages.items():
        path = folder / result
        paths = [path] if path.is_file() else path.rglob("made_of.json")
        found[name] = [mark.relative_to(folder) for mark in paths]
    return found


def outcomes(
    command: Run,
    base: Path,
    folder: Path,
    stages: Sequence[str],
    moments: int = 10,
    seed: int = 0,
) -> list[Outcome]:
    """Kills as many runs in each stage as there are moments, by either signal in turn, and resumes them.

    Args:
        folder: for the runs.
        stages: of the command, in which it is killed.
    """
    began = time.time()
    unbroken = folder / "whole"
    command.run(base, unbroken)
    whole = made(unbroken)
    ends_with = marks(unbroken, command.stages)
    # A folder's time is when a file in it was last renamed: the mark itself keeps the time at which it was
    # written.
    ends = [
        max((unbroken / path).parent.stat().st_mtime for path in ends_with[name]) for name in command.stages
    ]
    lengths = dict(zip(command.stages, np.diff([began, *ends]), strict=True))
    rng = np.random.default_rng(seed)
    found = []
    for stage in stages:
        names = list(command.stages)
        earlier = names[: names.index(stage)]
        before = [path for name in earlier for path in ends_with[name]]
        for k in range(moments):
            out = folder / f"{stage}-{k}"
            killed_in = None
            for _ in range(TRIES):  # a stage may be over sooner than in the unbroken run
                shutil.rmtree(out, ignore_errors=True)
                second = float(rng.uniform(0, lengths[stage]))
                kill(command, base, out, before, second, SIGNALS[k % len(SIGNALS)])
                killed_in = None
                for name in command.stages:
                    if not all((out / path).exists() for path in ends_with[name]):
                        killed_in = name
                        break
                if killed_in == stage:
                    break
            command.run(base, out, resumed=True)
            resumed = made(out)
            differs = [name for name in {**whole, **resumed} if whole.get(name) != resumed.get(name)]
            found.append(Outcome(stage, second, killed_in, differs))
            shutil.rmtree(out)
    return found


def figures(found: Sequence[Outcome]) -> dict[str, Any]:
    """What is kept: by stage the moments in seconds, how many kills fell into the stage,
    and how many runs are equal.
    """
    stages = {}
    for stage in dict.fromkeys(outcome.stage for outcome in found):
        own = [outcome for outcome in found if outcome.stage == stage]
        stages[stage] = {
            "moments": [round(outcome.second, 3) for outcome in own],
            "killed_in_it": sum(outcome.killed_in == stage for outcome in own),
            "equal": sum(not outcome.differs for outcome in own),
        }
    return {"n": len(found), "stages": stages}


def of_commands(found: Sequence[Outcome]) -> dict[str, Any]:
    """The kills that fell into training, relabelling, candidates or scoring, and how many runs are equal."""
    own = [outcome for outcome in found if outcome.stage in COMMANDS.values()]
    return {
        "n": len(own),
        "killed": sum(outcome.killed_in == outcome.stage for outcome in own),
        "equal": sum(not outcome.differs for outcome in own),
        "stages": COMMANDS,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills runs at random moments, resumes them and compares.")
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", help=f"some of {', '.join(STAGES)}; all without one"
    )
    parser.add_argument("--moments", type=int, default=10, help="for each stage")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--keep", metavar="NAME", help="write benchmarks/results/NAME.json")
    args = parser.parse_args()
    # here, and not anew in each of the runs
    import rewardedit.trainers.adiee_data
    import rewardedit.trainers.reward_conditioned  # noqa: F401
    from tests.models import tiny_pipeline

    found: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        base = Path(folder) / "base"
        tiny_pipeline().save_pretrained(base)
        for name, command in RUNS.items():
            chosen = [stage for stage in command.stages if stage in (args.stages or STAGES)]
            if chosen:
                found += outcomes(command, base, Path(folder) / name, chosen, args.moments, args.seed)
    for outcome in found:
        what = f"differs: {', '.join(outcome.differs[:3])}" if outcome.differs else "equal"
        where = f"killed in {outcome.killed_in}" if outcome.killed_in else "had ended"
        print(f"{outcome.stage:<12}{outcome.second:6.2f} s  {where:<21} {what}")
    broken = sum(bool(outcome.differs) for outcome in found)
    print(f"{len(found) - broken} of {len(found)} resumed runs made what an unbroken one makes")
    if args.keep:
        sys.path.insert(0, str(ROOT / "benchmarks"))
        from record import keep

        command = " ".join(["python tests/kills.py", *sys.argv[1:]])
        keep(args.keep, command, figures(found))
        if set(COMMANDS.values()) <= {outcome.stage for outcome in found}:
            keep("kill", command, of_commands(found))
    return int(bool(broken))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
