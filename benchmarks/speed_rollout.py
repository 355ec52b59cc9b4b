"""One rollout an update against the papers' loop: python benchmarks/speed_rollout.py

An update of reward feedback learning in micro-batches, by the two loops of `benchmarks/refl.py`: the papers'
rolls out inside each micro-batch, ours takes the steps without gradient once for all rows. Small models on a
CPU, in pairs that alternate which of the two comes first; the ratio is the papers' time over ours.
"""

import statistics
import time

from command_line import read_command_line
from refl import WAYS, Clock, Work, small

from rewardedit.cli import quiet

ROWS = 8
MICRO_BATCH = 2
STEPS = 50
ROUNDS = 7


def measure(rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, dict[str, float]]:
    """Ratio of the two times: the median over all pairs, half of the range between their quartiles, and the
    number of pairs.
    """
    work = small(ROWS, steps, MICRO_BATCH)
    ratios = []
    for number in range(rounds + 1):
        times = {}
        for way in list(WAYS) if number % 2 else reversed(WAYS):
            times[way] = seconds(work, way)
        if number:  # the first pair warms up
            ratios.append(times["papers"] / times["ours"])
    quarters = statistics.quantiles(ratios, n=4)
    found = {"ratio": statistics.median(ratios), "spread": (quarters[2] - quarters[0]) / 2, "n": rounds}
    return {f"refl update, micro-batches of {MICRO_BATCH} in {ROWS} rows": found}


def seconds(work: Work, way: str) -> float:
    """Seconds of an update."""
    began = time.perf_counter()
    WAYS[way](work, Clock(work.pipe.device))
    return time.perf_counter() - began


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    line.keep("speed-rollout", {"ratios": measure()})
