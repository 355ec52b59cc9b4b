"""The grid of sampling settings from which benchmarks choose on val, and what `rate_editor.py` chose."""

import itertools
import json

from record import RESULTS

from rewardedit.diffusion.editors import EditConfig

STEPS = (1, 2, 4, 10, 20)
GUIDANCE_SCALES = (1.0, 1.25, 1.5, 2.0)
GRID = tuple(EditConfig(steps, scale, 1.0) for steps, scale in itertools.product(STEPS, GUIDANCE_SCALES))


def best_by_steps() -> dict[int, EditConfig]:
    """The shipped editor's settings that are best on val for each number of denoising steps."""
    found = json.loads((RESULTS / "shapes-editor.json").read_text())["settings"]
    names = ("num_inference_steps", "guidance_scale", "image_guidance_scale")
    return {int(steps): EditConfig(*(asked[name] for name in names)) for steps, asked in found.items()}
