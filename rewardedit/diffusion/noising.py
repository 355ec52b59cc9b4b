"""Common parts of training on noisy latents: the dropout of conditioning, and the schedule of the noise."""

from typing import Any

from diffusers import DDPMScheduler
from jaxtyping import Bool, Float
from torch import Tensor


def conditioning_dropout(
    u: Float[Tensor, " b"], share: float = 0.05
) -> tuple[Bool[Tensor, " b"], Bool[Tensor, " b"]]:
    """Masks of the rows that lose their text, and that lose their source image, for u uniform in [0, 1).

    With share p: text only for u < p, both for p ≤ u < 2p, image only for 2p ≤ u < 3p (InstructPix2Pix's
    released code; the paper says 5 % each).
    """
    return u < 2 * share, (u >= share) & (u < 3 * share)


def noising(scheduler: Any) -> DDPMScheduler:
    """Scheduler that noises latents in training, on a pipeline's schedule, however that one samples."""
    return DDPMScheduler.from_config(scheduler.config)
