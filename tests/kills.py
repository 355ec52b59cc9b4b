"""Ends or stops a run at random moments of each of its stages, goes on with it, and compares with a run that
nobody disturbed.

Command: python tests/kills.py [--moments 10] [--seed 0] [--keep NAME] [STAGE …]

The runs are `rewardedit train quickstart` with candidates and a tiny editor: candidates, scores and labels
(`relabelled`), latents (`cache`) and training (`pipeline`); `rewardedit train shapes/adiee-data/edited`: a
method's edits (`methods`), what is measured of them (`measured`) and labelled rows (`rows`), and all of it
(`adiee_data`); `rewardedit train` of the ADIEE scorer (`adiee_scorer`), by reward feedback (`refl`) and by
Flow-GRPO with two updates a rollout (`flow_grpo`); `rewardedit relabel` and `rewardedit score` (`relabel`,
`score`), which the same commands go on with; shares of a relabelling (`shards`); and `rewardedit push`, which
writes a model card (`share`). Each moment is drawn uniformly from the time that the stage took in the
unbroken run and counted from when the stage begins, of a fresh run, which gets one of three signals in turn:

- SIGKILL or SIGTERM, and the same command, or --resume, goes on;
- SIGSTOP, and a second process is given the same command, until it has ended or is told that the folder is
  the first one's; then SIGCONT, and when the first has ended the command is given once more. A process is
  taken for dead here after half a second.

A run is equal where all commands that go on end with status 0 and it has made what the unbroken one made,
to the byte. The exit status is 1 where one is not; --keep writes benchmarks/results/NAME.json, and kill.json
with the sum over training, relabelling, candidates and scoring where they are among the stages.
"""

import argparse
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

ROOT = Path(__file__).parents[1]
# of a run, equal to the byte
MADE = ("*.safetensors", "*.parquet", "*.npy", "scale.json", "made_of.json", "README.md")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)  # in turn
BEAT = 0.05  # seconds between two writings of a claim
ABANDONED = 0.5  # seconds after which a process that is stopped is taken for dead
TRAINERS = ("adiee_data", "adiee_scorer", "flow_grpo", "refl", "reward_conditioned")
IMPORTED = ("datasets", "peft", "pyarrow.parquet")
IMPORTED += tuple(f"rewardedit.trainers.{name}" for name in TRAINERS)
TRIES = 10  # of a kill that is to fall into its stage
REFUSED = 2  # status of a command whose folder is another process's


@dataclass(frozen=True)
class Outcome:
    """Outcome of a kill at one moment."""

    stage: str
    second: float  # after the stage's beginning
    # the stage that was not whole when the run was killed; None: the run had ended before
    killed_in: str | None
    differs: list[str]  # files that a resumed run has otherwise, or not at all; commands that failed
    signal: str

    def line(self) -> str:
        """Line that is printed for the outcome."""
        what = f"differs: {', '.join(self.differs[:3])}" if self.differs else "equal"
        where = f"in {self.killed_in}" if self.killed_in else "had ended"
        return f"{self.stage:<13}{self.second:6.2f} s  {self.signal} {where:<16} {what}"


def quickstart(base: Path, out: Path) -> list[str]:
    """Every stage of reward conditioning, as short as it can be."""
    data = ["data.limit=24", "data.size=32", "relabel.scorer=l1", "relabel.batch_size=2", "evaluate=null"]
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
    method = f"methods={{editor: {{model: {base}, num_inference_steps: 1, grade: strong}}}}"
    measure = "measure={clip_d: l1, similarity: [{l1: {against: target}}, {ssim: {against: target}}]}"
    rows = ["data.shapes.limit=40", "data.shapes.size=32", "sequences.shapes.limit=4", "batch_size=2"]
    settings = [method, measure, f"autoencoder={base}", *rows, "examples=1"]
    return ["train", "shapes/adiee-data/edited", *settings, "--out", str(out)]


