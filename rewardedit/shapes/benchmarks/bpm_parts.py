"""Evaluation of BPM's parts on the shapes world (Li et al. 2025, Tables 5 to 7, 9, 12 and 14):
python rewardedit/shapes/benchmarks/bpm_parts.py [RUNS]

The weight of the semantic part, the parser, each part compared with a metric of the same aspect, and the
judges of size and position. Editors and edits are those of `bpm.py`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bpm_checks import (
    alpha_sweep,
    component_checks,
    plain_similarity,
    subset_alignment,
    templates_parsed,
    verdicts_on_true_edits,
)
from common import ROOT, load_scorer, read_command_line
from edits import best_settings_of, editors_in, edits_of
from parser_accuracy import parse_accuracy
from rivals import scored

from rewardedit import devices
from rewardedit.cli import quiet
from rewardedit.instructions.grammar.grammar import parse_all
from rewardedit.instructions.parsed import Parsed
from rewardedit.scorers.bpm.bpm import PARTS, Bpm
from rewardedit.shapes import Shapes, ShapesBatch, ShapesOracle

N = 560  # test samples
INSTRUCTIONS = ROOT / "tests" / "data"


def scores_by_the_truth(bpm: Bpm, test: ShapesBatch, edits: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """BPM's scores of each editor's edits, with instructions parsed by the world itself."""
    meant = dict(zip(test.instruction, test.parsed, strict=True))

    def parse_exactly(instructions: Sequence[str]) -> list[Parsed]:
        return [meant[instruction] for instruction in instructions]

    exact = Bpm(bpm.model, bpm.tokenizer, bpm.preprocess, parse_exactly, bpm.locator, bpm.config)
    return {name: scored(exact, test, images).score.numpy() for name, images in edits.items()}


def parser_table(n: int) -> dict[str, Any]:
    """Accuracy of the grammar, on people's instructions and on the world's own."""
    return {
        "parse": parse_accuracy(parse_all, INSTRUCTIONS / "instructions.jsonl"),
        "parse_held_out": parse_accuracy(parse_all, INSTRUCTIONS / "instructions_held_out.jsonl"),
        "parse_templates": {
            wordings: templates_parsed(Shapes("test", wordings=wordings).batch(0, n))
            for wordings in ("usual", "reserved")
        },
    }


def main(runs: Path, n: int = N) -> dict[str, Any]:
    paths = editors_in(runs)
    test = Shapes("test").batch(0, n)
    edits = edits_of(paths, best_settings_of(list(paths)), "test", n, runs)
    bpm = load_scorer("bpm", missing_object="failed")
    assert isinstance(bpm, Bpm)
    scorers = {"bpm": bpm, "l2": load_scorer("l2"), "clip_t": load_scorer("clip_t")}
    for scorer in scorers.values():
        scorer.to(devices.default_device())

    rated = {name: ShapesOracle().rate(test, images) for name, images in edits.items()}
    ratings = {name: rating.score.numpy() for name, rating in rated.items()}
    results = {
        name: {e: scored(s, test, images) for e, images in edits.items()} for name, s in scorers.items()
    }
    parts = {e: {name: scores.parts[name] for name in PARTS} for e, scores in results["bpm"].items()}
    every = np.ones(n, dtype=bool)
    by_grammar = {e: scores.score.numpy() for e, scores in results["bpm"].items()}
    on_crop = {name: plain_similarity(bpm, test, images) for name, images in edits.items()}
    return {
        "n": n,
        "alpha": alpha_sweep(parts, ratings, bpm.config),
        "parser": {
            "grammar": subset_alignment(by_grammar, ratings, every),
            "truth": subset_alignment(scores_by_the_truth(bpm, test, edits), ratings, every),
        },
        **parser_table(n),
        "components": component_checks(results, rated, test, on_crop),
        "verdicts": verdicts_on_true_edits(bpm, test),
    }


if __name__ == "__main__":
    line = read_command_line(__doc__, "RUNS", many=False)
    quiet()
    torch.set_grad_enabled(False)
    line.keep("bpm-parts", main(Path(*line.words or ["runs"])))
