"""Compares paths of the library with what a user would run instead, on a CPU, in interleaved pairs.

Command: python benchmarks/speed_cpu.py [PART …]

Parts: rollout, best_of, reading; all without a word. Writes results/speed-cpu.json:
{path: {ratio, spread, n, seconds, limit_gflops, limit_share, mib, mib_plain}}. The ratio is the other's time
over ours, the median of n pairs; the spread is half of its interquartile range; see `speed_measures.py`.
"""

import importlib
import json
from typing import Any

from command_line import read_command_line
from record import ROOT

PARTS = ("rollout", "best_of", "reading")  # speed_NAME.measure
RESULT = ROOT / "benchmarks" / "results" / "speed-cpu.json"


def measure(parts: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Figures of each path of these parts.

    Raises:
        ValueError: for a part that there is not.
    """
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise ValueError(f"expected some of {', '.join(PARTS)}; got {', '.join(unknown)}")
    paths: dict[str, dict[str, float]] = {}
    for part in parts:
        paths |= importlib.import_module(f"speed_{part}").measure()
    return paths


def earlier() -> dict[str, Any]:
    """Paths that were measured before, which the parts that are measured now do not take away."""
    return json.loads(RESULT.read_text())["paths"] if RESULT.is_file() else {}


def main() -> None:
    line = read_command_line(__doc__, "PART")
    paths = measure(tuple(line.words) or PARTS)
    for path, figures in paths.items():
        print(f"{path}: {figures['ratio']:.2f} ± {figures['spread']:.2f}")
    line.keep("speed-cpu", {"paths": earlier() | paths}, "python benchmarks/speed_cpu.py")


if __name__ == "__main__":
    main()
