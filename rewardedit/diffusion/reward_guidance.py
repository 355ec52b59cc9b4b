"""Reward guidance: while an editor samples, its predicted clean image is nudged uphill on a differentiable
scorer.

The scheduler's `step` is wrapped; nothing of a pipeline is copied. The gradient is that of the score with
respect to the predicted clean latents, through the decoder and not through the UNet, so that a step costs one
more decoding and scoring (as in universal guidance, Bansal et al. 2023; for editing,
this is what ADIEE calls real-time back-propagation and leaves open).
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.diffusion.families import EditFamily, family_of
from rewardedit.diffusion.schedulers import (
    holds_for,
    pred_x0_coefficients,
    require_between,
    require_coefficients,
    step_index,
)
from rewardedit.scorers import Scorer


@contextmanager
def reward_guidance(
    pipe: Any,
    scorer: Scorer,
    source: Float[Tensor, "b 3 h w"],
    instruction: Sequence[str],
    *,
    scale: float = 0.02,
    between: tuple[float, float] = (0.0, 1.0),
    source_caption: Sequence[str] | None = None,
    target_caption: Sequence[str] | None = None,
) -> Iterator[None]:
    """Within this context, calls of `pipe` follow the scorer's gradient at each step in `between`.

    Args:
        pipe: a stock InstructPix2Pix pipeline (SD or SDXL) with a DDPM, DDIM or LCM scheduler, or one with
            sigmas that predicts epsilon (Euler, Euler-ancestral); or a FLUX.1 Kontext, FLUX.2 klein or
            Qwen-Image-Edit pipeline with the scheduler of flow matching.
        source: RGB in [0, 1], at the output's size; a call makes one image for each, in this order. FLUX.2
            klein and Qwen-Image-Edit make one image a call.
        scale: how far each step moves the predicted clean latents, as the root mean square of the move; 0
            changes nothing, to the bit.
        between: the share of the denoising steps that it applies to, from 0 (the first) to 1.

    Raises:
        ValueError: for a scorer without gradient, a scheduler of another kind, a scale below 0; within the
            block, if a call makes another number of images.
    """
    scorer.require_gradient()
    if scale < 0:
        raise ValueError(f"scale: expected at least 0; got {scale}")

    require_between(between)
    family = family_of(pipe)
    scheduler = pipe.scheduler
    require_coefficients(scheduler)
    captions = {"source_caption": source_caption, "target_caption": target_caption}
    texts = {name: None if value is None else list(value) for name, value in captions.items()}
    device = next((p.device for p in scorer.parameters()), pipe.device)
    source = source.to(device)
    with torch.no_grad():
        prepared = scorer.prepare(source, list(instruction))
    step = scheduler.step

    height, width = source.shape[-2:]

    def uphill(stepped: Tensor) -> Tensor:
        clean = family.to_latents(stepped, height, width, pipe.vae_scale_factor)
        if len(clean) != len(source):
            raise ValueError(
                f"reward guidance: {len(source)} sources for {len(clean)} images; expected one for each"
            )

        def score(edited: Tensor) -> Tensor:
            return scorer(EditBatch(source, list(instruction), edited.to(device), **texts), prepared).mean()

        direction = ascent_direction(family, pipe.vae, score, clean)
        return (scale * family.from_latents(direction)).to(stepped.dtype)

    @functools.wraps(step)
    def guided(model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **options: Any) -> Any:
        if holds_for(between, scheduler, timestep):
            a, b = pred_x0_coefficients(scheduler, timestep, step_index(scheduler, timestep))
            model_output = model_output + uphill(a * sample + b * model_output) / b
        return step(model_output, timestep, sample, *args, **options)

    if not scale:
        yield
        return

    around = vars(scheduler).get("step")  # of an enclosing block, if there is one
    scheduler.step = guided
    try:
        yield
    finally:
        del scheduler.step
        if around is not None:
            scheduler.step = around


def ascent_direction(
    family: EditFamily, vae: Any, score: Callable[[Tensor], Tensor], clean: Float[Tensor, "b c h w"]
) -> Float[Tensor, "b c h w"]:
    """The direction in which a score of the decoded latents rises, float32,
    each row of root mean square 1 (or 0).

    A score's gradient with respect to one pixel shrinks with the number of pixels, below what float16
    holds: 5e-6 for `l1` at 256 pixels a side. The gradient at the image is therefore taken first, in float32,
    and goes through the decoder at unit size, which leaves its direction as it is.
    A decoder that overflows in float16 (SDXL's does) runs in float32.

    Args:
        score: of images (b, 3, h, w), a scalar: the sum or the mean over the rows.
    """
    direction = _ascent_direction(family, vae, score, clean)
    if vae.dtype == torch.float16 and not direction.isfinite().all():
        vae.to(torch.float32)
        try:
            direction = _ascent_direction(family, vae, score, clean)
        finally:
            vae.to(torch.float16)
    return direction


@torch.enable_grad()
def _ascent_direction(
    family: EditFamily, vae: Any, score: Callable[[Tensor], Tensor], clean: Tensor
) -> Tensor:
    latents = clean.detach().requires_grad_(True)
    edited = family.decode(vae, latents.to(vae.dtype))
    if not edited.isfinite().all():  # no scorer passes a gradient to it
        return torch.full_like(clean, torch.nan, dtype=torch.float32)
    image = edited.detach().requires_grad_(True)
    (at_picture,) = torch.autograd.grad(score(image), image)
    (at_latents,) = torch.autograd.grad(edited, latents, _unit(at_picture))
    return _unit(at_latents)


def _unit(gradient: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """Each row divided by its root mean square; rows of zeros stay."""
    gradient = gradient.float()
    # The largest entry is divided out first, since squares of small numbers vanish even in float32.
    gradient = gradient / gradient.abs().amax((1, 2, 3), keepdim=True).clamp_min(
        torch.finfo(torch.float32).tiny
    )
    size = gradient.square().mean((1, 2, 3), keepdim=True).sqrt()
    return gradient / size.clamp_min(torch.finfo(torch.float32).tiny)
