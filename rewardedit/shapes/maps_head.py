"""Heads that teach a denoiser from scratch what is in an image; they are discarded after training.

A pretrained denoiser knows that; a small one trained from scratch must learn it from the denoising error,
which takes long. A head predicts from a middle block which colours and shapes the scene shows where, and its
error is added to the loss. The idea is that of representation alignment (Yu et al. 2024), with the
world's own scenes in place of a pretrained encoder's features.
"""

from typing import Any

import torch
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


class TokenMapHead(nn.Module):
    """Predicts maps from the tokens of a transformer's block that reads text, target and source as one
    sequence, whose last tokens are the source's: each token the maps of its own square.
    """

    def __init__(self, block: nn.Module, width: int, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 128), nn.SiLU(), nn.Linear(128, channels))
        self._tokens: Tensor | None = None
        self._hook = block.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self._tokens = output

    def loss(self, target: Float[Tensor, "b c h w"], source: Float[Tensor, "b c h w"]) -> Tensor:
        """Mean binary cross-entropy of the maps of the last batch."""
        assert self._tokens is not None
        maps = torch.cat([target.flatten(2), source.flatten(2)], 2)
        logits = self.layers(self._tokens[:, -maps.shape[-1] :]).float()
        return F.binary_cross_entropy_with_logits(logits.transpose(1, 2), maps)

    def remove(self) -> None:
        """Removes the head's hook from the block."""
        self._hook.remove()
        self._tokens = None