def relabel(base: Path, out: Path) -> list[str]:
    """Labels of several shards of rows."""
    data = ["data.name=shapes", "data.limit=300"]
    return ["relabel", *data, "relabel.scorer=l1", "relabel.batch_size=2", "--out", str(out)]


def score(base: Path, out: Path) -> list[str]:
    """Scores of several shards of rows."""
    rows = ["name=shapes", "limit=5000", "size=16"]
    return ["score", *rows, "--scorer", "l1", "--out", str(out / "scores.parquet")]


def shards(base: Path, out: Path) -> list[str]:
    """The first half of a relabelling's shards."""
    return [*relabel(base, out), "--shard", "1/2"]


def other_shards(base: Path, out: Path) -> list[list[str]]:
    """Commands that finish a relabelling by shares."""
    return [[*relabel(base, out), "--shard", "2/2"], relabel(base, out)]


def adiee_scorer(base: Path, out: Path) -> list[str]:
    """A few steps of a scorer's training on labelled rows."""
    data = [
        f"data={{rows: {{name: labelled, path: {base / 'labelled'}, size: 64}}}}",
        f"model={base / 'vlm'}",
    ]
    words = ["side=64", "lora_rank=2", "head=scalar", "init_token_like=null", "add_question_tokens=false"]
    steps = ["max_steps=6", "batch_size=2", "questions_per_edit=1", "lr_warmup_steps=1", "muon_lr=null"]
    train = [*steps, "ema=0.9", "mixed_precision=no", "checkpoint_every=2", "log_every=1"]
    return [
        "train",
        "shapes/adiee-scorer/phase-4",
        *data,
        *words,
        *(f"train.{word}" for word in train),
        "--out",
        str(out),
    ]


def refl(base: Path, out: Path) -> list[str]:
    """A few steps of reward feedback learning."""
    data = [
        f"base={base}",
        "data.limit=16",
        "data.size=32",
        "variants=[refl]",
        "evaluate=null",
        "monitor.n=2",
    ]
    reward = ["scorer=l1", "num_inference_steps=[2]", "scale=quantiles", "stop_before_end=[0,0]"]
    steps = ["max_steps=4", "batch_size=2", "lr_warmup_steps=1", "validate_every=4", "validation_rows=1"]
    train = [*steps, "ema=0.9", "mixed_precision=no", "checkpoint_every=1", "log_every=1", "tracker=none"]
    watch = ["monitor.num_inference_steps=1", "monitor.held_out={clip_d: {checkpoint: shapes/clip}}"]
    words = [*data, *watch, *(f"reward.{word}" for word in reward)]
    return ["train", "shapes/refl", *words, *(f"train.{word}" for word in train), "--out", str(out)]


def flow_grpo(base: Path, out: Path) -> list[str]:
    """Two rollouts of Flow-GRPO, of two updates each."""
    data = [f"base={base}", "data.limit=12", "data.size=32", "evaluate=null", "monitor.n=2"]
    reward = ["scorer=l1", "group_size=2", "num_inference_steps=3", "updates=2"]
    steps = ["max_steps=4", "batch_size=4", "micro_batch_size=2", "lr_warmup_steps=0", "validate_every=4"]
    train = [*steps, "lora_rank=2", "mixed_precision=no", "checkpoint_every=1", "log_every=1", "tracker=none"]
    watch = ["monitor.num_inference_steps=1", "monitor.held_out={clip_d: {checkpoint: shapes/clip}}"]
    watch.append("noise.noise_between=[0,1]")
    settings = [*data, *watch, *(f"reward.{word}" for word in reward), *(f"train.{word}" for word in train)]
    return ["train", "shapes/flow-grpo", *settings, "train.validation_rows=1", "--out", str(out)]


def push(base: Path, out: Path) -> list[str]:
    """The model card of a run."""
    return ["push", str(out / "run")]  # whose name is on the card


def ended_run(base: Path, out: Path) -> None:
    """The folder of a run that has ended, with its editor."""
    shutil.copytree(base / "ended", out / "run")


