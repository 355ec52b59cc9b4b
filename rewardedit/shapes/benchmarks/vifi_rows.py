"""Effect of the amount of data and of hard negatives on ViFi-CLIP:
python rewardedit/shapes/benchmarks/vifi_rows.py [RUNS]

The recipe shapes/vifi-clip on 1/8, 1/4, 1/2 and all of 22,400 rows, and on all of them without hard negatives
of the same source, for 900 steps each. Rank correlation with the oracle on test edits by two editors
that adiee.py calls unseen. RUNS/vifi-rows keeps results: an interrupted program is
resumed.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from adiee_ablations import N, measure
from common import load_scorer, read_command_line
from edits import best_settings_of, editors_in, edits_of
from rate_editors import UNSEEN
from variants import figures_of, run_of

from rewardedit.cli import quiet
from rewardedit.cli.recipes import load_recipe
from rewardedit.shapes import Shapes
from rewardedit.trainers import vifi_clip

ROWS = 22_400  # half of the recipe's
STEPS = 900
VARIANTS = {
    **{f"1/{divisor} of the rows": [f"data.limit={ROWS // divisor}"] for divisor in (8, 4, 2)},
    "all rows": [f"data.limit={ROWS}"],
    "no negatives of the same source": [f"data.limit={ROWS}", "negatives=[reversed, identity]"],
}


def main(runs: Path, words: list[str]) -> dict[str, Any]:
    paths = {name: path for name, path in editors_in(runs).items() if name.endswith(UNSEEN)}
    samples = Shapes("test").batch(0, N)
    edits = edits_of(paths, best_settings_of(list(paths)), "test", N, runs)
    figures = {}
    for name, change in VARIANTS.items():
        folder = runs / "vifi-rows" / re.sub(r"\W+", "-", name)
        asked = ["held_out=null", f"train.max_steps={STEPS}", *change, *words]
        config = replace(load_recipe("shapes/vifi-clip", asked)[1], name=folder.name)

        def make(folder: Path, config: vifi_clip.Config = config) -> dict[str, Any]:
            with torch.enable_grad():
                made = vifi_clip.train(config, folder, resume=True)
            scorer = load_scorer("vifi_clip", checkpoint=str(made))
            return measure(scorer, samples, edits)

        figures[name] = figures_of(folder, run_of(config, config.checkpoint, edits), make)
        print(f"{name:<34}{figures[name]['rho']:.3f}", flush=True)
    return {"n": figures["all rows"]["n"], "spearman": figures}


if __name__ == "__main__":
    line = read_command_line(__doc__, "FOLDER key=value")
    quiet()
    torch.set_grad_enabled(False)
    given = list(line.words)
    folder = Path(given.pop(0)) if given and "=" not in given[0] else Path("runs")
    line.keep("vifi-rows", main(folder, given))
