"""Signed gradient steps on an edited image's pixels: the strongest attack on one scorer (projected gradient
ascent; Madry et al. 2018, arXiv 1706.06083).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.scorers import Scorer

LEVELS = 255


def ascend_pixels(scorer: Scorer, batch: EditBatch, bound: int, steps: int = 20) -> Float[Tensor, "b 3 h w"]:
    """The edited images after signed gradient steps that raise their scores, each value within `bound` of 255
    levels of its own, rounded to whole levels as a file holds them.

    A step is 2.5 / `steps` of the bound, so that a value can come from one side to the other. Scores and
    gradients are those of the rounded images; each row keeps the one with the highest score of all on its
    way, the unchanged one included. A row that cannot be scored stays unchanged.

    Args:
        bound: largest change of a value, in levels of 255.

    Raises:
        ValueError: if the scorer has no gradient.
    """
    scorer.require_gradient()
    start = _rounded(batch.edited.detach())
    low = (start - bound / LEVELS).clamp(0, 1)
    high = (start + bound / LEVELS).clamp(0, 1)
    prepared = scorer.prepare(batch.source, batch.instruction)

    images = start
    best = start
    highest = torch.full((len(batch),), -torch.inf, device=start.device)
    for step in range(steps + 1):
        rounded = _rounded(images).requires_grad_(step < steps)
        with torch.set_grad_enabled(step < steps):
            scores = scorer(batch.with_edited(rounded), prepared)

        now = scores.score.detach().float().nan_to_num(-torch.inf)
        better = now > highest
        best = torch.where(better[:, None, None, None], rounded.detach(), best)
        highest = torch.where(better, now, highest)

        if step < steps and bool(scores.valid.any()):
            (gradient,) = torch.autograd.grad(scores.score[scores.valid].sum(), rounded)
            images = (images + 2.5 * bound / LEVELS / steps * gradient.sign()).clamp(low, high)
    return best


def _rounded(images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
    return (images * LEVELS).round() / LEVELS
