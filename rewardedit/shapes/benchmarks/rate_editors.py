"""Rates the shipped editor and editors of other quality:
python rewardedit/shapes/benchmarks/rate_editors.py [RUNS]

The others are made by the recipe shapes/comparison-editors in RUNS (default: runs). All use the same number
of steps, each with the guidance that is best for it on val.
"""

from pathlib import Path

import numpy as np
import torch
from common import read_command_line
from grid import GUIDANCE_SCALES
from rate_editor import best_settings, scores

from rewardedit import load_editor
from rewardedit.cli import quiet
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.shapes import Shapes

SCORED = ("half-done", "over-done", "untouched")  # a scorer may be trained on their edits
UNSEEN = ("wrong-object", "right-only")  # reserved: no scorer is trained on their edits
OTHERS = "shapes-comparison-editors"  # run that makes them
STEPS = 10
N = 280  # test edits


if __name__ == "__main__":
    line = read_command_line(__doc__, "RUNS", many=False)
    quiet()
    torch.set_grad_enabled(False)
    runs = Path(*line.words or ["runs"])
    paths = {"shapes-editor": "shapes/editor"}
    for kind in (*SCORED, *UNSEEN):
        paths[f"shapes-editor-{kind}"] = str(runs / OTHERS / kind / "pipeline")
    test = Shapes("test").batch(0, N)
    mean = {}
    ci95 = {}
    settings = {}
    for name, path in paths.items():
        editor = load_editor(path)
        asked, _ = best_settings(editor, STEPS)
        rated = scores(editor, test, asked)
        mean[name] = float(rated.mean())
        ci95[name] = list(paired_bootstrap(rated, np.zeros(N), test.id).ci95)
        settings[name] = vars(asked)
        print(f"{name:<28}{mean[name]:.2f}", flush=True)
    figures = {
        "n": N,
        "mean": mean,
        "ci95": ci95,
        "unseen": [f"shapes-editor-{name}" for name in UNSEEN],
        "settings": settings,
        "guidance_scales": list(GUIDANCE_SCALES),
    }
    line.keep("shapes-editors", figures)
