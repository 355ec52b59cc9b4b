"""Stores a run's figures as a result: python benchmarks/record.py runs/NAME "rewardedit train RECIPE" """

import argparse
import json
from pathlib import Path
from typing import Any

from rewardedit.files import to_json
from rewardedit.training.environment import environment

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
WORLD = ROOT / "rewardedit" / "shapes" / "benchmarks"  # programs and results of the offline world


def record(run: Path, command: str, folder: Path = RESULTS) -> Path:
    """Writes NAME.json of a folder of results from a run's metrics.json and environment.json."""
    metrics, environment = (
        json.loads((run / f"{name}.json").read_text()) for name in ("metrics", "environment")
    )
    n = metrics.pop("n", None) or metrics.get("oracle", {}).get("n")
    out = folder / f"{run.name}.json"
    _write(out, {"command": command, **environment, "n": n, **metrics})
    return out


def keep(name: str, command: str, figures: dict[str, Any], folder: Path = RESULTS) -> None:
    """Writes NAME.json of a folder of results: the figures and their origin."""
    out = folder / f"{name}.json"
    _write(out, {"command": command, **environment(), **figures})
    print(out)


def _write(path: Path, result: dict[str, Any]) -> None:
    """Writes a result with few bytes of indents, of which nested figures have many."""
    path.write_text(to_json(result, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("command", help="that made it, as the result is to quote it")
    parser.add_argument(
        "--world", action="store_true", help="of the offline world, whose results have a folder of their own"
    )
    args = parser.parse_args()
    print(record(args.run, args.command, WORLD / "results" if args.world else RESULTS))
