"""Where a differentiable scorer sees an edit succeed or fail:
the explanation that ADIEE leaves as future work.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.images import gaussian_blur
from rewardedit.scorers import Scorer

SMOOTH = 0.02  # standard deviation of the blur, in shorter sides of the image


def heat_map(scorer: Scorer, batch: EditBatch, smooth: float = SMOOTH) -> Float[Tensor, "b 1 h w"]:
    """What each pixel's change adds to the score: gradient × (edited − source),
    summed over channels and blurred.

    The input is counted from the source (the baseline, as in integrated gradients), so that pixels that
    nobody changed have no say. Above 0 the change raises the score, below it lowers it; units are those of
    the score. Rows that cannot be scored are 0 everywhere.

    Raises:
        ValueError: where the scorer has no gradient.
    """
    scorer.require_gradient()
    edited = batch.edited.detach().clone().requires_grad_(True)
    fields = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    with torch.enable_grad():
        scores = scorer(EditBatch(**{**fields, "edited": edited}))
        (gradient,) = torch.autograd.grad(scores.score[scores.valid].sum(), edited)
    heat = (gradient * (edited.detach() - batch.source)).sum(1, keepdim=True)
    return gaussian_blur(heat, smooth * min(heat.shape[-2:])) if smooth else heat


def draw_heat(image: Float[Tensor, "b 3 h w"], heat: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b 3 h w"]:
    """The image in faded gray with heat over it: green where a change raised the score,
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
