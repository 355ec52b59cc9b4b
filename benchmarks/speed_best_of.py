"""Best of 8 against stock diffusers: python benchmarks/speed_best_of.py

`best_of_n` beside what a user would write without it: one call of the stock pipeline for all 8 images, each
with its own generator, one call of the same scorer for all 8, and the best image. Small models on a CPU, in
pairs that alternate which of the two comes first; the ratio is stock's time over ours.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from command_line import read_command_line
from torch import Tensor

from rewardedit import EditBatch, SamplingConfig, best_of_n, load_editor, load_scorer
from rewardedit.cli import quiet
from rewardedit.diffusion.editors import Editor
from rewardedit.scorers import Scorer
from rewardedit.shapes import Shapes

STEPS = (2, 10)
CANDIDATES = 8
ROUNDS = 15
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


def measure(
    rounds: int = ROUNDS, steps: tuple[int, ...] = STEPS, n: int = CANDIDATES
) -> dict[str, dict[str, float]]:
    """Ratio of the two times, stock's over ours, for each number of steps: the median over all pairs, half
    of the range between their quartiles, and the number of pairs.
    """
    samples = Shapes("val").batch(0, 1)
    editor = load_editor("shapes/editor", device="cpu")
    scorer = load_scorer(SCORER, checkpoint="shapes/clip")
    given = (editor, scorer, samples.source, samples.instruction[0], n)
    out = {}
    for number in steps:
        settings = replace(editor.settings, num_inference_steps=number)
        ways = {"stock": partial(stock, *given, settings), "ours": partial(ours, *given, settings)}
        out[f"best of {n}, {number} steps"] = compare(ways, rounds)
    return out


def compare(ways: dict[str, Callable[[], Tensor]], rounds: int) -> dict[str, float]:
    """Ratio of the times of "stock" and "ours" in interleaved pairs, after one pair to warm up.

    Raises:
        ValueError: if the two choose different images.
    """
    chosen = {name: work() for name, work in ways.items()}
    difference = float((chosen["stock"] - chosen["ours"]).abs().max())
    if difference > 1e-3:
        raise ValueError(f"expected the same image from both; they differ by {difference:.3g}")

    ratios = []
    for number in range(rounds):
        times = {}
        for name in list(ways) if number % 2 else reversed(ways):
            began = time.perf_counter()
            ways[name]()
            times[name] = time.perf_counter() - began
        ratios.append(times["stock"] / times["ours"])
    quarters = statistics.quantiles(ratios, n=4)
    return {"ratio": statistics.median(ratios), "spread": (quarters[2] - quarters[0]) / 2, "n": rounds}


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    line.keep("speed-best-of", {"ratios": measure()})
