"""An editor's rating on the shapes world, by backdrop and edit type."""

import torch

from rewardedit import devices
from rewardedit.diffusion.editors import Editor
from rewardedit.shapes import EDIT_TYPES, Shapes, ShapesOracle

BATCH = 140  # edits per batch


def rating_by_edit_type(editor: Editor, n: int, split: str = "test") -> dict[str, dict[str, float]]:
    """The oracle's mean rating (0–10) by backdrop and edit type."""
    out: dict[str, dict[str, float]] = {}
    for backdrop in ("plain", "textured", "photo"):
        samples = Shapes(split, backdrops=(backdrop,)).batch(0, n)
        made = []
        with devices.autocast(editor.pipe.device.type):
            for first in range(0, n, BATCH):
                rows = range(first, min(first + BATCH, n))
                batch = samples[first : first + BATCH]
                edits = editor.sample(editor.encode(batch.source, batch.instruction), rows)
                made.append(edits.to("cpu").images)

        score = ShapesOracle().rate(samples, torch.cat(made)).score
        out[backdrop] = {"all": float(score.mean())}
        for name in EDIT_TYPES:
            out[backdrop][name] = float(score[samples.edits.is_type(name)].mean())
    return out
