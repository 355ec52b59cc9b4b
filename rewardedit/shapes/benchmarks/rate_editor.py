"""Rates the shipped editor by number of denoising steps: python rewardedit/shapes/benchmarks/rate_editor.py

Each number of steps uses the guidance scales that are best for it on val; the number of steps that is best on
val is rated by backdrop and edit type on the test split. Edits of an "add" without a place from two seeds
show whether the editor samples, or produces one mean image.
"""

import numpy as np
import torch
from common import read_command_line
from grid import STEPS, grid

from rewardedit import load_editor
from rewardedit.cli import quiet
from rewardedit.diffusion.editors import Editor, SamplingConfig
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.shapes import EDIT_TYPES, Shapes, ShapesBatch, ShapesOracle, join
from rewardedit.shapes.recover import recover, search
from rewardedit.shapes.render import render_backgrounds
from rewardedit.shapes.trainers.autoencoder import reconstruction_rating
from rewardedit.shapes.vocabulary import CELL

N = 560  # test edits per backdrop
VAL_N = 140
PAIRS = 140  # pairs of edits from two seeds
AT_ONCE = 140  # edits at a time


def edit(editor: Editor, samples: ShapesBatch, settings: SamplingConfig, seed: int = 0) -> torch.Tensor:
    parts = [slice(i, min(i + AT_ONCE, len(samples))) for i in range(0, len(samples), AT_ONCE)]
    made = [
        editor(
            samples.source[rows],
            samples.instruction[rows],
            range(seed + rows.start, seed + rows.stop),
            settings=settings,
        )
        for rows in parts
    ]
    return torch.cat(made)


def scores(editor: Editor, samples: ShapesBatch, settings: SamplingConfig) -> np.ndarray:
    return ShapesOracle().rate(samples, edit(editor, samples, settings)).score.numpy()


def best_settings(editor: Editor, steps: int) -> tuple[SamplingConfig, float]:
    """Guidance scales that are best on val for a number of steps."""
    val = Shapes("val").batch(0, VAL_N)
    rated = {settings: float(scores(editor, val, settings).mean()) for settings in grid(steps)}
    best = max(rated, key=lambda settings: rated[settings])
    return best, rated[best]


def by_edit_type(samples: ShapesBatch, score: np.ndarray) -> dict[str, float]:
    types = np.array(samples.edit_type)
    return {"all": float(score.mean()), **{name: float(score[types == name].mean()) for name in EDIT_TYPES}}


def two_seeds(editor: Editor, settings: SamplingConfig) -> dict[str, float]:
    """Shares of pairs of edits from two seeds, for "add" without a place: object at least one cell apart,
    both edits right, and both of these.
    """
    adds = Shapes("test", kinds=("add",)).batch(0, 8 * PAIRS)
    free = np.flatnonzero(~adds.edits.says_place & (adds.edits.relation < 0))[:PAIRS]
    samples = join([adds[i : i + 1] for i in free])
    images = [edit(editor, samples, settings, seed) for seed in (0, 10_000)]
    rated = [ShapesOracle().rate(samples, image).score for image in images]
    centres = [added_centres(samples, image) for image in images]
    apart = (centres[0] - centres[1]).norm(dim=1) >= CELL
    both = (rated[0] >= 8) & (rated[1] >= 8)
    return {
        "pairs": len(samples),
        "a_cell_apart": float(apart.float().mean()),
        "both_right": float(both.float().mean()),
        "both_right_and_apart": float((both & apart).float().mean()),
    }


def added_centres(samples: ShapesBatch, image: torch.Tensor) -> torch.Tensor:
    """Centres of the added objects (b, 2)."""
    ground = render_backgrounds(samples.after)
    rows = torch.arange(len(samples))
    shape, colour = (torch.from_numpy(v).long() for v in (samples.edits.shape, samples.edits.colour))
    taken = torch.zeros(len(samples), *image.shape[-2:])
    taken = torch.maximum(taken, (samples.source - ground).abs().amax(1).gt(0.02).float())
    origin, window = search(image, ground, taken, rows, colour)
    return recover(image, ground, rows, shape, colour, origin, window).centre


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    torch.set_grad_enabled(False)
    editor = load_editor("shapes/editor")
    chosen = {}
    for steps in STEPS:
        chosen[steps] = best_settings(editor, steps)
        print(steps, *chosen[steps], flush=True)
    best_steps = max(STEPS, key=lambda steps: chosen[steps][1])
    test = Shapes("test").batch(0, N)
    rated = {steps: scores(editor, test, chosen[steps][0]) for steps in STEPS}
    versus = {
        f"ci95_vs_{steps}": list(paired_bootstrap(rated[best_steps], rated[steps], test.id).ci95)
        for steps in STEPS
        if steps != best_steps
    }
    settings = chosen[best_steps][0]
    oracle = {"plain": by_edit_type(test, rated[best_steps])}
    for backdrop in ("textured", "photo"):
        samples = Shapes("test", backdrops=(backdrop,)).batch(0, N)
        oracle[backdrop] = by_edit_type(samples, scores(editor, samples, settings))
    reserved = Shapes("test", wordings="reserved").batch(0, N)
    figures = {
        "n": N,
        "oracle": oracle,
        "best_steps": best_steps,
        "by_steps": {str(steps): float(rated[steps].mean()) for steps in STEPS},
        **versus,
        "settings": {str(steps): vars(config) | {"val": value} for steps, (config, value) in chosen.items()},
        "reserved_wordings": float(scores(editor, reserved, settings).mean()),
        "two_seeds": two_seeds(editor, settings),
        "oracle_of_reconstructed_targets": reconstruction_rating(editor.pipe.vae),
    }
    line.keep("shapes-editor", figures)
