"""Effect of guidance by a scorer's gradient on an editor's edits, in total and by denoising steps:
python rewardedit/shapes/benchmarks/reward_guidance.py [RUNS]

Plain and guided edits each use the number of steps that is best for them on val, with the guidance scales
that are best for the plain editor at that number; guided edits also the scorer's best scale. Test is run
once. RUNS/reward-guidance keeps each scorer's figures: an interrupted program continues with the next scorer.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import load_scorer, read_command_line
from grid import best_by_steps
from tqdm import tqdm
from variants import figures_of

from rewardedit import EditBatch, Editor, load_editor, reward_guidance
from rewardedit.cli import quiet
from rewardedit.diffusion.editors import SamplingConfig
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.models import digests
from rewardedit.scoring import score_batch
from rewardedit.shapes import Shapes, ShapesBatch, ShapesOracle

EDITS = 560
VAL = 70
BATCH = 140
SCALES = (0.005, 0.01, 0.02, 0.05)
SCORERS = {"adiee": "shapes/adiee", "vifi_clip": "shapes/vifi-clip", "clip_d": "shapes/clip"}
CAPTIONS = {"clip_d": ("source_caption", "target_caption")}  # captions that a scorer uses
WHOLE = (0.0, 1.0)
# shares of the denoising steps
PARTS = {"all steps": WHOLE, "first half": (0.0, 0.5), "second half": (0.5, 1.0), "last quarter": (0.75, 1.0)}


def edit(
    editor: Editor,
    name: str,
    scale: float,
    samples: ShapesBatch,
    settings: SamplingConfig,
    between: tuple[float, float] = WHOLE,
) -> tuple[np.ndarray, np.ndarray]:
    """Ratings by the oracle and scores by the scorer of edits under its guidance."""
    scorer = load_scorer(name)
    made = []
    scores = []
    captions = {field: getattr(samples, field) for field in CAPTIONS.get(name, ())}
    steps = settings.num_inference_steps
    for i in tqdm(range(0, len(samples), BATCH), desc=f"{name}, {steps} steps, scale {scale:g}", leave=False):
        batch = samples[i : i + BATCH]
        said = {field: texts[i : i + BATCH] for field, texts in captions.items()}
        with reward_guidance(
            editor.pipe, scorer, batch.source, batch.instruction, scale=scale, between=between, **said
        ):
            made.append(editor(batch.source, batch.instruction, range(i, i + len(batch)), settings=settings))
        edits = EditBatch(batch.source, batch.instruction, made[-1], **said)
        scores.append(score_batch(edits, {name: scorer})[name].score)
    rated = ShapesOracle().rate(samples, torch.cat(made)).score
    return rated.numpy(), torch.cat(scores).numpy()


def compare(runs: Path, settings: Mapping[int, SamplingConfig]) -> dict[str, Any]:
    """Effect of guidance by each scorer.

    Args:
        settings: the editor's sampling settings, by the number of denoising steps.
    """
    editor = load_editor("shapes/editor")
    weights = digests()
    made_of = [[asdict(config) for config in settings.values()], SCALES, PARTS, EDITS, VAL]
    by_scorer = {}
    for name, model in SCORERS.items():
        by_scorer[name] = figures_of(
            runs / "reward-guidance" / name,
            [made_of, weights["shapes/editor"], weights[model]],
            lambda folder: measure(editor, folder.name, EDITS, VAL, settings, SCALES),
        )
    return {"n": EDITS, "guided_minus_plain": by_scorer}


def measure(
    editor: Editor,
    name: str,
    n: int,
    val_n: int,
    settings: Mapping[int, SamplingConfig],
    scales: tuple[float, ...],
) -> dict[str, Any]:
    """A scorer's scores and the oracle's ratings of n test edits with and without its guidance."""
    val = Shapes("val").batch(0, val_n)
    test = Shapes("test").batch(0, n)
    rated = {
        (steps, scale): float(edit(editor, name, scale, val, config)[0].mean())
        for steps, config in settings.items()
        for scale in (0.0, *scales)
    }
    plain_steps = max(settings, key=lambda steps: rated[steps, 0.0])
    steps, scale = max((pair for pair in rated if pair[1] > 0), key=lambda pair: rated[pair])
    plain = edit(editor, name, 0.0, test, settings[plain_steps])
    guided = {
        part: edit(editor, name, scale, test, settings[steps], between) for part, between in PARTS.items()
    }
    differences = {
        part: paired_bootstrap(oracle, plain[0], test.id).as_dict() for part, (oracle, _) in guided.items()
    }
    return {
        "val": {f"{k} steps, scale {s:g}": value for (k, s), value in rated.items()},
        "plain_steps": plain_steps,
        "steps": steps,
        "scale": scale,
        "score": paired_bootstrap(guided["all steps"][1], plain[1], test.id).as_dict(),
        "oracle": differences["all steps"],
        "by_part": differences,
    }


if __name__ == "__main__":
    line = read_command_line(__doc__, "RUNS", many=False)
    quiet()
    line.keep("reward-guidance", compare(Path(*line.words or ["runs"]), best_by_steps()))
