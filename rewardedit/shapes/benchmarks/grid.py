"""Grid of sampling settings from which benchmarks choose on val, and the choices of `rate_editor.py`."""

import json

from common import RESULTS

from rewardedit.diffusion.editors import SamplingConfig
from rewardedit.evaluation.evaluate_config import EvaluateConfig

STEPS = (1, 2, 4, 10, 20)
GUIDANCE_SCALES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.25)
IMAGE_GUIDANCE_SCALES = (1.0, 1.2)


def grid(*steps: int) -> list[SamplingConfig]:
    """All settings with these numbers of denoising steps."""
    return EvaluateConfig(
        num_inference_steps=steps,
        guidance_scale=GUIDANCE_SCALES,
        image_guidance_scale=IMAGE_GUIDANCE_SCALES,
    ).grid()


def best_by_steps() -> dict[int, SamplingConfig]:
    """The shipped editor's settings that are best on val for each number of denoising steps."""
    by_steps = json.loads((RESULTS / "shapes-editor.json").read_text())["settings"]
    names = ("num_inference_steps", "guidance_scale", "image_guidance_scale")
    return {int(steps): SamplingConfig(*(asked[name] for name in names)) for steps, asked in by_steps.items()}
