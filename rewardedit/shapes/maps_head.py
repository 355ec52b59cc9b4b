"""A head that teaches a UNet from scratch what is in an image; it is discarded after training.

A pretrained UNet knows that; a small one trained from scratch must learn it from the denoising error, which
takes long. The head predicts from the UNet's middle block which colours and shapes the scene shows where, and
its error is added to the loss. The idea is that of representation alignment (Yu et al. 2024), with the
world's own scenes in place of a pretrained encoder's features.
"""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F


class ObjectMapHead(nn.Module):
    """Predicts maps from the output of a UNet's middle block."""

    def __init__(self, unet: Any, channels: int) -> None:
        super().__init__()
        width = unet.config.block_out_channels[-1]
        self.layers = nn.Sequential(nn.Conv2d(width, 128, 1), nn.SiLU(), nn.Conv2d(128, channels, 1))
        self._middle: Tensor | None = None
        self._hook = unet.mid_block.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self._middle = output

    def loss(self, maps: Float[Tensor, "b c h w"], known: Bool[Tensor, " b"]) -> Tensor:
        """Mean binary cross-entropy of the maps in the `known` rows of the UNet's last batch."""
        assert self._middle is not None
        logits = self.layers(self._middle).float()
        error = F.binary_cross_entropy_with_logits(logits, maps.float(), reduction="none")
        return (error.flatten(1).mean(1) * known).sum() / known.sum().clamp_min(1)

    def remove(self) -> None:
        """Removes the head's hook from the UNet."""
        self._hook.remove()
        self._middle = None
