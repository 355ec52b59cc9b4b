"""The architecture of the small vision-language model: CLIP's vision tower, a small Llama and a tokenizer
made from CLIP's.
"""

from typing import Any

import torch
from tokenizers.decoders import BPEDecoder
from torch import Tensor, nn
from transformers import (
    CLIPModel,
    CLIPTokenizer,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    OwlViTForObjectDetection,
    PreTrainedTokenizerFast,
)

from rewardedit.language.vlm import Vlm
from rewardedit.models import pretrained, resolve_model
from rewardedit.shapes.vocabulary import SIZE

IMAGE = "<image>"
CHAT = (
    "{% for turn in messages %}{% for part in turn['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% if turn['role'] == 'assistant' %}<|endoftext|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} :{% endif %}"
)
EXTRA_CHARACTERS = '0123456789?:"'  # characters of prompts and answers that CLIP's tokenizer lacks
GRID = [[SIZE, SIZE], [SIZE, 2 * SIZE]]  # one image, or two side by side
CONTEXT = 512  # tokens, of which an image has about 140


def fresh_vlm(name: str, width: int, layers: int) -> Vlm:
    """A randomly initialised language model with CLIP's vision tower.

    Raises:
        ValueError: if there is no CLIP model of that name.
    """
    try:
        clip = pretrained.load(CLIPModel, resolve_model(name), dtype=torch.float32)
        known = pretrained.load(CLIPTokenizer, resolve_model(name))
    except OSError as error:
        message = str(error).splitlines()[0]
        raise ValueError(f"clip {name!r}: {message}; train it first: shapes/clip") from error

    tokenizer = make_tokenizer(known)
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    model = LlavaNextForConditionalGeneration(
        LlavaNextConfig(
            vision_config=clip.config.vision_config,
            text_config=text,
            image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
            image_grid_pinpoints=GRID,
            vision_feature_layer=-1,
            projector_hidden_act="gelu",
        )
    )
    vision_of(model).load_state_dict(clip.vision_model.state_dict())
    return Vlm(model, make_processor(tokenizer, clip.config.vision_config.patch_size))


def make_tokenizer(known: CLIPTokenizer) -> PreTrainedTokenizerFast:
    """CLIP's tokenizer with further tokens: one for an image, and the characters that it lacks."""
    known.backend_tokenizer.no_truncation()  # CLIP's length limit is not this model's
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=known.backend_tokenizer,
        eos_token=known.eos_token,
        pad_token=known.eos_token,
        model_max_length=CONTEXT,
    )
    tokenizer.backend_tokenizer.decoder = BPEDecoder(suffix="</w>")  # CLIP's own class decodes in Python
    tokenizer.add_tokens([IMAGE], special_tokens=True)
    tokenizer.add_tokens(list(EXTRA_CHARACTERS))  # CLIP lacks these: each would become the end-of-text token
    tokenizer.chat_template = CHAT
    return tokenizer


def make_processor(tokenizer: PreTrainedTokenizerFast, patch_size: int) -> LlavaNextProcessor:
    """The tokenizer with an image processor for images of `SIZE` pixels, with values scaled to [−1, 1]."""
    half = [0.5, 0.5, 0.5]
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": SIZE},
        crop_size={"height": SIZE, "width": SIZE},
        image_grid_pinpoints=GRID,
        image_mean=half,
        image_std=half,
    )
    return LlavaNextProcessor(
        images,
        tokenizer,
        patch_size=patch_size,
        vision_feature_select_strategy="default",
        chat_template=CHAT,
        num_additional_image_tokens=1,
    )


def vision_of(model: Any) -> nn.Module:
    """A model's CLIP vision transformer."""
    tower = model.model.vision_tower
    return getattr(tower, "vision_model", tower)


def detector_tower(name: str) -> dict[str, Tensor]:
    """The weights of a detector's vision transformer, under CLIP's names.

    Raises:
        ValueError: if the detector is missing.
    """
    try:
        detector = pretrained.load(OwlViTForObjectDetection, resolve_model(name), dtype=torch.float32)
    except OSError as error:
        message = str(error).splitlines()[0]
        raise ValueError(f"tower {name!r}: {message}; train it first: shapes/detector") from error
    weights = detector.owlvit.vision_model.state_dict()
    return {key.replace("pre_layernorm", "pre_layrnorm"): value for key, value in weights.items()}


def deepen(model: Any, layers: int) -> None:
    """Adds layers on top of a language model's until it has so many. They are initialised to add nothing, so
    that the model's outputs do not change.

    Raises:
        ValueError: if it already has more.
    """
    decoder = model.model.get_decoder()
    config = model.config.text_config
    if layers < len(decoder.layers):
        raise ValueError(f"layers: the model to go on from has {len(decoder.layers)} already; got {layers}")
    for number in range(len(decoder.layers), layers):
        layer = type(decoder.layers[0])(config, layer_idx=number)
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
        decoder.layers.append(layer)
    config.num_hidden_layers = layers
