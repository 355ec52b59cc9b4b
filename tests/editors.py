"""Tiny pipelines of modern editors, each with every real part, from configs."""

import tempfile
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLFlux2,
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
    FluxKontextPipeline,
    FluxTransformer2DModel,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImageTransformer2DModel,
)
from diffusers.modular_pipelines.qwenimage import encoders
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from transformers import (
    AutoModelForImageTextToText,
    AutoTokenizer,
    CLIPTextModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5EncoderModel,
)

from rewardedit.language.vlm import load_processor
from tests.models import causal_tokenizer, save_vlm, small_tokenizer, text_config

CHAT = "{% for turn in messages %}<|startoftext|>{{ turn['content'] }}{% endfor %}"
QWEN_AREA = 64 * 64  # in the place of a million pixels


def scheduler() -> FlowMatchEulerDiscreteScheduler:
    """With a schedule that depends on the size, as the published ones."""
    return FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)


def flux_vae() -> AutoencoderKL:
    """An autoencoder as FLUX.1 has, with a shift of its latents."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        latent_channels=4,
        norm_num_groups=4,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.1,
        scaling_factor=1.5,
    )


def tiny_kontext(guidance_embeds: bool = True) -> FluxKontextPipeline:
    """A random FLUX.1 Kontext; an image of 32 pixels a side has 16 × 16 latents, 8 × 8 tokens."""
    torch.manual_seed(0)
    clip_tokenizer = small_tokenizer(model_max_length=32)
    t5_tokenizer = causal_tokenizer()
    t5 = T5Config(
        vocab_size=len(t5_tokenizer), d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, pad_token_id=1
    )
    pipe = FluxKontextPipeline(
        scheduler=scheduler(),
        vae=flux_vae(),
        text_encoder=CLIPTextModel(text_config(clip_tokenizer, width=8, layers=1, heads=2)),
        tokenizer=clip_tokenizer,
        text_encoder_2=T5EncoderModel(t5),
        tokenizer_2=t5_tokenizer,
        transformer=FluxTransformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=8,
            pooled_projection_dim=8,
            axes_dims_rope=(4, 4, 8),
            guidance_embeds=guidance_embeds,
        ),
    )
    return ready(pipe)


def tiny_klein(is_distilled: bool = False) -> Flux2KleinPipeline:
    """A random FLUX.2 klein; an image of 64 pixels a side has 16 × 16 latents and tokens."""
    torch.manual_seed(0)
    tokenizer = causal_tokenizer()
    tokenizer.chat_template = CHAT
    text = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=28,  # the pipeline takes the hidden states of layers 9, 18 and 27
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
    )
    vae = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
    )
    vae.bn.running_mean.uniform_(-0.5, 0.5)
    vae.bn.running_var.uniform_(0.5, 2.0)
    pipe = Flux2KleinPipeline(
        scheduler=scheduler(),
        vae=vae,
        text_encoder=Qwen3ForCausalLM(text),
        tokenizer=tokenizer,
        transformer=Flux2Transformer2DModel(
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=24,
            timestep_guidance_channels=8,
            axes_dims_rope=(4, 4, 4, 4),
            guidance_embeds=False,
        ),
        is_distilled=is_distilled,
    )
    return ready(pipe)


def tiny_distilled_klein() -> Flux2KleinPipeline:
    return tiny_klein(is_distilled=True)


def tiny_qwen(kind: Any = QwenImageEditPipeline) -> Any:
    """A random Qwen-Image-Edit; an image of 32 pixels a side has 16 × 16 latents, 8 × 8 tokens."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        save_vlm(folder, "qwen2_5_vl", width=32)
        text_encoder = AutoModelForImageTextToText.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        processor = load_processor(folder, "qwen2_5_vl")
    torch.manual_seed(0)
    pipe = kind(
        scheduler=scheduler(),
        vae=AutoencoderKLQwenImage(
            base_dim=8,
            z_dim=4,
            dim_mult=[1, 2],
            num_res_blocks=1,
            temperal_downsample=[False],
            latents_mean=[0.1, 0.0, -0.1, 0.2],
            latents_std=[1.0, 1.5, 0.5, 2.0],
        ),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        processor=processor,
        transformer=QwenImageTransformer2DModel(
            patch_size=2,
            in_channels=16,
            out_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            axes_dims_rope=(8, 4, 4),
        ),
    )
    return ready(pipe)


def tiny_qwen_plus() -> QwenImageEditPlusPipeline:
    return tiny_qwen(QwenImageEditPlusPipeline)


def ready(pipe: Any) -> Any:
    """The pipeline without a progress bar, its layers that begin at zero made random."""
    pipe.set_progress_bar_config(disable=True)
    for weight in pipe.transformer.parameters():
        if not bool(weight.any()):
            torch.nn.init.normal_(weight.data, std=0.02)
    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval()
    return pipe


def small_qwen_area(monkeypatch: Any) -> None:
    """Sources of Qwen-Image-Edit at 64 × 64 pixels in the place of a million."""
    for module in (pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus, encoders):
        plain = module.calculate_dimensions

        def small(area: float, ratio: float, plain: Any = plain) -> Any:
            return plain(QWEN_AREA, ratio)

        monkeypatch.setattr(module, "calculate_dimensions", small)
