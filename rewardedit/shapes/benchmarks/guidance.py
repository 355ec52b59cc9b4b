"""Mask guidance on the shapes world, and the cost of a step: python rewardedit/shapes/benchmarks/guidance.py

Quality: the small editor's edits compared with `two_round_edit` with `change_mask`, on the test split, each
at the point of one grid that is best for it on val. Preservation is 1 − RMS difference from the source
outside the world's true mask (BPM's 1 − L2), which the guidance never sees; alignment is the oracle's.
The cost of a step is measured by benchmarks/guidance_cost.py.
"""

from collections.abc import Sequence
from typing import Any

import torch
from common import read_command_line
from grid import STEPS, grid
from guidance_cost import cost
from torch import Tensor

from rewardedit import devices, load_editor, two_round_edit
from rewardedit.cli import quiet
from rewardedit.diffusion.editors import Editor, SamplingConfig
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.shapes import Shapes, ShapesBatch, ShapesOracle

N = 1120
VAL_N = 70
BATCH = 140
ASPECTS = ("score", "alignment", "consistency", "quality")


def preservation(source: Tensor, edited: Tensor, mask: Tensor) -> Tensor:
    """1 − root mean square difference outside the mask (b,); 1 if the mask covers the whole image."""
    outside = 1 - mask
    square = ((edited - source).square().mean(1, keepdim=True) * outside).flatten(1).sum(1)
    return 1 - (square / outside.flatten(1).sum(1).clamp_min(1e-6)).sqrt()


def edit(editor: Editor, samples: ShapesBatch, settings: SamplingConfig, guided: bool) -> Tensor:
    """Plain edits, or second-round edits under the change mask of the plain ones."""
    made = []
    for start in range(0, len(samples), BATCH):
        batch = samples[start : start + BATCH]
        seeds = range(start, start + len(batch))
        with devices.autocast(editor.pipe.device.type):
            first = editor(batch.source, batch.instruction, seeds, settings=settings)
            if guided:
                rounds = two_round_edit(
                    editor, batch.source, batch.instruction, seed=start, settings=settings, first=first
                )
                made.append(rounds.edited)
            else:
                made.append(first)
    return torch.cat(made)


def choose(
    editor: Editor, samples: ShapesBatch, settings: Sequence[SamplingConfig], guided: bool
) -> tuple[SamplingConfig, float]:
    """Settings with the best mean rating, and that mean; for guided edits under a mask if `guided`."""
    rated = {
        asked: float(ShapesOracle().rate(samples, edit(editor, samples, asked, guided)).score.mean())
        for asked in settings
        if asked.guidance_scale > 1 or not guided
    }
    best = max(rated, key=lambda asked: rated[asked])
    return best, rated[best]


def quality(n: int, val_n: int, settings: Sequence[SamplingConfig]) -> dict[str, Any]:
    """Means of plain and guided edits, each at its best settings on val, and the intervals of guided −
    plain.
    """
    editor = load_editor("shapes/editor")
    oracle = ShapesOracle()
    val = Shapes("val").batch(0, val_n)
    samples = Shapes("test").batch(0, n)
    values: dict[str, dict[str, Tensor]] = {}
    chosen = {}
    for name, guided in (("plain", False), ("guided", True)):
        best, on_val = choose(editor, val, settings, guided)
        chosen[name] = vars(best) | {"val": on_val}
        images = edit(editor, samples, best, guided)
        rating = oracle.rate(samples, images)
        values[name] = {key: getattr(rating, key) for key in ASPECTS}
        values[name]["preservation"] = preservation(samples.source, images, samples.mask)
    # An edit of the background has no outside: its preservation is 1 for any image.
    inside = torch.tensor([kind != "background" for kind in samples.edit_type])
    differences = {}
    for key in (*ASPECTS, "preservation"):
        rows = inside if key == "preservation" else torch.ones_like(inside)
        ids = [name for name, keep in zip(samples.id, rows.tolist(), strict=True) if keep]
        versus = paired_bootstrap(
            values["guided"][key][rows].numpy(), values["plain"][key][rows].numpy(), ids
        )
        differences[key] = {"difference": versus.difference, "ci95": list(versus.ci95)}
    means = {
        name: {k: float(v[inside].mean() if k == "preservation" else v.mean()) for k, v in variant.items()}
        for name, variant in values.items()
    }
    return {"n": n, "settings": chosen, "oracle": means, "guided_minus_plain": differences}


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    line.keep("guidance", {"seconds_per_step": cost(), **quality(N, VAL_N, grid(*STEPS))})
