"""Text encoders that are on the GPU only while they are used.

The prompts of a training are encoded before its first step (`training/prompt_cache.py`); afterwards only
previews and the monitor's checks encode texts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class OffloadedTextEncoders:
    """The text encoders of a pipeline, in CPU memory and out of the pipeline except within `in_use`
    and `registered`.

    A pipeline takes its device from its first module, which a text encoder often is. Without them it is the
    device of the denoiser, and a step that would encode a text fails instead of running on the CPU.
    """

    def __init__(self, pipe: Any, device: torch.device | str) -> None:
        """Moves them to CPU memory.

        Args:
            device: on which they encode.
        """
        self.pipe = pipe
        self.device = device
        self.encoders: dict[str, nn.Module] = {}
        for name, module in pipe.components.items():
            if name.startswith("text_encoder") and isinstance(module, nn.Module):
                self.encoders[name] = module
        self._offload()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within this context they are on their device and parts of the pipeline."""
        with self.registered():
            for encoder in self.encoders.values():
                encoder.to(self.device)
            yield

    @contextmanager
    def registered(self) -> Iterator[None]:
        """Within this context they are parts of the pipeline, in CPU memory: enough to save it."""
        try:
            self.pipe.register_modules(**self.encoders)
            yield
        finally:
            self._offload()

    def _offload(self) -> None:
        # Not by assignment, which does not tell the pipeline's index of a module that comes back.
        self.pipe.register_modules(**dict.fromkeys(self.encoders))
        for encoder in self.encoders.values():
            encoder.to("cpu")
