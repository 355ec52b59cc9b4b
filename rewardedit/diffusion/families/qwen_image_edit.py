"""Qwen-Image-Edit (arXiv 2508.02324) and Qwen-Image-Edit-Plus (2509 and 2511).

The text encoder sees the source, so that embeddings are of a prompt and its source. The transformer gets the
source at about a million pixels, whatever the size of the edit.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rewardedit.diffusion.families.base import Conditioning, execution_device, size_inputs
from rewardedit.diffusion.families.flow import FlowEditor, Size, Texts, denoiser_config, dynamic_shift
from rewardedit.diffusion.families.mask_hook import MaskHook
from rewardedit.diffusion.families.true_cfg import TRUE_CFG, TwoCalls
from rewardedit.images import clamp_straight_through, to_pil
from rewardedit.language.vlm import load_processor
from rewardedit.models import pretrained
from rewardedit.prepared import Broadcast, Prepared

PLUS = "QwenImageEditPlusPipeline"
EMPTY = " "  # the negative prompt of the model's own examples
# tokens of a prompt with its source, for estimates: Plus sees 384 × 384 pixels, the first model 1024 × 1024
PROMPT_TOKENS = 512
SIDE = 1024  # of the area at which the transformer gets the source


class QwenImageEdit(FlowEditor):
    """Can be sampled from, guided, rolled out and fine-tuned by a LoRA."""

    pipelines = ("QwenImageEditPipeline", PLUS)
    loadable = pipelines
    rounding = 2  # 32 pixels
    one_row_a_call = True
    text_sees_source = True
    text_guidance = TRUE_CFG
    lora_targets = (
        "to_q",
        "to_k",
        "to_v",
        "to_out.0",
        "add_q_proj",
        "add_k_proj",
        "add_v_proj",
    )  # what the last block's to_add_out makes of the text is not used
    quantized_parts = ("transformer", "text_encoder")
    quantized_except = ("transformer_blocks.0.img_mod",)  # as in diffusers' own 4-bit Qwen-Image-Layered
    shift = staticmethod(dynamic_shift)

    def load(self, folder: str, class_name: str, dtype: torch.dtype) -> Any:
        import diffusers

        processor = load_processor(folder, "qwen2_5_vl", subfolder="processor")
        return pretrained.load(getattr(diffusers, class_name), folder, dtype=dtype, processor=processor)

    def default_sampling(self, pipe: Any) -> dict[str, Any]:
        return {**super().default_sampling(pipe), "guidance_scale": 4.0}  # the default of true_cfg_scale

    def readers(self, pipe: Any) -> list[tuple[Any, int]]:
        return [(pipe.tokenizer, pipe.tokenizer_max_length)]

    def guidance_options(self, guidance_scale: float, image_guidance_scale: float) -> dict[str, Any]:
        return {"true_cfg_scale": guidance_scale}

    @torch.no_grad()
    def encode(self, pipe: Any, source: Float[Tensor, "b 3 h w"], prompts: list[str]) -> Prepared:
        """Sources and prompts; edits have the sources' size."""
        inputs = super().encode(pipe, source, prompts).inputs
        return Prepared({**inputs, "negative_prompt": Broadcast(EMPTY), **size_inputs(source)})

    def call_inputs(self, encoded: Prepared) -> dict[str, Any]:
        inputs = super().call_inputs(encoded)
        return {**inputs, "image": inputs["image"][0]}  # in a list, it would not be resized

    @torch.no_grad()
    def encode_texts(
        self, pipe: Any, prompts: list[str], source: Float[Tensor, "b 3 h w"] | None = None
    ) -> dict[str, Tensor]:
        """The vision-language model's last hidden states, padded with zeros, and each prompt's number."""
        assert source is not None
        embeds = []
        for image, prompt in zip(source, prompts, strict=True):
            seen = seen_by_text_encoder(pipe, to_pil(image))
            embeds.append(pipe.encode_prompt([prompt], image=seen, device=execution_device(pipe))[0][0])
        lengths = torch.tensor(list(map(len, embeds)), device=embeds[0].device)
        padded = torch.nn.utils.rnn.pad_sequence(embeds, batch_first=True)
        return {"embeds": padded, "lengths": lengths}

    @torch.no_grad()
    def encode_images(self, pipe: Any, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
        """Latent modes, normalised by channel."""
        return encode_pixels(pipe, image * 2 - 1)

    @torch.no_grad()
    def encode_sources(self, pipe: Any, source: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
        """Latents of sources brought to about a million pixels, as the pipeline does."""
        width, height = source_size(source.shape[-1], source.shape[-2])
        return encode_pixels(pipe, pipe.image_processor.preprocess(list(map(to_pil, source)), height, width))

    def decode(self, vae: Any, latents: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 3 h2 w2"]:
        mean, std = norm(vae, latents)
        frames = (latents * std + mean).to(vae.dtype).unsqueeze(2)
        if torch.is_grad_enabled():
            decoded = decode_with_gradient(vae, frames)
        else:
            decoded = vae.decode(frames, return_dict=False)[0]
        return clamp_straight_through(decoded[:, :, 0].float() / 2 + 0.5)

    def checkpoint_decoder(self, vae: Any, enabled: bool) -> None:
        vae.decoder.gradient_checkpointing = enabled  # diffusers has the attribute, and does not use it

    def mask_hook(self, pipe: Any, mask: Float[Tensor, "b 1 h w"], between: tuple[float, float]) -> MaskHook:
        return TwoCalls(self, pipe, mask, between)

    def guides_text(self, options: Mapping[str, Any]) -> bool:
        return options.get("true_cfg_scale", 1.0) > 1  # `encode` gives the negative prompt

    def target_size(self, kwargs: dict[str, Any]) -> Size:
        return kwargs["img_shapes"][0][0][1:]

    def guide(self, positive: Tensor, negative: Tensor, guidance_scale: float) -> Float[Tensor, "b n e"]:
        """Guidance, with each token's norm brought back to that of the positive prediction."""
        guided = super().guide(positive, negative, guidance_scale)
        length = torch.norm(positive, dim=-1, keepdim=True)
        return guided * (length / torch.norm(guided, dim=-1, keepdim=True))

    def latent_shape(self, denoiser: Any, vae: Any, size: int) -> tuple[int, int, int]:
        side = size // 2 ** len(vae.config.temperal_downsample)
        return vae.config.z_dim, side, side

    def blank_conditioning(self, denoiser: Any, source: Float[Tensor, "b c h w"]) -> Conditioning:
        side = SIDE // 8  # the published autoencoder's
        seen = source.new_empty(len(source), source.shape[1], side, side)
        return Conditioning(source.new_empty(len(source), PROMPT_TOKENS, self.prompt_dim(denoiser)), seen)

    def call(
        self,
        denoiser: Any,
        tokens: Float[Tensor, "b n d"],
        time: Float[Tensor, " b"],
        texts: Texts,
        sizes: tuple[Size, Size],
        guidance_scale: float | None,
    ) -> Float[Tensor, "b n e"]:
        n = texts.embeds.shape[1]
        mask = None
        if texts.lengths is not None:
            places = torch.arange(n, device=tokens.device)
            mask = (places < texts.lengths[:, None].to(tokens.device)).long()
            mask = None if bool(mask.all()) else mask
        guidance = None
        if denoiser_config(denoiser).guidance_embeds:
            guidance = torch.full((len(tokens),), guidance_scale or 1.0, device=tokens.device)
        return denoiser(
            hidden_states=tokens,
            timestep=time,
            guidance=guidance,
            encoder_hidden_states_mask=mask,
            encoder_hidden_states=texts.embeds,
            img_shapes=[[(1, *size) for size in sizes]] * len(tokens),
            attention_kwargs={},
            return_dict=False,
        )[0]


def encode_pixels(pipe: Any, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h2 w2"]:
    """Latents of images in [−1, 1]."""
    frames = pixels.to(execution_device(pipe), pipe.vae.dtype).unsqueeze(2)
    modes = pipe.vae.encode(frames).latent_dist.mode()[:, :, 0]
    mean, std = norm(pipe.vae, modes)
    return (modes - mean) / std


def decode_with_gradient(vae: Any, frames: Float[Tensor, "b c 1 h w"]) -> Float[Tensor, "b 3 1 h2 w2"]:
    """Decodes as `vae.decode` does, but for its clamp, through which no gradient passes, and its copies of
    features for a video's next frame.
    """
    features = vae.post_quant_conv(frames)
    if not vae.decoder.gradient_checkpointing:
        return vae.decoder(features)
    decoded: Any = checkpoint(vae.decoder, features, use_reentrant=False)
    return decoded


def source_size(width: int, height: int) -> tuple[int, int]:
    """Width and height at which the transformer gets a source of this size."""
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit

    size = pipeline_qwenimage_edit.calculate_dimensions(SIDE * SIDE, width / height)
    return size[0], size[1]


def seen_by_text_encoder(pipe: Any, image: Image.Image) -> Any:
    """A source as the text encoder sees it."""
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus

    if type(pipe).__name__ != PLUS:
        width, height = source_size(*image.size)
        return pipe.image_processor.resize(image, height, width)
    width, height = plus.calculate_dimensions(plus.CONDITION_IMAGE_SIZE, image.width / image.height)
    return [pipe.image_processor.resize(image, height, width)]


def norm(vae: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (1, c, 1, 1) of latents, by channel."""
    mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1).to(like)
    std = torch.tensor(vae.config.latents_std).view(1, -1, 1, 1).to(like)
    return mean, std
