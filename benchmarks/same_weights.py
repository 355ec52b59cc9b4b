"""Shows that two versions train the same weights, bit for bit on one thread.

Command: python benchmarks/same_weights.py --before FOLDER

Runs short trainings in both checkouts; compares hashes of their weights, and of the losses and rewards in
their logs. FOLDER is a checkout of the earlier version with its own environment in .venv; settings that have
been renamed since have their old names there.
"""

import argparse
import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

from command_line import WRITE, CommandLine

ROOT = Path(__file__).parents[1]
SHORT = ["evaluate=null", "train.log_every=1", "train.tracker=none"]
QUICKSTART = ["quickstart", *SHORT, "data.limit=640", "train.lr_warmup_steps=2"]
RUNS = {
    "quickstart, 5 steps, bf16": [*QUICKSTART, "train.max_steps=5"],
    "quickstart, 8 steps, fp32": [*QUICKSTART, "train.max_steps=8", 'train.mixed_precision="no"'],
    "shapes-reward-conditioned, words, 3 steps, fp32": [
        "shapes/reward-conditioned",
        *SHORT,
        "variants=[conditioned]",
        "data.limit=320",
        "train.max_steps=3",
        "train.lr_warmup_steps=1",
        'train.mixed_precision="no"',
    ],
    "shapes-refl, refl, 50 steps, fp32": [
        "shapes/refl",
        *SHORT,
        "variants=[refl]",
        "data.limit=640",
        "monitor.n=8",
        "train.max_steps=50",
        "train.batch_size=8",
        "train.validate_every=0",
        'train.mixed_precision="no"',
    ],
}


def hashes(tree: Path, words: list[str], folder: Path) -> dict[str, str]:
    """Hashes of the weights that a training writes, and of the values in its log, by name."""
    command = [
        str(tree / ".venv" / "bin" / "python"),
        "-m",
        "rewardedit.cli",
        "train",
        *words,
        "--out",
        str(folder),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run(command, check=True, cwd=tree, env=environment, stdout=subprocess.DEVNULL)
    weights = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((folder / "pipeline").rglob("*.safetensors"))
    }
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = [[line["loss"], line.get("reward")] for line in lines]
    return {**weights, "losses and rewards": hashlib.sha256(json.dumps(logged).encode()).hexdigest()}


def commit_of(tree: Path) -> str:
    """Commit that is checked out."""
    process = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], check=True, cwd=tree, capture_output=True, text=True
    )
    return process.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the earlier version")
    parser.add_argument("--write", action="store_true", help=WRITE)
    args = parser.parse_args()
    before = args.before.resolve()
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, words) in enumerate(RUNS.items()):
            now = hashes(ROOT, words, Path(folder) / f"{number}-now")
            then = hashes(before, words, Path(folder) / f"{number}-before")
            runs[name] = {"equal": now == then, "now": now, "before": then}
            print(f"{name}: {'equal' if now == then else 'NOT EQUAL'}", flush=True)
    line = CommandLine(Path(__file__), ["--before", commit_of(before)], args.write)
    line.keep("same-weights", {"runs": runs})


if __name__ == "__main__":
    main()
