"""Heat maps of the places where a differentiable scorer sees an edit succeed or fail:
the explanation that ADIEE leaves as future work.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.images import gaussian_blur, to_pil
from rewardedit.reports.captioned import captioned
from rewardedit.scorers import Scorer

SIDE = 1024  # pixels of the longer side at which large maps are smoothed and drawn
LEAST = 256  # pixels of the longer side of a drawn image
SMOOTH = 0.02  # standard deviation of the blur, in shorter sides of the image


def heat_map(scorer: Scorer, batch: EditBatch, smooth: float = SMOOTH) -> Float[Tensor, "b 1 h w"]:
    """Contribution of each pixel's change to the score: gradient × (edited − source),
    summed over channels and blurred.

    The source is the baseline (as in integrated gradients), so that unchanged pixels contribute nothing.
    Above 0 the change raises the score, below 0 it lowers it; units are those of the score. Rows that cannot
    be scored are 0 everywhere.

    Raises:
        ValueError: if the scorer has no gradient.
    """
    scorer.require_gradient()
    edited = batch.edited.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        scores = scorer(replace(batch, edited=edited))
        if not bool(scores.valid.any()):
            return torch.zeros_like(batch.source[:, :1])
        (gradient,) = torch.autograd.grad(scores.score[scores.valid].sum(), edited)
    heat = gradient.mul_(edited.detach() - batch.source).sum(1, keepdim=True)
    heat = torch.where(scores.valid[:, None, None, None], heat, 0.0)
    return _smoothed(heat, smooth * min(heat.shape[-2:])) if smooth else heat


def _smoothed(heat: Float[Tensor, "b 1 h w"], sigma: float) -> Float[Tensor, "b 1 h w"]:
    """Blurs the map; a large one at `SIDE` pixels, as the blur leaves nothing finer."""
    scale = SIDE / max(heat.shape[-2:])
    if scale >= 1:
        return gaussian_blur(heat, sigma)
    blurred = gaussian_blur(_at_most(heat, SIDE), sigma * scale)
    return F.interpolate(blurred, heat.shape[-2:], mode="bilinear", align_corners=False)


def _at_most(image: Float[Tensor, "b c h w"], side: int) -> Float[Tensor, "b c h2 w2"]:
    """Averages the image down to a longer side of `side` pixels; smaller images stay unchanged."""
    scale = side / max(image.shape[-2:])
    if scale >= 1:
        return image
    return F.interpolate(image, [max(1, round(n * scale)) for n in image.shape[-2:]], mode="area")


def side_by_side(
    batch: EditBatch, heat: Float[Tensor, "1 1 h w"], scorer: str, score: float | None
) -> Image.Image:
    """Source, edit and heat map of one edit, each of at most `SIDE` pixels a side, with the instruction, the
    score (None: there is none) and a legend.
    """
    source, edited, small = (_at_most(image, SIDE).cpu() for image in (batch.source, batch.edited, heat))
    panels = {"source": source, "edited": edited, "heat map": draw_heat(edited, small)}
    said = "no score" if score is None else f"{score:.4f}"
    lines = [
        batch.instruction[0],
        f"{scorer}: {said}",
        "Green: this change raised the score. Red: it lowered it. Grey: no effect. "
        f"Full colour: {float(heat.abs().amax()):.2g} a pixel.",
    ]
    return captioned([(title, _enlarged(to_pil(image[0]))) for title, image in panels.items()], lines)


def _enlarged(image: Image.Image) -> Image.Image:
    """A small image with whole pixels for each of its own, so that the words below fit."""
    factor = -(-LEAST // max(image.size))
    return image.resize((factor * image.width, factor * image.height), Image.Resampling.NEAREST)


def draw_heat(image: Float[Tensor, "b 3 h w"], heat: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b 3 h w"]:
    """Draws heat over the image in faded gray: green where a change raised the score,
    red where it lowered it.
    """
    gray = 0.5 + 0.5 * image.mean(1, keepdim=True)
    strength = heat / heat.abs().amax((1, 2, 3), keepdim=True).clamp_min(1e-12)
    up = strength.clamp_min(0)
    down = (-strength).clamp_min(0)
    red = gray * (1 - up)
    green = gray * (1 - down)
    blue = gray * (1 - up - down)
    return torch.cat([red, green, blue], dim=1).clamp(0, 1)
