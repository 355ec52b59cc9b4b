"""A LoRA beside the one that is trained: the old policy, which makes the rollouts of online RL.

Both lie in the denoiser, as adapters, and so both are in its checkpoints. The reference is the denoiser with
its adapters off, which costs no memory.
"""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

NEW = "default"  # adapter that is trained, and saved
OLD = "old"


class OldPolicy:
    """The adapter that makes rollouts: a copy of the trained one, which it follows."""

    def __init__(self, denoiser: Any) -> None:
        """
        Args:
            denoiser: bare, with the adapter that is trained; the second one is added to it.
        """
        self.denoiser = denoiser
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Already found a `peft_config`")  # two adapters are meant
            denoiser.add_adapter(copy.deepcopy(denoiser.peft_config[NEW]), adapter_name=OLD)
        denoiser.set_adapter(NEW)
        self.pairs = adapter_pairs(denoiser)
        for new, old in self.pairs:
            old.data = old.data.to(new.dtype)
        self.follow(0.0)

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """old ← decay · old + (1 − decay) · new; with 0 it becomes the trained adapter."""
        for new, old in self.pairs:
            old.copy_(new.detach() if decay == 0 else torch.lerp(new.detach(), old, decay))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within the block the denoiser computes with the old adapter, and without gradient."""
        self.denoiser.set_adapter(OLD)
        try:
            with torch.no_grad():
                yield
        finally:
            self.denoiser.set_adapter(NEW)


@contextmanager
def reference(denoiser: Any) -> Iterator[None]:
    """Within the block the bare denoiser computes as the starting model, its adapters off, and without
    gradient.
    """
    denoiser.disable_adapters()
    try:
        with torch.no_grad():
            yield
    finally:
        denoiser.enable_adapters()


def adapter_pairs(denoiser: Any) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """The weights of the trained adapter, each with the old one's."""
    weights = dict(denoiser.named_parameters())
    pairs = []
    for name, weight in weights.items():
        if f".{NEW}." in name:
            pairs.append((weight, weights[name.replace(f".{NEW}.", f".{OLD}.")]))
    return pairs
