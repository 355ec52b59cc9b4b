"""FLUX-Kontext and Qwen-Image-Edit: editors whose classifier-free guidance calls the transformer twice a
step.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from rewardedit.diffusion.families.base import EditFamily, MaskHook, size_inputs
from rewardedit.prepared import Prepared

T5_TOKENS = 512  # read from a prompt by FLUX-Kontext's pipeline


class QwenImageEdit(EditFamily):
    """Qwen-Image-Edit (arXiv 2508.02324), sampled from and guided."""

    pipelines = ("QwenImageEditPipeline", "QwenImageEditPlusPipeline")

    def readers(self, pipe: Any) -> list[tuple[Any, int]]:
        return [(pipe.tokenizer, pipe.tokenizer_max_length)]

    def mask_hook(self, pipe: Any, mask: Float[Tensor, "b 1 h w"], between: tuple[float, float]) -> MaskHook:
        return TwoCalls(pipe, mask, between)


class FluxKontext(QwenImageEdit):
    """FLUX.1 Kontext (arXiv 2506.15742), sampled from and guided."""

    pipelines = ("FluxKontextPipeline",)

    def readers(self, pipe: Any) -> list[tuple[Any, int]]:
        return [(pipe.tokenizer_2, T5_TOKENS)]

    def encode(self, pipe: Any, source: Float[Tensor, "b 3 h w"], prompts: list[str]) -> Prepared:
        # Its images are square unless a size is given; that is scaled to its area.
        return Prepared({**super().encode(pipe, source, prompts).inputs, **size_inputs(source)})


class TwoCalls(MaskHook):
    """The positive call comes first; its output is changed when the negative one arrives."""

    def __init__(self, pipe: Any, mask: Tensor, between: tuple[float, float]) -> None:
        super().__init__(pipe, mask, between)
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
            self._no_negative()
        if self.fitted is None:
            self.fitted = self._fit(len(model_pred), kwargs, model_pred.shape[-1]).to(model_pred)
        if self.holds_for(timestep * 1000):
            n = self.fitted.shape[1]
            positive[:, :n].copy_(torch.lerp(model_pred[:, :n], positive[:, :n], self.fitted))

    def _fit(self, n: int, kwargs: dict[str, Any], channels: int) -> Tensor:
        """The mask packed as the latents are: tokens of 2×2 locations, channels (c, 2, 2)."""
        if "img_shapes" in kwargs:
            h, w = kwargs["img_shapes"][0][0][1:]
        else:
            ids = kwargs["img_ids"]
            h, w = (ids[ids[:, 0] == 0][:, 1:].max(0).values.int() + 1).tolist()
        mask = F.interpolate(self.rows(n), (2 * h, 2 * w), mode="area")
        packed = mask.view(n, h, 2, w, 2).permute(0, 1, 3, 2, 4).reshape(n, h * w, 4)
        return packed.repeat(1, 1, channels // 4)

    def _no_negative(self) -> None:
        raise ValueError(
            "mask guidance needs true classifier-free guidance: call the pipeline with true_cfg_scale "
            "above 1 and a "
            'negative_prompt (" " will do); without them there is one prediction a step and no text term '
            "to restrict"
        )

    def close(self) -> None:
        if self.waiting is not None:
            self._no_negative()
