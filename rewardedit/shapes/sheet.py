"""A contact sheet: samples, their candidates of known quality, masks,
instructions and ratings on one image.
"""

from pathlib import Path

import torch
from PIL import Image, ImageDraw

from rewardedit.images import to_pil
from rewardedit.shapes.corruptions import CORRUPTION_KINDS, corrupt_targets
from rewardedit.shapes.oracle import ShapesOracle
from rewardedit.shapes.world import Shapes

SCALE = 2
GAP = 10
TITLE = 34  # enlargement; pixels between images; above each row
SIDE = 64 * SCALE


def draw_sheet(path: Path, world: Shapes, n: int = 14, first: int = 0) -> None:
    """Draws n samples in rows: source, mask, then one candidate of every quality with its rating below it
    (with alignment, consistency and quality in parentheses).
    """
    samples = world.batch(first, n)
    columns = ["source", "mask", *CORRUPTION_KINDS]
    width = GAP + len(columns) * (SIDE + GAP)
    sheet = Image.new("RGB", (width, 24 + n * (SIDE + TITLE + 30)), "white")
    pen = ImageDraw.Draw(sheet)
    for k, name in enumerate(columns):
        pen.text((GAP + k * (SIDE + GAP), 6), name, fill="black")

    made = []
    ratings = []
    for quality in CORRUPTION_KINDS:
        _, images = corrupt_targets(samples, {quality: 1.0}, seed=0)
        made.append(images)
        ratings.append(ShapesOracle().rate(samples, images))

    for i in range(n):
        top = 24 + i * (SIDE + TITLE + 30)
        pen.text((GAP, top + 12), f"{samples.edit_type[i]}: “{samples.instruction[i]}”", fill="#3465c8")
        images = [samples.source[i], samples.mask[i].expand(3, -1, -1), *torch.stack(made)[:, i]]
        for k, image in enumerate(images):
            left = GAP + k * (SIDE + GAP)
            sheet.paste(to_pil(image).resize((SIDE, SIDE), Image.Resampling.NEAREST), (left, top + TITLE))
            if k >= 2:
                r = ratings[k - 2]
                text = f"{r.score[i]:.1f}   ({r.alignment[i]:.0f} {r.consistency[i]:.0f} {r.quality[i]:.0f})"
                pen.text((left, top + TITLE + SIDE + 4), text, fill="black")
    sheet.save(path)
