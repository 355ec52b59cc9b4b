"""InstructPix2Pix's training objective as plain functions over latents."""

from typing import Any

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler
from diffusers.training_utils import compute_snr
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


def conditioning_dropout(u: Float[Tensor, " b"], share: float = 0.05) -> tuple[Bool[Tensor, " b"], Bool[Tensor, " b"]]:
    """Which rows lose their text, and which their source image, for u uniform in [0, 1).

    With share p: text alone for u < p, both for p ≤ u < 2p, image alone for 2p ≤ u < 3p (InstructPix2Pix's released code;
    the paper says 5 % each).
    """
    return u < 2 * share, (u >= share) & (u < 3 * share)


def noising(scheduler: Any) -> DDPMScheduler:
    """How training noises latents on a pipeline's schedule, however that scheduler samples."""
    return DDPMScheduler.from_config(scheduler.config)


def diffusion_loss(
    unet: nn.Module,
    scheduler: Any,
    latents: Float[Tensor, "b c h w"],
    image_latents: Float[Tensor, "b c h w"],
    prompt_embeds: Float[Tensor, "b n d"],
    noise: Float[Tensor, "b c h w"],
    timesteps: Int[Tensor, " b"],
    min_snr: float | None = None,
    weight: Float[Tensor, "b 1 h w"] | None = None,
) -> Float[Tensor, " b"]:
    """Mean squared error of the prediction, one value a row (InstructPix2Pix Eq. 2).

    Args:
        latents: of the edited picture, scaled by the VAE's scaling factor.
        image_latents: of the source, modes, unscaled; zeros where the source is dropped.
        weight: of each place's error; None for equal weights.
        min_snr: γ of min-SNR weighting (Hang et al. 2023), None for equal weights.

    Raises:
        ValueError: for a scheduler whose prediction type is neither epsilon, v_prediction nor sample.
    """
    kind = scheduler.config.prediction_type
    if kind == "epsilon":
        wanted = noise
    elif kind == "v_prediction":
        wanted = scheduler.get_velocity(latents, noise, timesteps)
    elif kind == "sample":
        wanted = latents
    else:
        raise ValueError(f"prediction_type: expected epsilon, v_prediction or sample; got {kind!r}")
    noisy = scheduler.add_noise(latents, noise, timesteps)
    predicted = unet(torch.cat([noisy, image_latents], dim=1), timesteps, prompt_embeds, return_dict=False)[0]
    error = F.mse_loss(predicted.float(), wanted.float(), reduction="none")
    loss = (error if weight is None else error * weight).flatten(1).mean(1)
    if min_snr is None:
        return loss
    snr = compute_snr(scheduler, timesteps)
    by_noise = snr.clamp(max=min_snr) / {"epsilon": snr.clamp_min(1e-8), "v_prediction": snr + 1}.get(
        kind, torch.ones_like(snr)
    )
    return loss * by_noise


@torch.no_grad()
def widen_conv_in(unet: Any) -> None:
    """Gives a text-to-image UNet the channels for a source image: 4 become 8, the new weights are zero.

    A UNet that already has twice its output channels is left exactly as it is; re-creating its first layer would throw
    the image conditioning away.

    Raises:
        ValueError: for any other number of channels.
    """
    channels = unet.config.out_channels
    if unet.config.in_channels == 2 * channels:
        return
    if unet.config.in_channels != channels:
        raise ValueError(f"UNet: expected {channels} or {2 * channels} input channels; got {unet.config.in_channels}")
    old = unet.conv_in
    new = nn.Conv2d(2 * channels, old.out_channels, old.kernel_size, old.stride, old.padding)
    new = new.to(old.weight.device, old.weight.dtype)
    new.weight.zero_()
    new.weight[:, :channels].copy_(old.weight)
    assert new.bias is not None
    new.bias.copy_(old.bias)
    unet.conv_in = new
    unet.register_to_config(in_channels=2 * channels)
