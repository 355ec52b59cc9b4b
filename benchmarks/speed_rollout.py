"""One rollout an update against the papers' loop: python benchmarks/speed_rollout.py

An update of reward feedback learning in micro-batches, by the two loops of `benchmarks/refl.py`: the papers'
rolls out inside each micro-batch, ours takes the steps without gradient once for all rows. Small models on a
CPU, in pairs that alternate which of the two comes first; the ratio is the papers' time over ours.
"""

from functools import partial

import torch
from command_line import read_command_line
from refl import WAYS, Clock, small
from speed_measures import Ways, measure_path

from rewardedit import devices
from rewardedit.cli import quiet

ROWS = 8
MICRO_BATCH = 2
STEPS = 50
ROUNDS = 7
NAMES = {"plain": "papers", "ours": "ours"}  # of the loops


def ways(steps: int) -> Ways:
    """An update by each of the two loops."""
    work = small(ROWS, steps, MICRO_BATCH)
    updates = {}
    for name, way in NAMES.items():
        updates[name] = partial(WAYS[way], work, Clock(work.pipe.device))
    return updates


def measure(rounds: int = ROUNDS, steps: int = STEPS, memory: bool = True) -> dict[str, dict[str, float]]:
    """The figures of `measure_path`."""
    dtype = torch.bfloat16 if devices.computes_in_bf16() else torch.float32
    figures = measure_path(partial(ways, steps), rounds, dtype, memory)
    return {f"refl update, micro-batches of {MICRO_BATCH} in {ROWS} rows": figures}


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    line.keep("speed-rollout", {"ratios": measure()})
