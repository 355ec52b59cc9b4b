"""Mask guidance: classifier-free guidance that follows the instruction inside a mask only (BPM Sec. 3.5, Eq. 4).

A forward hook on the pipeline's denoiser; nothing of a pipeline is copied. `torch.lerp` is exact at weights 0 and 1, so a
mask of ones gives the stock pipeline's pictures to the bit, and a mask of zeros those of the negative prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from rewardedit.diffusion.editors import EditSettings, as_editor
from rewardedit.images import gaussian_blur, resize
from rewardedit.regions import change_mask, dilated

INSTRUCT_PIX2PIX = ("StableDiffusionInstructPix2PixPipeline", "StableDiffusionXLInstructPix2PixPipeline")
TRUE_CFG = ("FluxKontextPipeline", "QwenImageEditPipeline", "QwenImageEditPlusPipeline")
MaskOf = Callable[[Tensor, Tensor], Tensor]  # of sources and edited pictures (b, 3, h, w)


@dataclass(frozen=True)
class TwoRounds:
    """What `two_round_edit` made: the edit under the mask, the mask, and the first round's edit (None without one)."""

    edited: Float[Tensor, "b 3 h w"]
    mask: Float[Tensor, "_ 1 _ _"]
    first: Float[Tensor, "b 3 h w"] | None


