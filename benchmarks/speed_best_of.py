"""Best of 8 against stock diffusers: python benchmarks/speed_best_of.py

`best_of_n` beside what a user would write without it: one call of the stock pipeline for all 8 images, each
with its own generator, one call of the same scorer for all 8, and the best image. Small models on a CPU, in
pairs that alternate which of the two comes first; the ratio is stock's time over ours.
"""

from dataclasses import replace
from functools import partial

import torch
from command_line import read_command_line
from speed_measures import Ways, measure_path
from torch import Tensor

from rewardedit import EditBatch, SamplingConfig, best_of_n, load_editor, load_scorer
from rewardedit.cli import quiet
from rewardedit.diffusion.editors import Editor
from rewardedit.scorers import Scorer
from rewardedit.shapes import Shapes

STEPS = (2, 10)
CANDIDATES = 8
ROUNDS = 41
SCORER = "clip_d"


def ours(
    editor: Editor, scorer: Scorer, source: Tensor, instruction: str, n: int, settings: SamplingConfig
) -> Tensor:
    """The best of n images by `best_of_n`."""
    return best_of_n(editor, scorer, source, instruction, n, settings=settings).best


def stock(
    editor: Editor, scorer: Scorer, source: Tensor, instruction: str, n: int, settings: SamplingConfig
) -> Tensor:
    """The best of n images by the stock pipeline, which encodes source and prompt once, and the scorer."""
    images = editor.pipe(
        instruction,
        image=source,
        num_images_per_prompt=n,
        num_inference_steps=settings.num_inference_steps,
        guidance_scale=settings.guidance_scale,
        image_guidance_scale=settings.image_guidance_scale,
        generator=[torch.Generator().manual_seed(seed) for seed in range(n)],
        output_type="pt",
    ).images
    with torch.no_grad():
        scores = scorer(EditBatch(source.expand(n, -1, -1, -1), [instruction] * n, images))
    return images[int(scores.score.argmax())]


def ways(steps: int, n: int) -> Ways:
    """Best of n in so many steps, by the stock pipeline and by `best_of_n`."""
    samples = Shapes("val").batch(0, 1)
    editor = load_editor("shapes/editor", device="cpu")
    scorer = load_scorer(SCORER, checkpoint="shapes/clip")
    settings = replace(editor.settings, num_inference_steps=steps)
    given = (editor, scorer, samples.source, samples.instruction[0], n, settings)
    return {"plain": partial(stock, *given), "ours": partial(ours, *given)}


def require_same(ways: Ways) -> None:
    """Raises ValueError if the two choose different images."""
    difference = float((ways["plain"]() - ways["ours"]()).abs().max())
    if difference > 1e-3:
        raise ValueError(f"expected the same image from both; they differ by {difference:.3g}")


def measure(
    rounds: int = ROUNDS, steps: tuple[int, ...] = STEPS, n: int = CANDIDATES, memory: bool = True
) -> dict[str, dict[str, float]]:
    """The figures of `measure_path` for each number of steps."""
    out = {}
    for number in steps:
        make = partial(ways, number, n)
        require_same(make())
        out[f"best of {n}, {number} steps"] = measure_path(make, rounds, memory=memory)
    return out


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    line.keep("speed-best-of", {"ratios": measure()})
