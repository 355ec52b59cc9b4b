"""Ablations of DICE in the shapes world: python rewardedit/shapes/benchmarks/dice_ablations.py [RUN]

RUN is the folder of `rewardedit train shapes/dice-ablations`, by default runs/shapes-dice-ablations. Each
variant has a quarter of the updates of `shapes/dice`: both stages, the second alone, and few verdicts.
"""

from pathlib import Path
from typing import Any

from common import read_command_line
from dice import SAMPLES, batches_of, coherence, detection_figures, pair_sets

from rewardedit.evaluation.dice import detect_all
from rewardedit.scorers.dice_models import load_dice
from rewardedit.scorers.dice_vlm import VlmCoherence, VlmDetector

RUN = Path("runs/shapes-dice-ablations")
VARIANTS = {"both stages": "phase-2", "no stage 1": "phase-3", "116 verdicts": "phase-4"}


def evaluate(run: Path, n: int) -> dict[str, Any]:
    """Figures of each variant on n pairs of each kind, and on n differences to judge."""
    models = {name: load_dice(str(run / phase / "dice")) for name, phase in VARIANTS.items()}
    sets = pair_sets(n)
    outcomes = {}
    for kind, rows in sets.items():
        batches = batches_of(rows)
        outcomes[kind] = {name: detect_all(VlmDetector(model), batches) for name, model in models.items()}

    figures = detection_figures(sets, outcomes)
    verdicts = coherence({name: VlmCoherence(model) for name, model in models.items()}, n)
    figures["coherence"] = {name: estimate["accuracy"] for name, estimate in verdicts.items()}
    figures["coherence_intervals"] = verdicts
    figures["n"] = {name: len(rows) for name, rows in sets.items()} | {"verdicts": n}
    return figures


if __name__ == "__main__":
    line = read_command_line(__doc__, "RUN", many=False)
    line.keep("dice-ablations", evaluate(Path(line.words[0]) if line.words else RUN, SAMPLES))
