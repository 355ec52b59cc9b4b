"""InstructPix2Pix (Brooks et al. 2023), on Stable Diffusion and on SDXL,
and models fine-tuned from it (MagicBrush, HIVE).

The denoiser is a UNet whose first layer takes the source's latents as further channels. The source's latents
are modes and are not scaled by the VAE's factor; those that are denoised are. Guidance has two scales and
three predictions: with text and image, with the image only, and with neither.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.training_utils import compute_snr
from jaxtyping import Float, Int
from torch import Tensor, nn

from rewardedit.diffusion.families.base import Conditioning, EditFamily, execution_device, size_inputs
from rewardedit.diffusion.families.mask_hook import MaskHook, require_proportions
from rewardedit.images import clamp_straight_through
from rewardedit.language.texts import note_cut, tokenize
from rewardedit.models import pretrained
from rewardedit.prepared import Prepared
from rewardedit.reward_prompt import RewardEmbedding

SD = "StableDiffusionInstructPix2PixPipeline"
SDXL = "StableDiffusionXLInstructPix2PixPipeline"
SDXL_EMBEDS = (
    "prompt_embeds",
    "negative_prompt_embeds",
    "pooled_prompt_embeds",
    "negative_pooled_prompt_embeds",
)


class InstructPix2Pix(EditFamily):
    """Can be sampled from, guided, rolled out and fine-tuned; SDXL's can be sampled from and guided."""

    pipelines = (SD, SDXL)
    loadable = (SD, SDXL, "StableDiffusionPipeline")
    denoiser_name = "unet"
    lora_targets = ("to_k", "to_q", "to_v", "to_out.0")
    text_guidance = "guidance_scale above 1 and image_guidance_scale of at least 1"

    def load(self, folder: str, class_name: str, dtype: torch.dtype) -> Any:
        import diffusers

        if class_name == SDXL:
            return pretrained.load(diffusers.StableDiffusionXLInstructPix2PixPipeline, folder, dtype=dtype)
        no_checker = {"safety_checker": None, "requires_safety_checker": False}
        return pretrained.load(
            diffusers.StableDiffusionInstructPix2PixPipeline, folder, dtype=dtype, **no_checker
        )

    @torch.no_grad()
    def encode(
        self,
        pipe: Any,
        source: Float[Tensor, "b 3 h w"],
        prompts: list[str],
        embedding: RewardEmbedding | None = None,
        label: int | None = None,
    ) -> Prepared:
        """Inputs for calls of the pipeline; with a learned reward `embedding`,
        every prompt gets its vector for `label`.
        """
        embeds = self._embeds(pipe, prompts, embedding, label)
        device = execution_device(pipe)
        # diffusers takes a batch with any value below 0 for one in [-1, 1], and would not normalise its rows.
        image = pipe.image_processor.preprocess(source.clamp(0, 1).to(device))
        dtype = embeds["prompt_embeds"].dtype
        latents = pipe.prepare_image_latents(image, len(source), 1, dtype, device, False)
        if not _is_sdxl(pipe):
            return Prepared({**embeds, "image": latents})
        if pipe.is_cosxl_edit:  # its pipeline scales them once more when it is called
            latents = latents / pipe.vae.config.scaling_factor
        return Prepared({**embeds, "image": latents, **size_inputs(source)})

    def _embeds(
        self, pipe: Any, prompts: list[str], embedding: RewardEmbedding | None, label: int | None
    ) -> dict[str, Tensor]:
        if _is_sdxl(pipe):
            for tokenizer in (pipe.tokenizer, pipe.tokenizer_2):
                if tokenizer is not None:
                    note_cut(tokenizer, prompts, tokenizer.model_max_length, "the editor")
            return dict(
                zip(SDXL_EMBEDS, pipe.encode_prompt(prompts, device=execution_device(pipe)), strict=True)
            )
        embeds = self.encode_prompts(pipe, prompts)
        null_embeds = self.encode_prompts(pipe, [""]).expand(len(prompts), -1, -1)
        if embedding is not None and label is not None:
            labels = torch.full((len(prompts),), label, device=execution_device(pipe))
            null_labels = torch.full_like(labels, embedding.vectors.num_embeddings - 1)
            embeds = embedding(embeds, labels)
            null_embeds = embedding(null_embeds, null_labels)
        return {"prompt_embeds": embeds, "negative_prompt_embeds": null_embeds}

    def guidance_options(self, guidance_scale: float, image_guidance_scale: float) -> dict[str, Any]:
        return {"guidance_scale": guidance_scale, "image_guidance_scale": image_guidance_scale}

    def mask_hook(self, pipe: Any, mask: Float[Tensor, "b 1 h w"], between: tuple[float, float]) -> MaskHook:
        return OneCall(pipe, mask, between)

    def guides_text(self, options: Mapping[str, Any]) -> bool:
        return super().guides_text(options) and options["image_guidance_scale"] >= 1

    def takes_source(self, denoiser: Any) -> bool:
        return denoiser.config.in_channels > denoiser.config.out_channels

    @torch.no_grad()
    def add_source_channels(self, denoiser: Any) -> None:
        """Gives a text-to-image UNet the channels for a source image: 4 become 8, the new weights are zero.

        A UNet that already has twice its output channels is left exactly as it is; re-creating its first
        layer would throw the image conditioning away.

        Raises:
            ValueError: for any other number of channels.
        """
        channels = denoiser.config.out_channels
        if denoiser.config.in_channels == 2 * channels:
            return
        if denoiser.config.in_channels != channels:
            raise ValueError(
                f"UNet: expected {channels} or {2 * channels} input channels; got "
                f"{denoiser.config.in_channels}"
            )

        old = denoiser.conv_in
        new = nn.Conv2d(2 * channels, old.out_channels, old.kernel_size, old.stride, old.padding)
        new = new.to(old.weight.device, old.weight.dtype)
        new.weight.zero_()
        new.weight[:, :channels].copy_(old.weight)
        assert new.bias is not None
        new.bias.copy_(old.bias)
        denoiser.conv_in = new
        denoiser.register_to_config(in_channels=2 * channels)

    def save_lora(self, denoiser: Any, folder: Path) -> None:
        from diffusers import StableDiffusionInstructPix2PixPipeline
        from diffusers.utils import convert_state_dict_to_diffusers
        from peft import get_peft_model_state_dict

        layers = convert_state_dict_to_diffusers(get_peft_model_state_dict(denoiser))
        # with its configuration, or its alpha would be taken for its rank
        StableDiffusionInstructPix2PixPipeline.save_lora_weights(
            folder,
            unet_lora_layers=layers,
            unet_lora_adapter_metadata=denoiser.peft_config["default"].to_dict(),
        )

    def prompt_dim(self, denoiser: Any) -> int:
        return denoiser.config.cross_attention_dim

    def tokenize(self, pipe: Any, prompts: list[str]) -> Any:
        tokenizer = pipe.tokenizer
        return tokenize(tokenizer, prompts, tokenizer.model_max_length, "the editor", padding="max_length")

    @torch.no_grad()
    def encode_prompts(self, pipe: Any, prompts: list[str]) -> Float[Tensor, "b n d"]:
        """The text encoder's last hidden states.

        Raises:
            ValueError: for a pipeline with two text encoders (SDXL), which this does not cover.
        """
        if _is_sdxl(pipe):
            raise ValueError(
                "expected an editor with one text encoder; SDXL editors cannot be fine-tuned here"
            )
        # The pipeline's device is found by a walk through all of its modules.
        tokens = self.tokenize(pipe, prompts).to(pipe.text_encoder.device)
        is_masked = getattr(pipe.text_encoder.config, "use_attention_mask", False)
        mask = tokens.attention_mask if is_masked else None
        return pipe.text_encoder(tokens.input_ids, attention_mask=mask)[0]

    @torch.no_grad()
    def encode_images(self, pipe: Any, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
        """Latent modes, unscaled; those that are denoised are scaled by `vae.config.scaling_factor`."""
        image = (image * 2 - 1).to(execution_device(pipe), pipe.vae.dtype)
        return pipe.vae.encode(image).latent_dist.mode()

    def decode(self, vae: Any, latents: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 3 h2 w2"]:
        """Decodes latents that are scaled by the VAE's factor to images, RGB in [0, 1],
        with a gradient also where they saturate.

        `vae.enable_gradient_checkpointing()` saves memory:
        the gradient then needs the activations of one block at a time.
        """
        decoded = vae.decode(latents / vae.config.scaling_factor, return_dict=False)[0]
        return clamp_straight_through(decoded.float() / 2 + 0.5)

    def predict(
        self,
        denoiser: Any,
        x_t: Float[Tensor, "b c h w"],
        t: Tensor,
        cond: Conditioning,
        guidance_scale: float | None = None,
        image_guidance_scale: float = 1.0,
    ) -> Float[Tensor, "b c h w"]:
        """The UNet's prediction; guided, e(∅, ∅) + s_T · M ∘ (e(T, I) − e(∅, I)) + s_I · (e(∅, I) − e(∅, ∅)).

        That is InstructPix2Pix's Eq. 3, with the mask M of BPM's Eq. 4 if the conditioning has one.
        """
        embeds = cond.embeds
        source = cond.source
        if guidance_scale is not None:
            assert cond.null_embeds is not None
            null_embeds = cond.null_embeds.expand(len(embeds), -1, -1)
            embeds = torch.cat([embeds, null_embeds, null_embeds])
            source = torch.cat([source, source, torch.zeros_like(source)])
            x_t = torch.cat([x_t] * 3)
            t = t if t.numel() == 1 else torch.cat([t] * 3)
        model_pred = denoiser(torch.cat([x_t, source], dim=1), t, embeds, return_dict=False)[0]
        if guidance_scale is None:
            return model_pred
        text, image, uncond = model_pred.chunk(3)
        if cond.mask is not None:
            text = torch.lerp(image, text, cond.mask.to(text))
        return uncond + guidance_scale * (text - image) + image_guidance_scale * (image - uncond)

    def target(
        self,
        scheduler: Any,
        x_0: Float[Tensor, "b c h w"],
        noise: Float[Tensor, "b c h w"],
        t: Int[Tensor, " b"],
    ) -> Float[Tensor, "b c h w"]:
        """The noise, the velocity or the clean latents, by the scheduler's prediction type.

        Raises:
            ValueError: for another prediction type.
        """
        prediction_type = scheduler.config.prediction_type
        if prediction_type == "epsilon":
            return noise
        if prediction_type == "v_prediction":
            return scheduler.get_velocity(x_0, noise, t)
        if prediction_type == "sample":
            return x_0
        raise ValueError(
            f"prediction_type: expected epsilon, v_prediction or sample; got {prediction_type!r}"
        )

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
        """Mean squared error of the prediction, one value a row (InstructPix2Pix Eq. 2).

        Args:
            x_0: latents of the edited image, scaled by the VAE's scaling factor.
            cond: with a source of zeros in rows that drop it.
            min_snr: γ of min-SNR weighting (Hang et al. 2023), None for equal weights.
            weight: of the error at each location; None for equal weights.

        Raises:
            ValueError: for a scheduler whose prediction type is neither epsilon, v_prediction nor sample.
        """
        target = self.target(scheduler, x_0, noise, t)
        model_pred = self.predict(denoiser, scheduler.add_noise(x_0, noise, t), t, cond)
        error = F.mse_loss(model_pred.float(), target.float(), reduction="none")
        loss = (error if weight is None else error * weight).flatten(1).mean(1)
        if min_snr is None:
            return loss
        snr = compute_snr(scheduler, t)
        divisor = {"epsilon": snr.clamp_min(1e-8), "v_prediction": snr + 1, "sample": torch.ones_like(snr)}
        return loss * (snr.clamp(max=min_snr) / divisor[scheduler.config.prediction_type])


class OneCall(MaskHook):
    """One call with rows [text, image, unconditional]; the text rows become lerp(image, text, M)."""

    def __call__(self, denoiser: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        sample = args[0] if args else kwargs["sample"]
        timestep = args[1] if len(args) > 1 else kwargs["timestep"]
        model_pred = output[0]
        n, (h, w) = len(model_pred) // 3, model_pred.shape[-2:]
        if self.begins() or self.fitted is None:
            self.fitted = self._fit(sample, n, h, w).to(model_pred)
        if not self.holds_for(timestep):
            return None
        text, image, uncond = model_pred.chunk(3)
        guided = torch.cat([torch.lerp(image, text, self.fitted), image, uncond])
        return (guided, *output[1:]) if isinstance(output, tuple) else type(output)(sample=guided)

    def _fit(self, sample: Tensor, n: int, h: int, w: int) -> Tensor:
        """The mask at the latents' size.

        Raises:
            ValueError: for a call without guidance, or a mask of another shape than the latents.
        """
        uncond_source = sample[2 * n :, sample.shape[1] // 2 :]
        if len(sample) % 3 or bool(uncond_source.any()):
            raise InstructPix2Pix().unguided()
        require_proportions(self.mask, h, w)
        return F.interpolate(self.rows(n), (h, w), mode="area")


def _is_sdxl(pipe: Any) -> bool:
    return getattr(pipe, "text_encoder_2", None) is not None
