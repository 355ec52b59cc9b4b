"""Mask guidance of pipelines that call their transformer twice a step: with the prompt, then with the
negative one.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.diffusion.families.flow import FlowEditor
from rewardedit.diffusion.families.mask_hook import MaskHook

TRUE_CFG = 'true_cfg_scale above 1 and a negative_prompt (" " will do)'  # how a call is guided


class TwoCalls(MaskHook):
    """The positive call comes first; its output is changed when the negative one arrives."""

    def __init__(
        self, family: FlowEditor, pipe: Any, mask: Float[Tensor, "b 1 h w"], between: tuple[float, float]
    ) -> None:
        super().__init__(pipe, mask, between)
        self.family = family
        self.waiting: tuple[Tensor, Tensor] | None = None

    def __call__(self, transformer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        model_pred = output[0]
        timestep = kwargs["timestep"]
        if self.begins():
            self.waiting = None
            self.fitted = None

        if self.waiting is None:
            self.waiting = (timestep, model_pred)
            return

        positive_timestep, positive = self.waiting
        self.waiting = None
        if not torch.equal(positive_timestep, timestep):
            raise self.family.unguided()
        if self.fitted is None:
            rows = self.rows(len(model_pred))
            size = self.family.target_size(kwargs)
            self.fitted = self.family.pack_mask(rows, size, model_pred.shape[-1]).to(model_pred)
        if self.holds_for(timestep * 1000):
            n = self.fitted.shape[1]
            target = slice(0, n) if self.family.target_first else slice(-n, None)
            positive[:, target].copy_(torch.lerp(model_pred[:, target], positive[:, target], self.fitted))

    def close(self) -> None:
        if self.waiting is not None:
            raise self.family.unguided()
