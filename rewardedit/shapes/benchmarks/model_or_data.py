"""Contributions of the ADIEE scorer's model and of its data:
python rewardedit/shapes/benchmarks/model_or_data.py [RUNS]

Compares the scorer with ViFi-CLIP plus a head that same_labels.py has trained on the rows of all
the scorer's phases and stored in RUNS (default: runs), and with ViFi-CLIP itself. Rank correlation with the
oracle on test edits by the two editors that no scorer is trained on, which their recipes make in RUNS.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from adiee import N, pooled, scores_of
from common import load_scorer, read_command_line
from edits import best_settings_of, editors_in, edits_of
from rate_editors import UNSEEN
from same_labels import load_same_labels

from rewardedit import devices
from rewardedit.cli import quiet
from rewardedit.evaluation.statistics import spearman, spearman_difference
from rewardedit.shapes import Shapes, ShapesOracle


def main(runs: str = "runs") -> dict[str, Any]:
    names = [f"shapes-editor-{name}" for name in UNSEEN]
    paths = {name: path for name, path in editors_in(Path(runs)).items() if name in names}
    test = Shapes("test").batch(0, N)
    edits = edits_of(paths, best_settings_of(names), "test", N, Path(runs))
    ratings = {name: ShapesOracle().rate(test, images).score.numpy() for name, images in edits.items()}
    scorers = {
        "adiee": load_scorer("adiee"),
        "same_labels": load_same_labels(Path(runs) / "same-labels" / "scorer"),
        "vifi_clip": load_scorer("vifi_clip"),
    }
    scores = {
        name: scores_of(scorer.to(devices.default_device()), test, edits) for name, scorer in scorers.items()
    }
    truth, sources = pooled(ratings, names), np.tile(test.id, len(names))
    values = {name: pooled(by_editor, names) for name, by_editor in scores.items()}
    figures: dict[str, Any] = {"n": len(truth), "spearman": {}}
    for name, by_editor in scores.items():
        whole = spearman(values[name], truth, sources)
        within = [spearman(by_editor[editor], ratings[editor], test.id).value for editor in names]
        figures["spearman"][name] = {
            "rho": whole.value,
            "ci95": list(whole.ci95),
            "within_editors": float(np.mean(within)),
        }
    figures["adiee_above"] = {
        name: list(spearman_difference(values["adiee"], predicted, truth, sources).ci95)
        for name, predicted in values.items()
        if name != "adiee"
    }
    return figures


if __name__ == "__main__":
    line = read_command_line(__doc__, "FOLDER")
    quiet()
    torch.set_grad_enabled(False)
    line.keep("model-or-data", main(*line.words))