def write_ended_run(base: Path, folder: Path) -> None:
    """Writes the files of a finished run from which a model card can be written."""
    from rewardedit.files import write_json

    (folder / "pipeline").mkdir(parents=True)
    shutil.copy(base / "model_index.json", folder / "pipeline")
    settings = {
        "name": "own",
        "base": "shapes/editor",
        "data": {"name": "shapes"},
        "relabel": {"scorer": "l1"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    write_json(folder / "environment.json", {"trainer": "reward_conditioned", "packages": {"torch": "2"}})
    write_json(folder / "metrics.json", {"oracle": {f"score {i}": i / 100 for i in range(500)}})


@dataclass(frozen=True)
class Run:
    """A command that is killed."""

    words: Callable[[Path, Path], list[str]]  # of the command, for a base and the run's folder
    stages: dict[str, str]  # in their order, by name: a folder of the run, or its one file
    resume: tuple[str, ...] = ("--resume",)  # added where it was killed before and has left something
    # further commands that end what the command began
    more: Callable[[Path, Path], list[list[str]]] = lambda base, out: []
    prepare: Callable[[Path, Path], None] = lambda base, out: None  # makes what has to be there before

    def begin(self, base: Path, out: Path) -> int:
        """Starts the command in a process of its own; returns its id."""
        self.prepare(base, out)
        return start(self.words(base, out))

    def go_on(self, base: Path, out: Path) -> int:
        """Gives the command again, and those that end what it began; returns the first status that is not
        0.
        """
        resume = self.resume if has_begun(out) else ()
        commands = [[*self.words(base, out), *resume], *self.more(base, out)]
        for words in commands:
            status = wait(start(words))
            if status:
                return status
        return 0

    def run(self, base: Path, out: Path) -> None:
        """Runs the command to its end.

        Raises:
            RuntimeError: where it fails.
        """
        self.prepare(base, out)
        for words in [self.words(base, out), *self.more(base, out)]:
            status = wait(start(words))
            if status:
                raise RuntimeError(f"rewardedit {' '.join(words)}: status {status}")


RUNS = {
    "quickstart": Run(quickstart, {name: name for name in ("candidates", "relabelled", "cache", "pipeline")}),
    "shapes-adiee-data": Run(adiee_data, {name: name for name in ("methods", "measured", "rows")}),
    "relabel": Run(relabel, {"relabel": "relabelled"}, resume=()),
    "score": Run(score, {"score": "scores.parquet"}, resume=()),
    "shards": Run(shards, {"shards": "relabelled"}, resume=(), more=other_shards),
    "adiee-data": Run(adiee_data, {"adiee_data": "rows"}),
    "adiee-scorer": Run(adiee_scorer, {"adiee_scorer": "metrics.json"}),
    "refl": Run(refl, {"refl": "monitor.html"}),
    "flow-grpo": Run(flow_grpo, {"flow_grpo": "monitor.html"}),
    "share": Run(push, {"share": "run/pipeline/README.md"}, resume=(), prepare=ended_run),
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
        from rewardedit.stages import leases
        from rewardedit.training import previews

        previews.STEPS = 1
        leases.HEARTBEAT = BEAT
        leases.TIMEOUT = ABANDONED
        status = main(list(words))
    finally:
        os._exit(status)


def has_begun(out: Path) -> bool:
    """True for the folder of a run that holds something."""
    return out.exists() and any(out.iterdir())


def wait(process: int) -> int:
    """The exit status of a process that is waited for; −N where signal N ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def kill(run: Run, base: Path, out: Path, after: Sequence[Path], second: float, how: int) -> int | None:
    """Runs the command and ends it by the signal `how` so many seconds after the folder `out` has the files
    `after`, if it still runs; the id of a process that is stopped, and None of one that has ended.
    """
    process = run.begin(base, out)
    began = None
    while began is None or time.monotonic() - began < second:
        if os.waitpid(process, os.WNOHANG)[0]:
            return None
        if began is None and all((out / path).exists() for path in after):
            began = time.monotonic()
        time.sleep(0.002)
    os.killpg(process, how)
    if how == signal.SIGSTOP:
        return process
    os.waitpid(process, 0)
    return None


def go_on(run: Run, base: Path, out: Path, sleeper: int | None) -> list[str]:
    """Goes on with a run, and wakes a process that was stopped; says which commands failed."""
    failed = []
    may_be_refused = not has_begun(out)  # one that wakes before it has begun finds a run of another
    status = run.go_on(base, out)
    if sleeper is not None:
        if status not in (0, REFUSED):
            failed.append(f"beside one that is stopped: status {status}")
        os.killpg(sleeper, signal.SIGCONT)
        status = wait(sleeper)
        if status and not (may_be_refused and status == REFUSED):
            failed.append(f"the one that was stopped: status {status}")
        status = run.go_on(base, out)
    if status:
        failed.append(f"the command given again: status {status}")
    return failed


def made(folder: Path) -> dict[str, bytes]:
    """Contents of the files that a run has made, by path."""
    paths = {path for pattern in MADE for path in folder.rglob(pattern) if "checkpoints" not in path.parts}
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def marks(folder: Path, stages: dict[str, str]) -> dict[str, list[Path]]:
    """Files that mark the stages of a run as complete, relative to the run's folder."""
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
    """Ends or stops as many runs in each stage as there are moments, by each signal in turn, and goes on.

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
            sleeper = None
            how = SIGNALS[k % len(SIGNALS)]
            for _ in range(TRIES):  # a stage may be over sooner than in the unbroken run
                if sleeper is not None:
                    os.killpg(sleeper, signal.SIGKILL)
                    wait(sleeper)
                shutil.rmtree(out, ignore_errors=True)
                second = float(rng.uniform(0, lengths[stage]))
                sleeper = kill(command, base, out, before, second, how)
                killed_in = None
                for name in command.stages:
                    if not all((out / path).exists() for path in ends_with[name]):
                        killed_in = name
                        break
                if killed_in == stage:
                    break
            differs = go_on(command, base, out, sleeper)
            resumed = made(out)
            differs += [name for name in {**whole, **resumed} if whole.get(name) != resumed.get(name)]
            left = [str(path.relative_to(folder)) for path in folder.glob(f"{out.name}*/**/.*.partial")]
            found.append(Outcome(stage, second, killed_in, [*differs, *left], how.name))
            print(found[-1].line(), flush=True)
            shutil.rmtree(out)
    return found


def figures(found: Sequence[Outcome]) -> dict[str, Any]:
    """Recorded figures by stage: the moments in seconds, the number of kills within the stage,
    and the number of equal runs.
    """
    stages = {}
    for stage in dict.fromkeys(outcome.stage for outcome in found):
        own = [outcome for outcome in found if outcome.stage == stage]
        stages[stage] = {
            "moments": [round(outcome.second, 3) for outcome in own],
            "killed_in_it": sum(outcome.killed_in == stage for outcome in own),
            "signals": dict(Counter(outcome.signal for outcome in own)),
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
    for name in IMPORTED:  # here, and not anew in each of the runs
        importlib.import_module(name)
    from tests.data.layouts import write_labelled_shapes
    from tests.models import save_vlm, tiny_pipeline

    found: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        base = Path(folder) / "base"
        tiny_pipeline().save_pretrained(base)
        (base / "labelled").mkdir()
        write_labelled_shapes(base / "labelled")
        save_vlm(str(base / "vlm"), "llava_next")
        write_ended_run(base, base / "ended")
        for name, command in RUNS.items():
            chosen = [stage for stage in command.stages if stage in (args.stages or STAGES)]
            if chosen:
                found += outcomes(command, base, Path(folder) / name, chosen, args.moments, args.seed)
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
