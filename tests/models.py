"""Tiny real models, made from configs: nothing is mocked and nothing is downloaded."""

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    EulerAncestralDiscreteScheduler,
    StableDiffusionInstructPix2PixPipeline,
    UNet2DConditionModel,
)
from transformers import (
    BitImageProcessorPil,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
    Dinov2Config,
    Dinov2Model,
)

from rewardedit.assets import resolve_model


def text_config(tokenizer: CLIPTokenizer, width: int, layers: int, heads: int, **more: int) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        **more,
    )


def tiny_unet(in_channels: int = 8, levels: int = 2) -> UNet2DConditionModel:
    deeper = levels - 1
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=in_channels,
        out_channels=4,
        down_block_types=("DownBlock2D", *("CrossAttnDownBlock2D",) * deeper),
        up_block_types=(*("CrossAttnUpBlock2D",) * deeper, "UpBlock2D"),
        block_out_channels=(8, *(16,) * deeper),
        layers_per_block=1,
        cross_attention_dim=16,
        attention_head_dim=2,
        norm_num_groups=4,
    )


def tiny_pipeline(in_channels: int = 8) -> StableDiffusionInstructPix2PixPipeline:
    """A random pipeline with every real part; an image of 32 pixels a side has 16 × 16 latents."""
    torch.manual_seed(0)
    tokenizer = CLIPTokenizer.from_pretrained(resolve_model("shapes-clip"), model_max_length=32)
    text = text_config(tokenizer, width=16, layers=1, heads=2)
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        latent_channels=4,
        norm_num_groups=4,
        sample_size=32,
    )
    return StableDiffusionInstructPix2PixPipeline(
        vae=vae,
        text_encoder=CLIPTextModel(text),
        tokenizer=tokenizer,
        unet=tiny_unet(in_channels),
        scheduler=DDIMScheduler(clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def narrow_pipeline() -> StableDiffusionInstructPix2PixPipeline:
    """Stable Diffusion 1.5's architecture with narrower layers: four levels, eight-fold VAE,
    8 input channels.
    """
    torch.manual_seed(0)
    tokenizer = CLIPTokenizer.from_pretrained(resolve_model("shapes-clip"), model_max_length=77)
    text = text_config(tokenizer, width=32, layers=2, heads=4)
    widths = (32, 32, 64, 64)
    return StableDiffusionInstructPix2PixPipeline(
        vae=AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(8, 8, 16, 16),
            layers_per_block=2,
            latent_channels=4,
            norm_num_groups=8,
            sample_size=512,
        ),
        text_encoder=CLIPTextModel(text),
        tokenizer=tokenizer,
        unet=UNet2DConditionModel(
            sample_size=64,
            in_channels=8,
            block_out_channels=widths,
            cross_attention_dim=32,
            attention_head_dim=8,
            norm_num_groups=16,
        ),
        scheduler=EulerAncestralDiscreteScheduler(
            beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def save_dino(folder: str) -> None:
    """Saves a random DINOv2 that, like the published ones, cuts the middle out of a larger image."""
    torch.manual_seed(0)
    config = Dinov2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=64,
        patch_size=8,
        initializer_range=0.3,
    )
    Dinov2Model(config).save_pretrained(folder)
    BitImageProcessorPil(size={"shortest_edge": 72}, crop_size={"height": 64, "width": 64}).save_pretrained(
        folder
    )
