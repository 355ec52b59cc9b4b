"""`MaskHook`: common part of the hooks by which the families restrict text guidance to a mask."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from rewardedit.diffusion.schedulers import holds_for


class MaskHook:
    """Common part of the families' hooks: the mask at the latents' size,
    and the test whether it applies to a step.
    """

    def __init__(self, pipe: Any, mask: Float[Tensor, "b 1 h w"], between: tuple[float, float]) -> None:
        self.pipe = pipe
        self.mask = mask
        self.between = between
        self.fitted: Tensor | None = None
        self.times: Tensor | None = None  # the pipeline's time steps in the current call

    def __call__(self, denoiser: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Called by torch after each forward pass; a return value other than None replaces the output."""
        raise NotImplementedError

    def begins(self) -> bool:
        """True at the first step of a pipeline call, which creates new time steps: state of an earlier,
        perhaps failed call must be dropped.
        """
        times = self.pipe.scheduler.timesteps
        begins = times is not self.times
        self.times = times
        return begins

    def holds_for(self, timestep: Tensor | float) -> bool:
        """True if the mask applies to a step."""
        return holds_for(self.between, self.pipe.scheduler, timestep)

    def rows(self, n: int) -> Float[Tensor, "n 1 h w"]:
        """The mask's rows for n sources.

        Raises:
            ValueError: if n is not a multiple of their number.
        """
        if n % len(self.mask):
            raise ValueError(
                f"mask: {len(self.mask)} rows do not fit {n} sources; expected one for each, or one for all"
            )
        return self.mask.repeat(n // len(self.mask), 1, 1, 1)

    def close(self) -> None:
        """Called when the `mask_guidance` block ends without an error."""


def require_proportions(
    mask: Float[Tensor, "_ 1 _ _"], h: int, w: int, rounding: int = 1, otherwise: str = ""
) -> None:
    """Raises ValueError for a mask of other proportions than h × w latents or tokens, whatever its size.

    Args:
        rounding: latents or tokens by whose multiples a pipeline may choose its sides.
        otherwise: end of the message: another remedy than to resize the mask.
    """
    height, width = mask.shape[-2:]
    if abs(height * w - width * h) > rounding * max(height, width):
        raise ValueError(
            f"mask: expected the proportions of the latents, {h}×{w}; got {height}×{width}; resize it with "
            f"its source{otherwise}"
        )
