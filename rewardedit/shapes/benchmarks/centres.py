"""Median and spread of scores over the packaged editor's edits, which `lower_of` uses to compare scorers:
python rewardedit/shapes/benchmarks/centres.py
"""

from typing import Any

import torch
from common import load_scorer, read_command_line

from rewardedit import EditBatch, devices, load_editor
from rewardedit.cli import quiet
from rewardedit.diffusion.editors import SamplingConfig
from rewardedit.scorer_spec import ScorerSpec, full_name
from rewardedit.scoring import score_batch
from rewardedit.shapes import Shapes

N = 280  # edits of the val split
PART = 40  # edits at a time
SETTINGS = SamplingConfig(num_inference_steps=4, guidance_scale=1.5, image_guidance_scale=1.2)
SCORERS: tuple[ScorerSpec, ...] = (
    "adiee",
    "bpm",
    {"bpm": {"missing_object": "failed"}},
    "vifi_clip",
    "clip_d",
)


def main() -> dict[str, Any]:
    samples = Shapes("val").batch(0, N)
    editor = load_editor("shapes/editor", device=devices.default_device())
    starts = range(0, N, PART)
    parts = [
        editor(
            samples.source[i : i + 40], samples.instruction[i : i + 40], range(i, i + 40), settings=SETTINGS
        )
        for i in starts
    ]
    batch = EditBatch(
        samples.source,
        samples.instruction,
        torch.cat(parts),
        source_caption=samples.source_caption,
        target_caption=samples.target_caption,
    )
    scores = score_batch(batch, {full_name(spec): load_scorer(spec) for spec in SCORERS})
    return {
        "n": N,
        "centres": {
            name: {
                "median": result.score[result.valid].median().item(),
                "spread": result.score[result.valid].std().item(),
                "valid": int(result.valid.sum()),
            }
            for name, result in scores.items()
        },
    }


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    torch.set_grad_enabled(False)
    line.keep("centres", main())