@contextmanager
def mask_guidance(
    pipe: Any,
    mask: Float[Tensor, "b 1 h w"],
    *,
    dilate: int = 0,
    feather: float = 0.0,
    between: tuple[float, float] = (0.0, 1.0),
) -> Iterator[None]:
    """While it is open, calls of `pipe` follow the instruction inside the mask only.

    For InstructPix2Pix (SD and SDXL) the mask multiplies the text term of the guidance, as in BPM's Eq. 4:
    e0 + s_T · M ∘ (e_T − e_I) + s_I · (e_I − e0). For FLUX-Kontext and Qwen-Image-Edit with true classifier-free guidance
    it multiplies the difference of positive and negative prediction.

    Args:
        mask: in [0, 1], 1 where change is wanted, at the size of the picture or of the latents (resampled by area average).
            Its rows follow the rows of the sources; one row serves for all. With several pictures a prompt, stock pipelines
            repeat the sources as a whole (i0 i1 i0 i1), and so is the mask.
        dilate: grows the mask by so many of its own pixels.
        feather: standard deviation of a blur of its rim, in its own pixels.
        between: the share of the denoising steps it holds for, from 0 (the first) to 1.

    Raises:
        ValueError: for another pipeline, a mask outside [0, 1] or of another shape or batch than the sources; within the
            block, for a call without classifier-free guidance (there is no text term to restrict).
    """
    kind = next((c.__name__ for c in type(pipe).__mro__ if c.__name__ in (*INSTRUCT_PIX2PIX, *TRUE_CFG)), None)
    if kind is None:
        known = ", ".join((*INSTRUCT_PIX2PIX, *TRUE_CFG))
        raise ValueError(f"mask guidance: {type(pipe).__name__} is not one of {known}")
    start, stop = between
    if not 0 <= start < stop <= 1:
        raise ValueError(f"between: expected two rising shares in [0, 1]; got {between}")
    mask = soften(mask, dilate, feather)
    hook = _Fused(pipe, mask, between) if kind in INSTRUCT_PIX2PIX else _Branches(pipe, mask, between)
    model = pipe.unet if kind in INSTRUCT_PIX2PIX else pipe.transformer
    handle = model.register_forward_hook(torch.compiler.disable(hook), with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
    hook.close()


def soften(mask: Float[Tensor, "b 1 h w"], dilate: int, feather: float) -> Float[Tensor, "b 1 h w"]:
    """The mask grown by `dilate` pixels, then blurred with standard deviation `feather`.

    Raises:
        ValueError: for a mask outside [0, 1] or with NaN, or negative sizes.
    """
    if mask.ndim != 4 or mask.shape[1] != 1 or not mask.is_floating_point():
        raise ValueError(f"mask: expected a float tensor (b, 1, h, w); got {mask.dtype} {tuple(mask.shape)}")
    if not bool(((mask >= 0) & (mask <= 1)).all()):
        raise ValueError("mask: expected values in [0, 1]")
    if dilate < 0 or feather < 0:
        raise ValueError(f"expected dilate and feather of at least 0; got {dilate} and {feather}")
    mask = dilated(mask, dilate)
    return gaussian_blur(mask, feather).clamp(0, 1) if feather else mask


class _Masked:
    """What both kinds of hook share: the mask at the latents' size, and whether a step is one of those meant."""

    def __init__(self, pipe: Any, mask: Tensor, between: tuple[float, float]) -> None:
        self.pipe, self.mask, self.between = pipe, mask, between
        self.fitted: Tensor | None = None

    def holds_for(self, timestep: Tensor | float) -> bool:
        if self.between == (0.0, 1.0):
            return True
        times = self.pipe.scheduler.timesteps
        index = int((times - torch.as_tensor(timestep).flatten()[0].to(times)).abs().argmin())
        return self.between[0] <= index / len(times) < self.between[1]

    def rows(self, n: int) -> Tensor:
        if n % len(self.mask):
            raise ValueError(f"mask: {len(self.mask)} rows do not fit {n} sources; expected one for each, or one for all")
        return self.mask.repeat(n // len(self.mask), 1, 1, 1)

    def close(self) -> None:
        """Called when the block ends without an error."""


class _Fused(_Masked):
    """InstructPix2Pix: one call with rows [text, image, unconditional]; the text rows become lerp(image, text, M)."""

    def __call__(self, unet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        sample, timestep = (args[i] if len(args) > i else kwargs[name] for i, name in enumerate(("sample", "timestep")))
        predicted = output[0]
        n, (h, w) = len(predicted) // 3, predicted.shape[-2:]
        if self.fitted is None or self.fitted.shape != (n, 1, h, w):
            self.fitted = self._fit(sample, n, h, w).to(predicted)
        if not self.holds_for(timestep):
            return None
        text, image, nothing = predicted.chunk(3)
        guided = torch.cat([torch.lerp(image, text, self.fitted), image, nothing])
        return (guided, *output[1:]) if isinstance(output, tuple) else type(output)(sample=guided)

    def _fit(self, sample: Tensor, n: int, h: int, w: int) -> Tensor:
        unconditional = sample[2 * n :, sample.shape[1] // 2 :]
        if len(sample) % 3 or bool(unconditional.any()):  # its source latents are zeros
            raise ValueError(
                "mask guidance needs classifier-free guidance: call the pipeline with guidance_scale above 1 and "
                "image_guidance_scale of at least 1"
            )
        height, width = self.mask.shape[-2:]
        if abs(height * w - width * h) > max(height, width):
            raise ValueError(f"mask: {height}×{width} is of another shape than the latents, {h}×{w}")
        return F.interpolate(self.rows(n), (h, w), mode="area")


class _Branches(_Masked):
    """FLUX-Kontext and Qwen-Image-Edit: the positive call comes first, its output is changed when the negative arrives."""

    def __init__(self, pipe: Any, mask: Tensor, between: tuple[float, float]) -> None:
        super().__init__(pipe, mask, between)
        self.waiting: tuple[Tensor, Tensor] | None = None
        self.times: Tensor | None = None

    def __call__(self, transformer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        predicted, timestep = output[0], kwargs["timestep"]
        if self.pipe.scheduler.timesteps is not self.times:
            # A pipeline makes its time steps anew in every call: what an earlier one, perhaps a failed one, left is void.
            self.times = self.pipe.scheduler.timesteps
            self.waiting = None
            self.fitted = None
        if self.waiting is None:
            self.waiting = (timestep, predicted)
            return
        (asked, positive), self.waiting = self.waiting, None
        if not torch.equal(asked, timestep):
            self._no_negative()
        if self.fitted is None:
            self.fitted = self._fit(len(predicted), kwargs, predicted.shape[-1]).to(predicted)
        if self.holds_for(timestep * 1000):
            n = self.fitted.shape[1]
            positive[:, :n].copy_(torch.lerp(predicted[:, :n], positive[:, :n], self.fitted))

    def _fit(self, n: int, kwargs: dict[str, Any], channels: int) -> Tensor:
        """The mask packed as the latents are: tokens of 2×2 places, channels (c, 2, 2)."""
        if "img_shapes" in kwargs:
            h, w = kwargs["img_shapes"][0][0][1:]
        else:
            ids = kwargs["img_ids"]
            h, w = (int(side) + 1 for side in ids[ids[:, 0] == 0][:, 1:].max(0).values)
        mask = F.interpolate(self.rows(n), (2 * h, 2 * w), mode="area")
        packed = mask.view(n, h, 2, w, 2).permute(0, 1, 3, 2, 4).reshape(n, h * w, 4)
        return packed.repeat(1, 1, channels // 4)

    def _no_negative(self) -> None:
        raise ValueError(
            "mask guidance needs true classifier-free guidance: call the pipeline with true_cfg_scale above 1 and a "
            'negative_prompt (" " will do); without them there is one prediction a step and no text term to restrict'
        )

    def close(self) -> None:
        if self.waiting is not None:
            self._no_negative()


def two_round_edit(
    pipe: Any,
    image: Float[Tensor, "b 3 h w"],
    instruction: Sequence[str],
    *,
    mask: MaskOf | Float[Tensor, "_ 1 _ _"] = change_mask,
    seed: int = 0,
    score: float = 10.0,
    settings: EditSettings | None = None,
    first: Float[Tensor, "b 3 _ _"] | None = None,
    **options: Any,
) -> TwoRounds:
    """Edits, finds where the picture changed, and edits again under that mask from the same noise (BPM Sec. 3.5).

    Sources and instructions are encoded once. Row i has seed `seed + i`. A mask that was found grows by one place of the
    latents, since those at its rim hold what is inside and what is outside together.

    Args:
        pipe: an `Editor`, or a stock diffusers pipeline.
        image: RGB in [0, 1]. FLUX-Kontext and Qwen-Image-Edit answer in a size of their own, of the same shape.
        mask: a function of sources (at the edits' size) and edited pictures, by default `change_mask`; or your own mask, and
            then there is no first round.
        score: what a reward-conditioned editor is asked for, 0–10.
        first: the first round's edit with the same seeds, where you have it already.
        options: for the pipeline.

    Raises:
        ValueError: what `mask_guidance` and `Editor` raise.
    """
    editor = as_editor(pipe)
    seeds = range(seed, seed + len(image))
    if "FluxKontextPipeline" in (kind.__name__ for kind in type(editor.pipe).__mro__):
        # Its pictures are square where nothing is said; what is said is scaled to its area. Others keep the source's shape.
        height, width = (image if first is None else first).shape[-2:]
        options = {"height": height, "width": width, **options}
    encoded = editor.encode(image, instruction, score=score)
    dilate = 0
    if not isinstance(mask, Tensor):
        if first is None:
            first = editor.run(encoded, seeds, settings=settings, **options)
        height, width = first.shape[-2:]
        mask = mask(resize(image, (height, width)), first)
        dilate = editor.pipe.vae_scale_factor * mask.shape[-1] // width
    with mask_guidance(editor.pipe, mask, dilate=dilate):
        return TwoRounds(editor.run(encoded, seeds, settings=settings, **options), mask, first)
