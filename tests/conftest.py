"""Tiny real models, made from configs: nothing is mocked and nothing is downloaded."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionInstructPix2PixPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from rewardedit.assets import resolve
from rewardedit.cli import quiet

torch.set_num_threads(2)
quiet()


def tiny_unet(in_channels: int = 8) -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=in_channels,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(8, 16),
        layers_per_block=1,
        cross_attention_dim=16,
        attention_head_dim=2,
        norm_num_groups=4,
    )


def tiny_pipeline(in_channels: int = 8) -> StableDiffusionInstructPix2PixPipeline:
    """A random pipeline with every real part; pictures are encoded to an eighth... of 32 pixels: 16 × 16 latents."""
    torch.manual_seed(0)
    tokenizer = CLIPTokenizer.from_pretrained(resolve("shapes-clip"), model_max_length=32)
    text = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
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


@pytest.fixture(scope="session")
def tiny_editor(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a saved tiny pipeline."""
    folder: Path = tmp_path_factory.mktemp("editor")
    tiny_pipeline().save_pretrained(folder)
    return str(folder)
