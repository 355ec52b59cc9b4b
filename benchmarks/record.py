"""Stores a run's figures as a result: python benchmarks/record.py runs/quickstart "make quickstart" """

import argparse
import json
from pathlib import Path
from typing import Any

from rewardedit.files import to_json
from rewardedit.training.environment import environment

RESULTS = Path(__file__).parent / "results"


def record(run: Path, command: str) -> Path:
    """Writes benchmarks/results/NAME.json from a run's metrics.json and environment.json."""
    metrics, environment = (
        json.loads((run / f"{name}.json").read_text()) for name in ("metrics", "environment")
    )
    n = metrics.pop("n", None) or metrics.get("oracle", {}).get("n")
    out = RESULTS / f"{run.name}.json"
    out.write_text(to_json({"command": command, **environment, "n": n, **metrics}, indent=2) + "\n")
    return out


def keep(name: str, command: str, figures: dict[str, Any]) -> None:
    """Writes benchmarks/results/NAME.json: the figures and their origin."""
    out = RESULTS / f"{name}.json"
    out.write_text(to_json({"command": command, **environment(), **figures}, indent=2) + "\n")
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("command", help="that made it, as the result is to quote it")
    args = parser.parse_args()
    print(record(args.run, args.command))
