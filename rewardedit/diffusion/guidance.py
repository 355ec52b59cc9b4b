"""Mask guidance: classifier-free guidance that follows the instruction inside a mask only (BPM Sec. 3.5, Eq.
4).

A forward hook on the pipeline's denoiser; nothing of a pipeline is copied. `torch.lerp` is exact at weights 0
and 1, so a mask of ones gives the stock pipeline's images to the bit,
and a mask of zeros those of the negative prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.diffusion.editors import Editor, SamplingConfig, as_editor
from rewardedit.diffusion.edits import Edits
from rewardedit.diffusion.families import family_of
from rewardedit.diffusion.schedulers import require_between
from rewardedit.images import ImagesLike, gaussian_blur, read_images, resize
from rewardedit.prepared import Prepared
from rewardedit.regions.change_map import change_mask, dilated

MaskOf = Callable[[Tensor, Tensor], Tensor]  # of sources and edited images (b, 3, h, w)


@dataclass(frozen=True)
class TwoRounds:
    """Result of `two_round_edit`: the edit under the mask, the mask,
    and the first round's edit (None without one).
    """

    edited: Float[Tensor, "b 3 h w"]  # NaN in rows without an edit
    mask: Float[Tensor, "_ 1 _ _"]
    first: Float[Tensor, "b 3 h w"] | None
    reason: list[str | None]  # why a row has no edit, in either round


@contextmanager
def mask_guidance(
    pipe: Any,
    mask: Float[Tensor, "b 1 h w"],
    *,
    dilate: int = 0,
    feather: float = 0.0,
    between: tuple[float, float] = (0.0, 1.0),
) -> Iterator[None]:
    """Within this context, calls of `pipe` follow the instruction inside the mask only.

    For InstructPix2Pix (SD and SDXL) the mask multiplies the text term of the guidance, as in BPM's Eq. 4:
    e0 + s_T · M ∘ (e_T − e_I) + s_I · (e_I − e0). For FLUX.1 Kontext, FLUX.2 klein (base) and Qwen-Image-Edit
    with classifier-free guidance it multiplies the difference of positive and negative prediction.

    Args:
        mask: in [0, 1], 1 where change is wanted, at the size of the image or of the latents (resampled by
            area average). Stock FLUX.1 Kontext makes a square unless it is called with `height` and `width`
            of the source's proportions. The mask's rows follow the rows of the sources; one row serves for
            all. With several images a prompt, stock pipelines repeat the sources as a whole (i0 i1 i0 i1),
            and so is the mask.
        dilate: grows the mask by this number of its own pixels.
        feather: standard deviation of a blur of its rim, in its own pixels.
        between: the share of the denoising steps that it applies to, from 0 (the first) to 1.

    Raises:
        ValueError: for another pipeline, a mask outside [0, 1] or of another shape or batch than the sources;
            within the block, for a call without classifier-free guidance (there is no text term to restrict).
    """
    require_between(between)
    family = family_of(pipe)
    hook = family.mask_hook(pipe, soften(mask, dilate, feather), between)
    handle = family.denoiser(pipe).register_forward_hook(torch.compiler.disable(hook), with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
    hook.close()


def require_maskable(editor: Editor, settings: SamplingConfig | None = None, **options: Any) -> None:
    """Raises ValueError if an editor's calls with these settings and options have no text guidance that a
    mask can restrict.
    """
    family = editor.family
    family.mask_hook(editor.pipe, torch.ones(1, 1, 1, 1), (0.0, 1.0))  # pipelines without any are refused
    if not family.guides_text(editor.call_options(settings, **options)):
        raise family.unguided()


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


def two_round_edit(
    pipe: Any,
    image: ImagesLike,
    instruction: str | Sequence[str],
    *,
    mask: MaskOf | Float[Tensor, "_ 1 _ _"] = change_mask,
    seed: int = 0,
    target_score: float = 10.0,
    settings: SamplingConfig | None = None,
    first: Float[Tensor, "b 3 _ _"] | None = None,
    **options: Any,
) -> TwoRounds:
    """Edits, finds where the image changed, and edits again under that mask from the same noise (BPM Sec.
    3.5).

    Sources and instructions are encoded once. Row i has seed `seed + i`. A mask that was found grows by one
    location of the latents, since the locations at its rim mix what is inside and outside.

    Args:
        pipe: an `Editor`, or a stock diffusers pipeline.
        image: as an `Editor` takes its sources.
        mask: a function of sources (at the edits' size) and edited images, by default `change_mask`; or your
            own mask, and then there is no first round.
        target_score: the score that a reward-conditioned editor is prompted for, 0–10.
        first: the first round's edit with the same seeds, if you have it already.
        options: for the pipeline.

    Raises:
        ValueError: as `mask_guidance` and `Editor`, before the first round; or if no row has a first edit.
    """
    editor = as_editor(pipe)
    require_maskable(editor, settings, **options)
    image = read_images(image)
    seeds = range(seed, seed + len(image))
    encoded = editor.encode(image, instruction, target_score=target_score)
    if first is not None:  # the second round gets its size, if the pipeline takes one
        sides = dict(zip(("height", "width"), first.shape[-2:], strict=True))
        options = {name: side for name, side in sides.items() if name in encoded.inputs} | options

    dilate = 0
    reason: list[str | None] = [None] * len(image)
    if not isinstance(mask, Tensor):
        sampled = first is None
        rounds = editor.sample(encoded, seeds, settings=settings, **options) if sampled else Edits.of(first)
        rounds = rounds.to("cpu")
        first = rounds.images
        reason = rounds.reason
        if all(reason):
            raise ValueError(f"no first edit: {reason[0]}")
        height, width = first.shape[-2:]
        sources = resize(image.to(first.device), (height, width))
        # A row without a first edit changes nothing, and gets no second one.
        lacking = torch.tensor([text is not None for text in reason])[:, None, None, None]
        mask = mask(sources, torch.where(lacking, sources.to(first), first))
        dilate = editor.pipe.vae_scale_factor * mask.shape[-1] // width

    second = _sample_masked(editor, encoded, seeds, mask, dilate, settings=settings, **options).to("cpu")
    reason = [before or after for before, after in zip(reason, second.reason, strict=True)]
    return TwoRounds(Edits.of(second.images, reason).images, mask, first, reason)


def _sample_masked(
    editor: Editor,
    encoded: Prepared,
    seeds: Sequence[int],
    mask: Float[Tensor, "_ 1 _ _"],
    dilate: int,
    **options: Any,
) -> Edits:
    """Edits under masks, one for each row or one for all; row by row where a call edits one source."""
    if not editor.family.one_row_a_call or len(mask) == 1:
        with mask_guidance(editor.pipe, mask, dilate=dilate):
            return editor.sample(encoded, seeds, **options)
    edits = []
    for row, seed in enumerate(seeds):
        with mask_guidance(editor.pipe, mask[row : row + 1], dilate=dilate):
            edits.append(editor.sample(encoded.take([row]), [seed], **options))
    return Edits.join(edits)
