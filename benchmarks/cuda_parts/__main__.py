"""Runs one part: python -m cuda_parts refl [--tiny]"""

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path

from cuda_parts.figures import Figures
from rewardedit.cli import quiet

PARTS = {
    "refl": "trainings",
    "graphs": "graphs",
    "prefix": "shared_prefix",
    "trainers": "trainings",
    "benchmarks": "kernels",
    "attention": "kernels",
    "quickstart": "trainings",
}  # module of each part's function


def run(part: str, figures: Figures, tiny: bool) -> None:
    """Runs one part, whose figures and failures are kept in `figures`."""
    getattr(import_module(f"cuda_parts.{PARTS[part]}"), part)(figures, tiny)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Runs one part of make cuda.")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--tiny", action="store_true", help="narrow models on the CPU")
    args = parser.parse_args(words)
    quiet()
    path = os.environ.get("FIGURES")
    figures = Figures(Path(path) if path else None)
    run(args.part, figures, args.tiny)
    return 1 if figures.failed else 0


if __name__ == "__main__":
    sys.exit(main())
