"""The architecture of the small flow-matching editor: a stock `Flux2KleinPipeline` at small size.

The autoencoder has the layers and the weights of the InstructPix2Pix editor's, in FLUX.2's class: 2 × 2 of
its latents are a token, so that an image of 64 pixels a side has 8 × 8 tokens, and its source as many. The
text encoder is a Qwen3 of as many layers as the pipeline reads (hidden states of layers 9, 18 and 27), each
of them narrow. The tokenizer has the small CLIP's words and reads `TOKENS` of them: the pipeline's default of
512 would be four times as many tokens as the images have. Called by itself, the pipeline needs
max_sequence_length=24.
"""

from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLFlux2,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
)
from jaxtyping import Float
from torch import Tensor
from transformers import CLIPTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TOKENS = 24  # tokens of every prompt; the world's longest instruction has 16
LAYERS = 27  # of the text encoder: the pipeline reads hidden states up to this layer's
READ_LAYERS = (9, 18, 27)  # layers whose hidden states the pipeline reads
HEAD_DIM = 48  # width of a head of the denoiser
CHAT = "{% for turn in messages %}{{ turn['content'] }}{% endfor %}"


def make_vae(known: AutoencoderKL) -> AutoencoderKLFlux2:
    """The autoencoder in FLUX.2's class; its normalisation of patches is set by `normalise`."""
    config = known.config
    names = (
        "down_block_types",
        "up_block_types",
        "block_out_channels",
        "layers_per_block",
        "latent_channels",
        "norm_num_groups",
        "sample_size",
        "mid_block_add_attention",
    )
    vae = AutoencoderKLFlux2(**{name: config[name] for name in names})
    missing = vae.load_state_dict(known.state_dict(), strict=False)
    assert not missing.unexpected_keys
    assert all(name.startswith("bn.") for name in missing.missing_keys)
    return vae


def normalise(vae: AutoencoderKLFlux2, patches: Float[Tensor, "b c h w"]) -> None:
    """Sets the mean and the variance by which the autoencoder's patches are normalised to those of `patches`,
    which are not normalised.
    """
    vae.bn.running_mean.copy_(patches.mean((0, 2, 3)))
    vae.bn.running_var.copy_(patches.var((0, 2, 3)))


def make_tokenizer(known: CLIPTokenizer) -> PreTrainedTokenizerFast:
    """CLIP's words, and its tokens before and after a text; the chat template adds nothing."""
    known.backend_tokenizer.no_truncation()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=known.backend_tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        model_max_length=TOKENS,
    )
    tokenizer.chat_template = CHAT
    return tokenizer


def make_text_encoder(tokenizer: PreTrainedTokenizerFast, width: int) -> Qwen3ForCausalLM:
    """A randomly initialised language model that is deep and narrow."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=LAYERS,
        num_attention_heads=width // 16,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def make_denoiser(vae: Any, text_width: int, width: int, blocks: tuple[int, int]) -> Flux2Transformer2DModel:
    """A randomly initialised transformer whose prediction begins at zero.

    Args:
        blocks: numbers of its blocks with two streams (text and image), and with one.
    """
    denoiser = Flux2Transformer2DModel(
        in_channels=4 * vae.config.latent_channels,
        num_layers=blocks[0],
        num_single_layers=blocks[1],
        attention_head_dim=HEAD_DIM,
        num_attention_heads=width // HEAD_DIM,
        joint_attention_dim=len(READ_LAYERS) * text_width,
        timestep_guidance_channels=64,
        mlp_ratio=2.0,
        axes_dims_rope=(HEAD_DIM // 4,) * 4,
        guidance_embeds=False,
    )
    torch.nn.init.zeros_(denoiser.proj_out.weight)
    return denoiser


def make_pipeline(
    known: Any, width: int, blocks: tuple[int, int], text_width: int, shift: float
) -> Flux2KleinPipeline:
    """A pipeline with the autoencoder and the words of an InstructPix2Pix one, and the rest random.

    Args:
        shift: of the schedule; above 1, more steps at high noise.
    """
    tokenizer = make_tokenizer(known.tokenizer)
    vae = make_vae(known.vae)
    return Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=shift),
        vae=vae,
        text_encoder=make_text_encoder(tokenizer, text_width),
        tokenizer=tokenizer,
        transformer=make_denoiser(vae, text_width, width, blocks),
        is_distilled=False,
    )
