"""Tiny real models, made from configs: nothing is mocked and nothing is downloaded."""

from typing import Any

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
    Gemma2Config,
    Gemma2ForCausalLM,
    PreTrainedTokenizerFast,
)

from rewardedit.data.worlds import world
from rewardedit.models import resolve_model
from rewardedit.scorer_spec import ScorerSpec, with_options


def small_tokenizer(**settings: Any) -> CLIPTokenizer:
    """The tokenizer of the small CLIP, which all tiny models share."""
    return CLIPTokenizer.from_pretrained(resolve_model("shapes/clip"), **settings)


def causal_tokenizer(**settings: Any) -> PreTrainedTokenizerFast:
    """The same for a model that writes: without CLIP's special tokens around a text."""
    return PreTrainedTokenizerFast(
        tokenizer_object=small_tokenizer().backend_tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        **settings,
    )


def tiny_gemma(words: int, **settings: Any) -> Gemma2ForCausalLM:
    """A random Gemma-2."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=words,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        **settings,
    )
    return Gemma2ForCausalLM(config)


def small(spec: ScorerSpec) -> ScorerSpec:
    """A scorer's spec with the small models of the offline world, where it names none itself."""
    return with_options(spec, world("shapes").scorers)


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
    tokenizer = small_tokenizer(model_max_length=32)
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
    """Stable Diffusion 1.5's architecture with narrower layers, one a level: four levels, eight-fold VAE,
    8 input channels.
    """
    torch.manual_seed(0)
    tokenizer = small_tokenizer(model_max_length=77)
    text = text_config(tokenizer, width=32, layers=2, heads=4)
    widths = (32, 32, 64, 64)
    return StableDiffusionInstructPix2PixPipeline(
        vae=AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(8, 8, 16, 16),
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
            layers_per_block=1,
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


def save_dino(folder: str, seed: int = 0) -> None:
    """Saves a random DINOv2 that, like the published ones, cuts the middle out of a larger image.

    The weights are small and many, so that the class token changes smoothly with the pixels: all of 100 draws
    keep the contract of scorers, and in 99 every row does; of 30 draws with half the width and weights three
    times as large, one broke it. Torch's own generator is not moved.
    """
    config = Dinov2Config(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=64,
        patch_size=8,
        initializer_range=0.1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Dinov2Model(config)
    model.save_pretrained(folder)
    processor = BitImageProcessorPil(size={"shortest_edge": 72}, crop_size={"height": 64, "width": 64})
    processor.save_pretrained(folder)


CHAT = (
    "{% for turn in messages %}{{ turn['role'] }}:"
    "{% for part in turn['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %} {{ part['text'] }}{% endif %}"
    "{% endfor %}{% if turn['role'] == 'assistant' %}<|endoftext|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
IMAGE_TOKENS = {
    "llava_next": "<image>",
    "idefics3": "<image>",
    "qwen2_5_vl": "<|vision_start|><|image_pad|><|vision_end|>",
}
VLMS = tuple(IMAGE_TOKENS)


def save_vlm(folder: str, kind: str, width: int = 32) -> None:
    """Saves a random vision-language model of a kind with its processor, which cuts images of 64 pixels and
    more into tiles.
    """

    torch.manual_seed(0)
    tokenizer = causal_tokenizer(bos_token="<|startoftext|>")
    special = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
    special += [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
    special += ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.chat_template = CHAT.replace("IMAGE", IMAGE_TOKENS[kind])
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    make = {"llava_next": llava_next, "idefics3": idefics3, "qwen2_5_vl": qwen2_5_vl}[kind]
    for part in make(tokenizer, text):
        part.save_pretrained(folder)


VISION = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def llava_next(tokenizer: Any, text: dict[str, Any]) -> list[Any]:
    """Model and processor."""
    import transformers as t

    pinpoints = [[32, 64], [64, 32], [64, 64]]
    config = t.LlavaNextConfig(
        vision_config=t.CLIPVisionConfig(**VISION, image_size=32, patch_size=8),
        text_config=t.LlamaConfig(**text),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=pinpoints,
        vision_feature_layer=-2,
    )
    images = t.LlavaNextImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, image_grid_pinpoints=pinpoints
    )
    processor = t.LlavaNextProcessor(
        images,
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=tokenizer.chat_template,
        num_additional_image_tokens=1,
    )
    return [t.LlavaNextForConditionalGeneration(config), processor]


def idefics3(tokenizer: Any, text: dict[str, Any]) -> list[Any]:
    """Model and processor."""
    import transformers as t

    config = t.Idefics3Config(
        vision_config={**VISION, "image_size": 32, "patch_size": 8},
        text_config=t.LlamaConfig(**text),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=tokenizer.pad_token_id,
    )
    images = t.Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    processor = t.Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template)
    return [t.Idefics3ForConditionalGeneration(config), processor]


QWEN_VISION = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 4,
}


def qwen2_5_vl(tokenizer: Any, text: dict[str, Any]) -> list[Any]:
    """Model, tokenizer and image processor: the whole processor wants torchvision for its videos."""
    import transformers as t

    vision = {
        **QWEN_VISION,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 32,
        "fullatt_block_indexes": [1],
    }
    tokens = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    config = t.Qwen2_5_VLConfig(
        vision_config=vision,
        text_config={**text, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
        **{name: tokenizer.convert_tokens_to_ids(token) for name, token in tokens.items()},
    )
    images = t.Qwen2VLImageProcessorPil(
        size={"shortest_edge": 256, "longest_edge": 4096}, patch_size=4, merge_size=2
    )
    return [t.Qwen2_5_VLForConditionalGeneration(config), tokenizer, images]


def save_judge(folder: str, kind: str = "llava_next", width: int = 32) -> str:
    """A tiny model with tokens for what a grade is written in, and logits that differ clearly."""
    import transformers

    save_vlm(folder, kind, width)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([*"0123456789", ":", "grade"])
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder)
    torch.manual_seed(1)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
