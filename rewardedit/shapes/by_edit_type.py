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
        with devices.autocast(editor.pipe.device.type):
            made = [
                editor.sample(
                    editor.encode(samples.source[rows], samples.instruction[rows]),
                    range(rows.start, rows.stop),
                ).images
                for rows in (slice(i, min(i + BATCH, n)) for i in range(0, n, BATCH))
            ]
        score = ShapesOracle().rate(samples, torch.cat(made)).score
        is_type = {name: torch.tensor([own == name for own in samples.edit_type]) for name in EDIT_TYPES}
        out[backdrop] = {
            "all": float(score.mean()),
            **{name: float(score[rows].mean()) for name, rows in is_type.items()},
        }
    return out
