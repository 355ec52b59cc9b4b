"""Common part of editors that denoise the target's tokens beside the source's, by flow matching.

A token is a square of locations of the latents. The denoiser reads target and source as one sequence, and
only its output for the target is used, so that the source is never noised. It predicts the velocity ε − x_0
of x_t = (1 − σ) x_0 + σ ε (Lipman et al. 2023). Latents have the shape (b, c, h, w) everywhere but in its
calls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate.utils import extract_model_from_parallel
from diffusers import FlowMatchEulerDiscreteScheduler
from jaxtyping import Float, Int
from torch import Tensor

from rewardedit.diffusion.families.base import Conditioning, EditFamily
from rewardedit.diffusion.families.mask_hook import require_proportions

Size = tuple[int, int]  # rows and columns of tokens
# of a mask's message: without a size, Kontext's pipeline makes a square of any source
OR_SIZE = ", or call the pipeline with height= and width= of the source's proportions"


@dataclass(frozen=True)
class Texts:
    """Prompts of b edits, or the empty prompt for each of them."""

    embeds: Float[Tensor, "b n d"]
    pooled: Float[Tensor, "b e"] | None
    lengths: Int[Tensor, " b"] | None

    @classmethod
    def prompts(cls, cond: Conditioning) -> "Texts":
        """The prompts of a conditioning."""
        return cls(cond.embeds, cond.pooled, cond.lengths)

    @classmethod
    def empty(cls, cond: Conditioning) -> "Texts":
        """The empty prompt of a conditioning, for each of its edits."""
        b = len(cond.embeds)
        values = []
        for value in (cond.null_embeds, cond.null_pooled, cond.null_lengths):
            shared = value is not None and len(value) == 1
            values.append(value.expand(b, *value.shape[1:]) if shared else value)
        return cls(*values)


def pack(latents: Float[Tensor, "b c h w"], patch: int) -> Float[Tensor, "b n d"]:
    """Latents as tokens of patch × patch locations, row by row, each with its channels (c, patch, patch)."""
    b, c, h, w = latents.shape
    squares = latents.reshape(b, c, h // patch, patch, w // patch, patch).permute(0, 2, 4, 1, 3, 5)
    return squares.reshape(b, (h // patch) * (w // patch), c * patch * patch)


def unpack(tokens: Float[Tensor, "b n d"], size: Size, patch: int) -> Float[Tensor, "b c h w"]:
    """Inverse of `pack`, for so many rows and columns of tokens."""
    b, _, d = tokens.shape
    h, w = size
    squares = tokens.reshape(b, h, w, d // patch**2, patch, patch).permute(0, 3, 1, 4, 2, 5)
    return squares.reshape(b, d // patch**2, h * patch, w * patch)


def pack_mask(
    mask: Float[Tensor, "b 1 h w"], size: Size, patch: int, channels: int, rounding: int = 2
) -> Float[Tensor, "b n e"]:
    """A mask at any size as weights of so many channels of so many rows and columns of tokens.

    Args:
        rounding: tokens by whose multiples the pipeline may choose its sides.

    Raises:
        ValueError: for a mask of other proportions.
    """
    require_proportions(mask, *size, rounding, OR_SIZE)
    fitted = F.interpolate(mask, (size[0] * patch, size[1] * patch), mode="area")
    return pack(fitted, patch).repeat(1, 1, channels // patch**2)


class FlowEditor(EditFamily):
    """An editor by flow matching on tokens; only a LoRA of it is trained."""

    patch: int = 2  # locations of the latents on a token's side
    rounding: int = 1  # tokens by whose multiples the pipeline chooses the target's sides
    target_first: bool = True  # the target's tokens come before the source's
    lora_only = True
    gpu_dtype = torch.bfloat16  # float16 overflows
    guided_rows = 2  # with the prompt and with the empty one
    shift: Callable[[Any, int, int], float]  # μ of the schedule, of scheduler, tokens and steps

    def call(
        self,
        denoiser: Any,
        tokens: Float[Tensor, "b n d"],
        time: Float[Tensor, " b"],
        texts: Texts,
        sizes: tuple[Size, Size],
        guidance_scale: float | None,
    ) -> Float[Tensor, "b n e"]:
        """One call of the denoiser, as the pipeline makes it.

        Args:
            tokens: of target and source.
            time: from 0 to 1.
            sizes: rows and columns of tokens, of the target and of the source.
        """
        raise NotImplementedError

    def target_size(self, kwargs: dict[str, Any]) -> Size:
        """Rows and columns of the target's tokens, by the arguments of a denoiser's call."""
        raise NotImplementedError

    def has_guidance(self, guidance_scale: float | None) -> bool:
        """True if a step calls the denoiser with the empty prompt too."""
        return guidance_scale is not None

    def guide(self, positive: Tensor, negative: Tensor, guidance_scale: float) -> Float[Tensor, "b n e"]:
        """Classifier-free guidance, as the pipeline computes it."""
        return negative + guidance_scale * (positive - negative)

    def predict(
        self,
        denoiser: Any,
        x_t: Float[Tensor, "b c h w"],
        t: Tensor,
        cond: Conditioning,
        guidance_scale: float | None = None,
        image_guidance_scale: float = 1.0,
    ) -> Float[Tensor, "b c h w"]:
        """The velocity; guided, v(∅) + s_T · (v(T) − v(∅)), with M ∘ v(T) + (1 − M) ∘ v(∅) in the place of
        v(T) if the conditioning has a mask M. There is no guidance on the image.
        """
        sizes = (self.token_size(x_t), self.token_size(cond.source))
        target = pack(x_t, self.patch)
        source = pack(cond.source.to(x_t), self.patch)
        tokens = torch.cat([target, source] if self.target_first else [source, target], 1)
        time = t.expand(len(x_t)).to(x_t.dtype) / 1000
        n = target.shape[1]

        def velocity(texts: Texts) -> Tensor:
            output = self.call(denoiser, tokens, time, texts, sizes, guidance_scale)
            return output[:, :n] if self.target_first else output[:, -n:]

        model_pred = velocity(Texts.prompts(cond))
        if self.has_guidance(guidance_scale):
            assert guidance_scale is not None
            negative = velocity(Texts.empty(cond))
            if cond.mask is not None:
                mask = self.pack_mask(cond.mask, sizes[0], model_pred.shape[-1]).to(model_pred)
                model_pred = torch.lerp(negative, model_pred, mask)
            model_pred = self.guide(model_pred, negative, guidance_scale)
        return unpack(model_pred, sizes[0], self.patch).to(x_t.dtype)

    def token_size(self, latents: Float[Tensor, "b c h w"]) -> Size:
        """Rows and columns of tokens."""
        return latents.shape[-2] // self.patch, latents.shape[-1] // self.patch

    def pack_mask(self, mask: Float[Tensor, "b 1 h w"], size: Size, channels: int) -> Float[Tensor, "b n e"]:
        """A mask at any size as weights of the channels of tokens."""
        return pack_mask(mask, size, self.patch, channels, self.rounding)

    def target(
        self,
        scheduler: Any,
        x_0: Float[Tensor, "b c h w"],
        noise: Float[Tensor, "b c h w"],
        t: Int[Tensor, " b"],
    ) -> Float[Tensor, "b c h w"]:
        """The velocity ε − x_0."""
        return noise - x_0

    def loss(
        self,
        denoiser: Any,
        scheduler: Any,
        x_0: Float[Tensor, "b c h w"],
        noise: Float[Tensor, "b c h w"],
        t: Int[Tensor, " b"],
        cond: Conditioning,
        *,
        min_snr: float | None = None,
        weight: Float[Tensor, "b 1 h w"] | None = None,
    ) -> Float[Tensor, " b"]:
        """Flow matching: the mean squared error of the velocity ε − x_0, one value a row.

        Raises:
            ValueError: for min_snr, which weights predictions of noise.
        """
        if min_snr is not None:
            raise ValueError(
                f"min_snr: expected none for {type(self).__name__}, whose loss is flow matching; got "
                f"{min_snr:g}; leave train.min_snr out"
            )
        x_t, time = self.noised(scheduler, x_0, noise, t)
        model_pred = self.predict(denoiser, x_t, time, cond)
        target = self.target(scheduler, x_0, noise, t)
        error = F.mse_loss(model_pred.float(), target.float(), reduction="none")
        return (error if weight is None else error * weight).flatten(1).mean(1)

    def training_scheduler(self, scheduler: Any) -> Any:
        return FlowMatchEulerDiscreteScheduler.from_config(scheduler.config)

    def noised(
        self,
        scheduler: Any,
        x_0: Float[Tensor, "b c h w"],
        noise: Float[Tensor, "b c h w"],
        t: Int[Tensor, " b"],
    ) -> tuple[Float[Tensor, "b c h w"], Tensor]:
        """(1 − σ) x_0 + σ ε for σ = (t + 1) / `num_train_timesteps`: uniform times, without a shift."""
        steps = scheduler.config.num_train_timesteps
        sigma = (t.to(x_0.dtype) + 1) / steps
        weight = sigma[:, None, None, None]
        return (1 - weight) * x_0 + weight * noise, sigma * steps

    def training_times(self, timesteps: Tensor) -> Int[Tensor, " n"]:
        return (super().training_times(timesteps) - 1).clamp_min(0)  # `noised` counts from 0

    def clean(
        self,
        scheduler: Any,
        model_pred: Float[Tensor, "b c h w"],
        x_t: Float[Tensor, "b c h w"],
        t: Tensor,
    ) -> Float[Tensor, "b c h w"]:
        sigma = t.float() / scheduler.config.num_train_timesteps
        return x_t.float() - sigma[:, None, None, None] * model_pred.float()

    def set_timesteps(self, scheduler: Any, steps: int, latents: Float[Tensor, "b c h w"]) -> None:
        h, w = self.token_size(latents)
        sigmas = np.linspace(1.0, 1 / steps, steps)
        mu = type(self).shift(scheduler, h * w, steps)
        scheduler.set_timesteps(sigmas=sigmas, mu=mu, device=latents.device)
        scheduler.set_begin_index(0)

    def initial_latents(self, scheduler: Any, noise: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return noise

    def model_input(
        self, scheduler: Any, latents: Float[Tensor, "b c h w"], t: Tensor
    ) -> Float[Tensor, "b c h w"]:
        return latents

    def to_latents(self, stepped: Tensor, height: int, width: int, vae_factor: int) -> Tensor:
        side = 2 * vae_factor  # of the pixels of a token
        return unpack(stepped, (height // side, width // side), self.patch)

    def from_latents(self, latents: Float[Tensor, "b c h w"]) -> Tensor:
        return pack(latents, self.patch)

    def latent_scaling(self, vae: Any) -> float:
        return 1.0  # `encode_images` normalises

    def latent_shape(self, denoiser: Any, vae: Any, size: int) -> tuple[int, int, int]:
        side = self.patch * size // 2 ** len(vae.config.block_out_channels)
        return denoiser.config.in_channels // self.patch**2, side, side

    def side_multiple(self, pipe: Any) -> int:
        return 2 * pipe.vae_scale_factor

    def prompt_dim(self, denoiser: Any) -> int:
        return denoiser_config(denoiser).joint_attention_dim

    def save_lora(self, denoiser: Any, folder: Any) -> None:
        import diffusers
        from peft import get_peft_model_state_dict

        pipeline = getattr(diffusers, self.pipelines[0])
        pipeline.save_lora_weights(
            folder,
            transformer_lora_layers=get_peft_model_state_dict(denoiser),
            transformer_lora_adapter_metadata=denoiser.peft_config["default"].to_dict(),
        )


def denoiser_config(denoiser: Any) -> Any:
    """Configuration of a denoiser, bare or wrapped for training on several processes."""
    return extract_model_from_parallel(denoiser).config


def dynamic_shift(scheduler: Any, tokens: int, steps: int) -> float:
    """μ of a schedule that depends on the number of the target's tokens, as FLUX.1 and Qwen-Image have it."""
    from diffusers.pipelines.flux.pipeline_flux_kontext import calculate_shift

    config = scheduler.config
    return calculate_shift(
        tokens,
        config.get("base_image_seq_len", 256),
        config.get("max_image_seq_len", 4096),
        config.get("base_shift", 0.5),
        config.get("max_shift", 1.15),
    )
