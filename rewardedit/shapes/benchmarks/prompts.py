"""The shipped `adiee` scorer with our questions and with the paper's:
python rewardedit/shapes/benchmarks/prompts.py

It was trained with ours, and its small tokenizer knows few of the paper's words. Rank correlation with the
oracle on edits of known quality from the val split; no model is trained.
"""

from typing import Any

import torch
from common import load_scorer, read_command_line

from rewardedit import EditBatch
from rewardedit.cli import quiet
from rewardedit.evaluation.statistics import spearman, spearman_difference
from rewardedit.scoring import score_batch
from rewardedit.shapes import Shapes, ShapesOracle, corrupt_targets
from rewardedit.shapes.corruptions import CORRUPTION_KINDS

N = 280
PROMPTS = ("ours", "paper")


def main() -> dict[str, Any]:
    samples = Shapes("val").batch(0, N)
    _, edited = corrupt_targets(samples, dict.fromkeys(CORRUPTION_KINDS, 1 / len(CORRUPTION_KINDS)), 0)
    ratings = ShapesOracle().rate(samples, edited).score.numpy()
    batch = EditBatch(samples.source, samples.instruction, edited)
    scorers = {prompts: load_scorer("adiee", prompts=prompts) for prompts in PROMPTS}
    scores = {name: result.score.numpy() for name, result in score_batch(batch, scorers).items()}
    figures = {
        name: {**spearman(predicted, ratings, samples.id).as_dict("rho"), "mean": float(predicted.mean())}
        for name, predicted in scores.items()
    }
    above = spearman_difference(scores["ours"], scores["paper"], ratings, samples.id)
    return {"n": N, "spearman": figures, "ours_above_paper": list(above.ci95)}


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    torch.set_grad_enabled(False)
    line.keep("prompts", main())
