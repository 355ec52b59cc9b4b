"""Stable Diffusion 1.5's architecture with random weights, to measure the cost of full-size runs
without downloading weights.
"""

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    StableDiffusionInstructPix2PixPipeline,
    UNet2DConditionModel,
)
from transformers import (
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
)

from rewardedit.images import Preprocess
from rewardedit.models import pretrained, resolve_model
from rewardedit.scorers.vifi_clip import ViFiClip, make_temporal

NOISE = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}


def make_tokenizer() -> CLIPTokenizer:
    """The small CLIP's tokenizer, padding to the length that Stable Diffusion's texts have."""
    return pretrained.load(CLIPTokenizer, resolve_model("shapes/clip"), model_max_length=77)


def make_unet(narrow: bool = False) -> UNet2DConditionModel:
    """The UNet of an InstructPix2Pix editor (8 input channels, 860 M parameters);
    `narrow` makes its layers thinner.
    """
    return UNet2DConditionModel(
        sample_size=64,
        in_channels=8,
        out_channels=4,
        block_out_channels=(32, 32, 64, 64) if narrow else (320, 640, 1280, 1280),
        cross_attention_dim=32 if narrow else 768,
        attention_head_dim=8,
        norm_num_groups=16 if narrow else 32,
    )


def make_shallow_unet() -> UNet2DConditionModel:
    """A UNet of an editor whose attention blocks all have one shape."""
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=8,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        block_out_channels=(8, 16),
        layers_per_block=1,
        cross_attention_dim=32,
        attention_head_dim=2,
        norm_num_groups=4,
    )


def make_vae(narrow: bool = False) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8, 8, 16, 16) if narrow else (128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        latent_channels=4,
        norm_num_groups=8 if narrow else 32,
        sample_size=512,
    )


def make_text_encoder(tokenizer: CLIPTokenizer, narrow: bool = False) -> CLIPTextModel:
    sizes = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    if narrow:
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    return CLIPTextModel(CLIPTextConfig(vocab_size=len(tokenizer), **sizes, **special))


def make_pipeline(device: str = "cpu", narrow: bool = False) -> StableDiffusionInstructPix2PixPipeline:
    """An InstructPix2Pix pipeline of Stable Diffusion 1.5's size, float32;
    the weights are drawn on `device`.
    """
    tokenizer = make_tokenizer()
    with torch.device(device):
        pipe = StableDiffusionInstructPix2PixPipeline(
            vae=make_vae(narrow),
            text_encoder=make_text_encoder(tokenizer, narrow),
            tokenizer=tokenizer,
            unet=make_unet(narrow),
            scheduler=DDIMScheduler(**NOISE, clip_sample=False, set_alpha_to_one=False, steps_offset=1),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(device)


def make_clip(tokenizer: CLIPTokenizer) -> CLIPModel:
    """CLIP ViT-B/16 (86 M parameters in the image tower) for this tokenizer."""
    text = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    return CLIPModel(CLIPConfig(text_config=text, vision_config={"patch_size": 16, "hidden_size": 768}))


def save_clip(folder: Path) -> Path:
    """Writes CLIP ViT-B/16 with random weights as a checkpoint with tokenizer and image processor;
    returns the folder.
    """
    tokenizer = make_tokenizer()
    make_clip(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessorPil().save_pretrained(folder)
    return folder


def make_vifi_clip(tokenizer: CLIPTokenizer) -> ViFiClip:
    """ViFi-CLIP on CLIP ViT-B/16 with random weights."""
    clip = make_clip(tokenizer)
    preprocess = Preprocess(224, (0.5,) * 3, (0.25,) * 3, "stretch", "bicubic")
    return ViFiClip(clip, tokenizer, preprocess, make_temporal(clip)).eval().requires_grad_(False)
