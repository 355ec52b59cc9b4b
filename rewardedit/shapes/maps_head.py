"""A head that teaches a UNet from scratch what is in an image; it is thrown away after training.

A pretrained UNet knows that; a small one that starts from nothing has to find out from the denoising error,
which takes long. The head reads off the UNet's middle where the scene shows which colours and shapes, and its
error is added to the loss. The thought is representation alignment's (Yu et al. 2024), with the world's own
scenes in the place of a pretrained encoder's features.
"""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F


class MapsHead(nn.Module):
    """Reads maps off the output of a UNet's middle block."""

    def __init__(self, unet: Any, channels: int) -> None:
        super().__init__()
        width = unet.config.block_out_channels[-1]
        self.layers = nn.Sequential(nn.Conv2d(width, 128, 1), nn.SiLU(), nn.Conv2d(128, channels, 1))
        self._middle: Tensor | None = None
        self._hook = unet.mid_block.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self._middle = output

    def loss(self, maps: Float[Tensor, "b c h w"], known: Bool[Tensor, " b"]) -> Tensor:
        """Mean binary cross-entropy of the maps in the rows that are `known`, of the UNet's last batch."""
        assert self._middle is not None
        logits = self.layers(self._middle).float()
        error = F.binary_cross_entropy_with_logits(logits, maps.float(), reduction="none")
        return (error.flatten(1).mean(1) * known).sum() / known.sum().clamp_min(1)

    def remove(self) -> None:
        """Leaves the UNet as it was."""
        self._hook.remove()
        self._middle = None
