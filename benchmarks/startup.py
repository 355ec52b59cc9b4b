"""CPU seconds of commands, compared with another checkout: python benchmarks/startup.py [--before FOLDER]

FOLDER is a checkout of an earlier commit, with a virtual environment in its .venv. Seconds are user and
system time of the process and its children, the median of three runs after one that fills Python's and the
disk's caches; a training runs once.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from command_line import WRITE, CommandLine

from rewardedit.images import to_pil
from rewardedit.shapes import Shapes
from rewardedit.training.environment import commit

ROOT = Path(__file__).parents[1]
RUNS = 3
QUICKSTART = [
    "quickstart",
    "evaluate=null",
    "data.limit=640",
    "train.max_steps=8",
    'train.mixed_precision="no"',
]
# as the installed `rewardedit` does
COMMAND = "import sys; from rewardedit.cli import main; sys.exit(main())"


def cpu_seconds(command: list[str], folder: Path) -> float:
    """CPU seconds of one run of a command.

    Raises:
        RuntimeError: if the command fails.
    """
    # Bytecode is cached, as for an installed package.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
    }
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def commands(pair: Path) -> dict[str, list[str]]:
    """Commands to measure: arguments of `python`, by their names in the table."""
    words = ["-c", COMMAND]
    score = [
        *words,
        "score",
        str(pair / "source.png"),
        str(pair / "edited.png"),
        (pair / "instruction.txt").read_text(),
    ]
    quickstart = [*QUICKSTART, "--out", str(pair / "runs" / str(time.monotonic_ns()))]
    return {
        "import rewardedit": ["-c", "import rewardedit"],
        "rewardedit --help": [*words, "--help"],
        "rewardedit recipes": [*words, "recipes"],
        "rewardedit score, one pair, l1": [*score, "--scorer", "l1"],
        "rewardedit score, one pair, clip_d": [*score, "--world", "shapes", "--scorer", "clip_d"],
        "rewardedit train quickstart, 8 steps on 640 rows": [*words, "train", *quickstart],
    }


def write_pair(folder: Path) -> None:
    """Writes two images and an instruction of the shapes world."""
    sample = Shapes("val").batch(0, 1)
    to_pil(sample.source[0]).save(folder / "source.png")
    to_pil(sample.target[0]).save(folder / "edited.png")
    (folder / "instruction.txt").write_text(sample.instruction[0])


def measure(python: Path, folder: Path, runs: int = RUNS) -> dict[str, float]:
    """Median CPU seconds of each command in the checkout `folder`, run by `python`."""
    medians = {}
    with tempfile.TemporaryDirectory() as pair:
        write_pair(Path(pair))
        for name in commands(Path(pair)):
            # A training is long enough to be measured once.
            repeats = 0 if " train " in name else runs
            seconds = [
                cpu_seconds([str(python), *commands(Path(pair))[name]], folder) for _ in range(repeats + 1)
            ]
            medians[name] = round(statistics.median(seconds[1:] or seconds), 3)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the CPU seconds of commands that do little.")
    parser.add_argument("--before", type=Path, help="another checkout, with its .venv, to measure too")
    parser.add_argument("--write", action="store_true", help=WRITE)
    args = parser.parse_args()
    figures: dict[str, Any] = {"n": RUNS, "cpu_seconds": {"after": measure(Path(sys.executable), ROOT)}}
    if args.before is not None:
        python = args.before.resolve() / ".venv" / "bin" / "python"
        figures["cpu_seconds"]["before"] = measure(python, args.before)
        figures["before"], _ = commit(args.before)
    torch.set_num_threads(1)
    words = ["--before", "FOLDER"] if args.before else []
    CommandLine(Path(__file__), words, args.write).keep("startup", figures)


if __name__ == "__main__":
    main()
