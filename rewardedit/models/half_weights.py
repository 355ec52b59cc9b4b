"""Frozen weights that are held in bf16 beside a trained copy in fp32.

Autocast caches its casts of trained weights alone: it casts frozen ones anew at every call, and a gradient
that passes through them keeps each cast until the backward pass.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # layers whose weights autocast casts


class HalfWeights:
    """The frozen fp32 weights of linear and convolutional layers, in bf16; the originals are in CPU memory.

    Under autocast in bf16 the modules compute the same as before, to the bit. Without it they do not compute.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        """Casts them in place."""
        self.originals: list[tuple[nn.Parameter, Tensor]] = []
        for module in modules:
            for weight in _castable(module):
                self.originals.append((weight, weight.data if weight.is_meta else weight.data.cpu()))
                weight.data = weight.data.to(torch.bfloat16)

    @contextmanager
    def in_fp32(self) -> Iterator[None]:
        """Within this context the originals are in their place, in CPU memory: enough to save them."""
        halves = [weight.data for weight, _ in self.originals]
        for weight, original in self.originals:
            weight.data = original
        try:
            yield
        finally:
            for (weight, _), half in zip(self.originals, halves, strict=True):
                weight.data = half

    def restore(self) -> None:
        """Puts the originals back for good, on the device of the casts."""
        for weight, original in self.originals:
            weight.data = original.to(weight.device)
        self.originals.clear()


def _castable(module: nn.Module) -> Iterator[nn.Parameter]:
    """Frozen fp32 weights of its linear and convolutional layers."""
    for layer in module.modules():
        if isinstance(layer, LAYERS):
            for weight in layer.parameters(recurse=False):
                if weight.dtype == torch.float32 and not weight.requires_grad:
                    yield weight


def bytes_saved(modules: Iterable[nn.Module]) -> int:
    """Bytes that modules have less of as `HalfWeights`."""
    return sum(weight.numel() * (4 - 2) for module in modules for weight in _castable(module))


@contextmanager
def half_weights(modules: Iterable[nn.Module]) -> Iterator[HalfWeights]:
    """Within this context the weights of modules are as `HalfWeights` holds them."""
    held = HalfWeights(modules)
    try:
        yield held
    finally:
        held.restore()
