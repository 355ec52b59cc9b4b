"""What training on noisy latents shares: which conditioning is dropped, and the schedule of the noise."""

from typing import Any

from diffusers import DDPMScheduler
from jaxtyping import Bool, Float
from torch import Tensor


def conditioning_dropout(
    u: Float[Tensor, " b"], share: float = 0.05
) -> tuple[Bool[Tensor, " b"], Bool[Tensor, " b"]]:
    """Which rows lose their text, and which their source image, for u uniform in [0, 1).

    With share p: text alone for u < p, both for p ≤ u < 2p, image alone for 2p ≤ u < 3p (InstructPix2Pix's
    released code; the paper says 5 % each).
    """
    return u < 2 * share, (u >= share) & (u < 3 * share)


def noising(scheduler: Any) -> DDPMScheduler:
    """How training noises latents on a pipeline's schedule, however that scheduler samples."""
    return DDPMScheduler.from_config(scheduler.config)
