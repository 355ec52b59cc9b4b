"""Access to the programs of the top-level benchmarks/; the programs of this folder import this first."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
RESULTS = Path(__file__).parent / "results"
sys.path.append(str(ROOT / "benchmarks"))

from command_line import CommandLine, read_command_line  # noqa: E402

__all__ = ["RESULTS", "ROOT", "CommandLine", "read_command_line"]
