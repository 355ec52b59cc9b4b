"""`MaskedGuidance`: a guider of diffusers' modular pipelines that follows the instruction inside a mask only
(BPM Sec. 3.5, Eq. 4).

Diffusers has guiders for Qwen-Image-Edit, Edit-Plus and FLUX.2 klein (base); its modular pipelines of FLUX.1
Kontext and of the distilled klein take none, since they have no classifier-free guidance.
"""

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import ClassifierFreeGuidance
from jaxtyping import Float
from torch import Tensor

from rewardedit.diffusion.families.flow import pack_mask
from rewardedit.diffusion.guidance import soften


class MaskedGuidance(ClassifierFreeGuidance):
    """Classifier-free guidance whose conditional prediction is the unconditional one outside a mask.

    The mask holds in every step: both predictions are made before `start` and from `stop` on too, and with a
    `guidance_scale` of 1, where the conditional one is taken inside the mask.

    `mask` (b, 1, h, w) in [0, 1] is an attribute, and so are the rows and columns of the target's tokens and
    their side. They are no part of the guider's configuration, which holds plain values: `new()` keeps them,
    `save_pretrained` loses them, and a guider that was loaded has to be given them again.
    """

    mask: Float[Tensor, "b 1 h w"] | None = None
    size: tuple[int, int] | None = None  # rows and columns of tokens; needed for predictions (b, n, d)
    patch: int = 2  # locations of the latents on a token's side: 2 for Qwen-Image-Edit, 1 for FLUX.2 klein
    # tokens of the target in predictions that hold the source's behind them; None: all. Noted at each call
    target: int | None = None
    _hook: Any = None

    @classmethod
    def of(
        cls,
        mask: Float[Tensor, "b 1 h w"],
        size: tuple[int, int] | None = None,
        patch: int = 2,
        dilate: int = 0,
        feather: float = 0.0,
        **options: Any,
    ) -> "MaskedGuidance":
        """A guider with a mask.

        Args:
            mask: 1 where change is wanted, at any size of the image's proportions.
            size: rows and columns of the target's tokens, of pipelines that denoise tokens.
            dilate: grows the mask by this number of its own pixels.
            feather: standard deviation of a blur of its rim, in its own pixels.
            options: of `ClassifierFreeGuidance`, such as `guidance_scale`.

        Raises:
            ValueError: for a mask outside [0, 1].
        """
        guider = cls(**options)
        guider.mask = soften(mask, dilate, feather)
        guider.size = size
        guider.patch = patch
        return guider

    def new(self, **options: Any) -> "MaskedGuidance":
        """A copy with other options and the same mask."""
        other = super().new(**options)
        other.mask, other.size, other.patch = self.mask, self.size, self.patch
        return other

    @property
    def num_conditions(self) -> int:
        """Number of predictions of a step."""
        return 2 if self._enabled else 1

    def prepare_models(self, denoiser: torch.nn.Module) -> None:
        """Notes the target's size among the denoiser's inputs."""
        self._hook = denoiser.register_forward_pre_hook(self._note_target, with_kwargs=True)

    def cleanup_models(self, denoiser: torch.nn.Module) -> None:
        """Ends what `prepare_models` began."""
        self._hook.remove()

    def _note_target(self, denoiser: torch.nn.Module, values: Any, options: dict[str, Any]) -> None:
        shapes = options.get("img_shapes")  # Qwen's: of the target, then of the sources, for each row
        self.target = None if shapes is None else prod(shapes[0][0])

    def forward(self, pred_cond: Tensor, pred_uncond: Tensor | None = None) -> Any:
        """The guided prediction; of tokens, those behind the target's are the source's and stay.

        Raises:
            ValueError: if no mask is set, as after loading, guidance is off, or the size is another than the
                target's.
        """
        if self.mask is None:
            raise ValueError(
                "MaskedGuidance: expected a mask; got none, as saved guiders keep none; set guider.mask, or "
                "take ClassifierFreeGuidance"
            )
        if pred_uncond is None:
            raise ValueError(
                "MaskedGuidance: expected a prediction with the instruction and one without; got one alone; "
                "set enabled=True"
            )
        weight = self._weight(pred_cond)
        return super().forward(torch.lerp(pred_uncond, pred_cond, weight), pred_uncond)

    def _weight(self, like: Tensor) -> Tensor:
        """The mask in the layout of a prediction: 1 on tokens of the source."""
        assert self.mask is not None
        if like.ndim == 4:
            return F.interpolate(self.mask, like.shape[-2:], mode="area").to(like)
        tokens = like.shape[1] if self.target is None else self.target
        if self.size is None:
            raise ValueError(
                f"MaskedGuidance: expected the size of the target, {tokens} tokens; got none; set "
                "guider.size to its rows and columns"
            )
        if prod(self.size) != tokens:
            rows, columns = self.size
            raise ValueError(
                f"size: expected rows × columns = {tokens} tokens; got {rows} × {columns} = "
                f"{rows * columns}; divide the edited image's height and width by 16"
            )
        packed = pack_mask(self.mask, self.size, self.patch, like.shape[-1]).to(like)
        ones = like.new_ones(len(packed), like.shape[1] - packed.shape[1], like.shape[2])
        return torch.cat([packed, ones], 1)
