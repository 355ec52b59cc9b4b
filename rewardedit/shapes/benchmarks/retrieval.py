"""Mean and temporal pooling, trained in the same way: python rewardedit/shapes/benchmarks/retrieval.py

The recipe shapes/vifi-clip for both poolings and every learning rate; each pooling uses the rate that is best
on val, and test is run once. Runs are in runs/retrieval; an interrupted run is resumed, and one with other
settings is trained again.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from common import read_command_line
from variants import figures_of, run_of

from rewardedit.cli import load_recipe, quiet
from rewardedit.data.datasets import open_rows
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.scorers.vifi_clip import POOLINGS, ViFiClip
from rewardedit.trainers import vifi_clip

RATES = (5e-4, 1e-3)
RUNS = Path("runs") / "retrieval"


def compare(words: list[str], rates: tuple[float, ...] = RATES, runs: Path = RUNS) -> dict:
    """Trains, chooses on val and measures on the recipe's held-out test rows."""
    recalls = {}
    chosen = {}
    for pooling in POOLINGS:
        for rate in rates:
            _, config = load_recipe("shapes/vifi-clip", [*words, f"pooling={pooling}", f"train.lr={rate}"])
            test = config.held_out
            config = dataclasses.replace(config, held_out=dataclasses.replace(test, split="val"))
            folder = runs / f"{pooling}-{rate:g}"

            def make(folder: Path, config: vifi_clip.Config = config) -> dict[str, Any]:
                if not (folder / "pairs").exists():  # the same for all runs
                    (runs / "pairs").mkdir(exist_ok=True)
                    (folder / "pairs").symlink_to((runs / "pairs").resolve())
                vifi_clip.train(config, folder, resume=True)
                return json.loads((folder / "metrics.json").read_text())

            figures = figures_of(folder, run_of(config, config.checkpoint, {}), make)
            on_val = figures["retrieval"]["recall@1"]
            recalls.setdefault(pooling, {})[f"{rate:g}"] = on_val
            if on_val >= max(recalls[pooling].values()):
                chosen[pooling] = (rate, folder / "scorer")
    tested = {}
    for pooling, (_, folder) in chosen.items():
        scorer = ViFiClip.from_pretrained(str(folder)).float().eval()
        tested[pooling] = vifi_clip.retrieval(scorer, open_rows(test), test)
    hits = {pooling: (result.ranks == 1).double().numpy() for pooling, (result, _) in tested.items()}
    return {
        "val_recall@1": recalls,
        "lr": {pooling: rate for pooling, (rate, _) in chosen.items()},
        "test": {pooling: result.summary(kinds) for pooling, (result, kinds) in tested.items()},
        "recall@1_temporal_minus_mean": paired_bootstrap(hits["temporal"], hits["mean"]).as_dict(),
    }


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    line.keep("retrieval", compare([]))
