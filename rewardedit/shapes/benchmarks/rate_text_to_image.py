"""Draws held-out captions with the shipped text-to-image model and counts the objects that the oracle finds:
python rewardedit/shapes/benchmarks/rate_text_to_image.py

The settings are chosen on val. A caption does not tell where in its cell an object lies, so positions are
accepted within five pixels.
"""

import numpy as np
import torch
from common import read_command_line

from rewardedit.cli import quiet
from rewardedit.diffusion.text_to_image import load_text_to_image
from rewardedit.shapes import Shapes, ShapesBatch, join
from rewardedit.shapes.recover import fill_hosts, in_place, recover, seen_background
from rewardedit.shapes.render import RADII, render_backgrounds
from rewardedit.shapes.scenes import Scenes

N = 560  # test captions of each number of objects taken together: up to three, and more
VAL_N = 140
STEPS = (10, 20)
GUIDANCE_SCALES = (1.0, 2.0, 3.0, 5.0)
AT_ONCE = 140


def samples_with(split: str, fewest: int, most: int, n: int) -> ShapesBatch:
    """Samples whose sources have `fewest` to `most` objects; the numbers alternate, 56 of each in 280."""
    batch = Shapes(split).batch(0, 5 * n)
    objects = batch.before.present.sum(1)
    rows = np.flatnonzero((objects >= fewest) & (objects <= most))[:n]
    return join([batch[i : i + 1] for i in rows])


def draw(pipe, captions: list[str], steps: int, guidance_scale: float) -> torch.Tensor:
    made = []
    for first in range(0, len(captions), AT_ONCE):
        chunk = captions[first : first + AT_ONCE]
        generators = [torch.Generator().manual_seed(first + i) for i in range(len(chunk))]
        options = {"num_inference_steps": steps, "guidance_scale": guidance_scale, "output_type": "pt"}
        made.append(pipe(chunk, generator=generators, height=64, width=64, **options).images.float())
    return torch.cat(made).clamp(0, 1)


@torch.no_grad()
def found_objects(image: torch.Tensor, scenes: Scenes) -> torch.Tensor:
    """(b, 9) True where an object of the scenes is seen in images (b, 3, 64, 64) in [0, 1]: less than 5
    pixels off its place, with its shape and colour, and within a fifth of its size.
    """
    background = seen_background(image, render_backgrounds(scenes))
    row, cell, place, origin, window = in_place(scenes, scenes.present)
    shape = torch.from_numpy(scenes.shape)[row, cell].long()
    colour = torch.from_numpy(scenes.colour)[row, cell].long()
    size = torch.from_numpy(scenes.size)[row, cell].long()
    filled = fill_hosts(image, scenes, scenes.has_inner)
    seen = recover(filled, background, row, shape, colour, origin, window)
    right = (seen.fit > 0.5) & ((seen.centre - place).norm(dim=1) < 5)
    right &= (seen.radius / torch.tensor(RADII)[size] - 1).abs() < 0.2
    is_found = torch.zeros(scenes.present.shape, dtype=torch.bool)
    is_found[row, cell] = right
    return is_found


def rate(pipe, samples: ShapesBatch, steps: int, guidance_scale: float) -> tuple[float, float]:
    """Share of captions whose objects are all found, and share of objects that are found."""
    images = draw(pipe, samples.source_caption, steps, guidance_scale)
    is_found = found_objects(images, samples.before).numpy()
    present = samples.before.present
    return float((is_found | ~present).all(1).mean()), float(is_found[present].mean())


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    pipe = load_text_to_image("shapes/text-to-image")
    val = samples_with("val", 1, 3, VAL_N)
    grid = [(steps, scale) for steps in STEPS for scale in GUIDANCE_SCALES]
    rated = {point: rate(pipe, val, *point)[0] for point in grid}
    best = max(grid, key=lambda point: rated[point])
    all_found, objects_found = rate(pipe, samples_with("test", 1, 3, N), *best)
    by_objects = {}
    for objects in range(1, 6):
        whole, single = rate(pipe, samples_with("test", objects, objects, N // 4), *best)
        by_objects[str(objects)] = {"all_found": whole, "objects_found": single}
    figures = {
        "n": N,
        "all_found": all_found,
        "objects_found": objects_found,
        "by_objects": by_objects,
        "settings": {"steps": best[0], "guidance_scale": best[1]},
        "val": {f"{steps} steps, {scale:g}": value for (steps, scale), value in rated.items()},
    }
    line.keep("shapes-text-to-image", figures)
