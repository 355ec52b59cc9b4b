"""Editors by flow matching at their full size, on `meta`, for estimates of memory."""

from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLFlux2,
    AutoencoderKLQwenImage,
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
    QwenImageTransformer2DModel,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5EncoderModel,
)

from rewardedit.diffusion.families.flux2_klein import Flux2Klein
from rewardedit.diffusion.families.kontext import FluxKontext
from rewardedit.diffusion.families.qwen_image_edit import QwenImageEdit
from rewardedit.training.memory.blueprint import Blueprint

FLUX_VAE: dict[str, Any] = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
    "latent_channels": 16,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
}
CLIP_L = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
T5_XXL = {
    "vocab_size": 32128,
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
}
# FLUX.2-klein-base-4B and the Qwen3-4B that reads its prompts
KLEIN = {
    "num_layers": 5,
    "num_single_layers": 20,
    "num_attention_heads": 24,
    "joint_attention_dim": 7680,
    "guidance_embeds": False,
}
QWEN3 = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
QWEN_VL_TEXT = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "rope_scaling": {"rope_type": "default", "mrope_section": [16, 24, 24]},
}
QWEN_VL_VISION = {
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "depth": 32,
    "num_heads": 16,
    "out_hidden_size": 3584,
}


def kontext(size: int) -> Blueprint:
    """FLUX.1-Kontext-dev."""
    with torch.device("meta"):
        transformer = FluxTransformer2DModel(guidance_embeds=True)
        vae = AutoencoderKL.from_config(FLUX_VAE)
        clip = CLIPTextModel(CLIPTextConfig(**CLIP_L))
        t5 = T5EncoderModel(T5Config(**T5_XXL))
    return Blueprint.make(FluxKontext(), transformer, vae, [clip, t5], size)


def klein(size: int) -> Blueprint:
    """FLUX.2-klein-base-4B."""
    with torch.device("meta"):
        transformer = Flux2Transformer2DModel(**KLEIN)
        text_encoder = Qwen3ForCausalLM(Qwen3Config(**QWEN3))
        vae = AutoencoderKLFlux2()
    return Blueprint.make(Flux2Klein(), transformer, vae, [text_encoder], size)


def qwen_image_edit(size: int) -> Blueprint:
    """Qwen-Image-Edit-2511."""
    with torch.device("meta"):
        transformer = QwenImageTransformer2DModel()
        config = Qwen2_5_VLConfig(text_config=QWEN_VL_TEXT, vision_config=QWEN_VL_VISION)
        text_encoder = Qwen2_5_VLForConditionalGeneration(config)
        vae = AutoencoderKLQwenImage()
    return Blueprint.make(QwenImageEdit(), transformer, vae, [text_encoder], size)


EDITORS = {
    "kontext-refl": kontext,
    "klein-refl": klein,
    "klein-refl-24gb": klein,
    "qwen-image-edit-refl": qwen_image_edit,
    "klein-nft": klein,
    "qwen-image-edit-nft": qwen_image_edit,
    "kontext-flow-grpo": kontext,
}
