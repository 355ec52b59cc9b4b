"""GPU memory of full-size recipes, written into their headers: python benchmarks/memory.py [RECIPE …] --write

Needs neither a GPU nor weights: the models are Stable Diffusion 1.5's editor, FLUX.1 Kontext, FLUX.2 klein
base, Qwen-Image-Edit, ViFi-CLIP on ViT-B/16, DINOv2-base, Qwen2.5-VL, Idefics3-8B and LLaVA-NeXT-8B, created
without data on the `meta` device.
"""

import re
import tempfile
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from command_line import read_command_line
from diffusers import AutoencoderKL, UNet2DConditionModel
from editors import EDITORS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPVisionConfig,
    Dinov2Config,
    Dinov2Model,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

from rewardedit.cli import load_recipe, recipe_path
from rewardedit.data import require_size
from rewardedit.data.datasets import images_of
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.images import Preprocess
from rewardedit.language.vlm import Vlm, load_processor
from rewardedit.models import pretrained, resolve_model
from rewardedit.scorer_spec import ScorerSpec, read_spec
from rewardedit.scorers import Scorer
from rewardedit.scorers.adiee_text import QUESTIONS, question
from rewardedit.scorers.preservation import DinoI
from rewardedit.scorers.vifi_clip import ViFiClip, make_temporal
from rewardedit.scorers.vlm_judge import VlmJudge
from rewardedit.scorers.vlm_judge_prompts import chat, questions
from rewardedit.trainers import adiee_scorer, dpo, vifi_clip, vlm_sft
from rewardedit.training.memory.blueprint import Blueprint
from rewardedit.training.memory.peak import GIB, table
from rewardedit.training.memory.scorer import scorer_step
from rewardedit.training.memory.stages import online_memory, refl_memory, reward_conditioned_memory
from rewardedit.training.memory.vlm import sft_step
from rewardedit.training.online import OnlineRecipe
from rewardedit.training.preference_plan import memory_of_stages

UNET: dict[str, Any] = {
    "sample_size": 64,
    "in_channels": 8,
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
}
VAE: dict[str, Any] = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
    "latent_channels": 4,
}
WIDE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
OF_EDITORS = (
    "magicbrush-reward-conditioned",
    "magicbrush-reward-conditioned-lora-24gb",
    "magicbrush-refl",
    "magicbrush-refl-24gb",
    "instruct-pix2pix-dpo",
    *EDITORS,
)
OF_VLMS = ("adiee-scorer", "adiee-scorer-24gb", "captioner", "dice-detector", "dice-coherence")
RECIPES = (*OF_EDITORS, "humanedit-vifi-clip", *OF_VLMS)
# Qwen2.5-VL's language models; their vision towers are the same.
QWEN: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-VL-7B-Instruct": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    },
    "Qwen/Qwen2.5-VL-3B-Instruct": {
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
}
QWEN_VISION = {"hidden_size": 1280, "intermediate_size": 3420, "depth": 32, "num_heads": 16}
QWEN_TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
# LLaVA-NeXT on Llama-3-8B, with CLIP ViT-L/14 for tiles of 336 pixels.
LLAVA_TEXT = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128320,
    "max_position_embeddings": 8192,
}
LLAVA_VISION = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
# Idefics3-8B: Llama-3-8B with SigLIP's shape-optimised tower for tiles of 364 pixels.
IDEFICS_TEXT = {"model_type": "llama", **LLAVA_TEXT, "vocab_size": 128259, "max_position_embeddings": 131072}
IDEFICS_VISION = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 364,
    "patch_size": 14,
}
# Tokens of the longest prompts: two images of 4 × 4 tiles and a small copy each, with 169 tokens and 3 marks
# a tile; one image of 512 pixels with 28 × 28 pixels a token.
PROMPT_TOKENS = {"idefics3": 2 * 17 * (169 + 3) + 256, "qwen2_5_vl": 18 * 18 + 128}
NARROW_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}
NARROW_VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
LLAVA_GRIDS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
LLAVA_CHAT = (
    "{% for turn in messages %}user{% for part in turn['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
    "assistant"
)
QWEN_CHAT = (
    "{% for turn in messages %}<|im_start|>{{ turn['role'] }}\n{% for part in turn['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEAD = "# Memory, GiB (benchmarks/memory.py): "


def scorer(spec: ScorerSpec) -> Scorer:
    """A scorer that the recipes name, at its true size, on `meta`."""
    ((name, term),) = read_spec(spec).items()
    if name == "vlm_judge":
        return judge(**term.options)
    tokenizer = pretrained.load(AutoTokenizer, resolve_model("shapes/clip"))
    preprocess = Preprocess(224, (0.5,) * 3, (0.25,) * 3)
    with torch.device("meta"):
        if name == "dino_i":
            return (
                DinoI(Dinov2Model(Dinov2Config(**WIDE)), preprocess, against="target")
                .eval()
                .requires_grad_(False)
            )
        assert name == "vifi_clip"
        clip = CLIPModel(CLIPConfig(vision_config={"patch_size": 16}))
        return ViFiClip(clip, tokenizer, preprocess, make_temporal(clip)).eval().requires_grad_(False)


def judge(checkpoint: str, dtype: str = "bfloat16") -> VlmJudge:
    """A judge with Qwen2.5-VL, in a GPU's default type."""
    model = qwen(checkpoint, getattr(torch, dtype)).eval()
    return VlmJudge(Vlm(model, qwen_processor()), checkpoint)


def llava(device: str = "meta", narrow: bool = False) -> Vlm:
    """LLaVA-NeXT-8B with random weights, in bf16 except on a CPU, and a tokenizer that has a token for
    each word of the questions; `narrow` makes its layers thinner and its tiles smaller.
    """
    asked = [question(number, "", "pair") for number in range(len(QUESTIONS))]
    tokenizer = tokenizer_of(asked, ["<image>"])
    tokenizer.chat_template = LLAVA_CHAT
    vision, text = (NARROW_VISION, NARROW_TEXT) if narrow else (LLAVA_VISION, LLAVA_TEXT)
    side, patch = vision["image_size"], vision["patch_size"]
    grids = [[side * size // 336 for size in grid] for grid in LLAVA_GRIDS]
    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(**vision),
        text_config=LlamaConfig(**text),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=grids,
    )
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": side},
        crop_size={"height": side, "width": side},
        image_grid_pinpoints=grids,
    )
    processor = LlavaNextProcessor(
        images,
        tokenizer,
        patch_size=patch,
        vision_feature_select_strategy="default",
        chat_template=LLAVA_CHAT,
        num_additional_image_tokens=1,
    )
    torch.set_default_dtype(torch.float32 if device == "cpu" else torch.bfloat16)
    try:
        with torch.device(device):
            model = LlavaNextForConditionalGeneration(config)
    finally:
        torch.set_default_dtype(torch.float32)
    return Vlm(model.requires_grad_(False), processor)


def qwen(checkpoint: str, dtype: torch.dtype) -> Any:
    """Qwen2.5-VL on `meta`."""
    processor = qwen_processor()
    tokens = {name: processor.tokenizer.convert_tokens_to_ids(text) for name, text in QWEN_TOKENS.items()}
    text = QWEN[checkpoint]
    vision = {**QWEN_VISION, "out_hidden_size": text["hidden_size"]}
    rope = {"rope_scaling": {"rope_type": "default", "mrope_section": [16, 24, 24]}}
    config = Qwen2_5_VLConfig(text_config={**text, **rope}, vision_config=vision, **tokens)
    with torch.device("meta"):
        return Qwen2_5_VLForConditionalGeneration(config).to(dtype).requires_grad_(False)


def idefics3() -> Any:
    """Idefics3-8B on `meta`, in bf16."""
    config = Idefics3Config(vision_config=IDEFICS_VISION, text_config=IDEFICS_TEXT, scale_factor=2)
    with torch.device("meta"):
        return Idefics3ForConditionalGeneration(config).to(torch.bfloat16).requires_grad_(False)


def sft_training(config: vlm_sft.Config) -> tuple[int, int]:
    """Bytes and operations of a micro-batch's step of a captioner's, or of DICE's training."""
    model = idefics3() if "Idefics3" in config.model else qwen(config.model, torch.bfloat16)
    tokens = PROMPT_TOKENS[model.config.model_type]
    train = config.train
    return sft_step(model, config.lora_rank, train.micro_batch_size, tokens, train.gradient_checkpointing)


def scorer_training(config: adiee_scorer.Config) -> tuple[int, int]:
    """Bytes and operations of a micro-batch's step that trains the ADIEE scorer."""
    scorer, _ = adiee_scorer.make_trainable(config, llava())
    side = require_size(images_of(config.data))
    return scorer_step(scorer, config.train, config.train.shares()[0].stop, side)


def vlm_step(config: adiee_scorer.Config | vlm_sft.Config) -> tuple[int, int]:
    """Bytes and operations of a micro-batch's step of a vision-language model."""
    return scorer_training(config) if isinstance(config, adiee_scorer.Config) else sft_training(config)


def trainings(recipe: str, words: Sequence[str] = ()) -> list[Any]:
    """Settings of a recipe's training, or of those of its phases."""
    _, config = load_recipe(recipe, words)
    return [phase.settings for phase in config.phases.values()] if hasattr(config, "phases") else [config]


@cache
def qwen_processor() -> Any:
    """Qwen2.5-VL's processor, with a token for each word of the judge's prompts, as in the published one."""
    asked = [chat(question, "", "digits", None) for question in questions("viescore", False)]
    texts = [item["text"] for turns in asked for turn in turns for item in turn["content"] if "text" in item]
    whole = tokenizer_of(texts, [*QWEN_TOKENS.values()])
    whole.chat_template = QWEN_CHAT
    with tempfile.TemporaryDirectory() as folder:
        whole.save_pretrained(folder)
        Qwen2VLImageProcessorPil(patch_size=14).save_pretrained(folder)
        return load_processor(folder, "qwen2_5_vl")


def tokenizer_of(texts: list[str], special: list[str]) -> PreTrainedTokenizerFast:
    """Tokenizer whose tokens are the texts' words and the special ones."""
    tokenizer = Tokenizer(models.BPE())
    words = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts * 2, trainers.BpeTrainer(initial_alphabet=letters, show_progress=False)
    )
    whole = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        bos_token="<|im_start|>",
    )
    whole.add_special_tokens({"additional_special_tokens": special})
    return whole


def stages(recipe: str, editor: Blueprint, processes: int = 1) -> dict[str, int]:
    """Most bytes that each stage of a recipe needs."""
    _, config = load_recipe(recipe, [])
    if recipe in OF_VLMS:
        return {"step": max(vlm_step(training)[0] for training in trainings(recipe))}
    if recipe.startswith("humanedit"):
        clip_scorer = scorer("vifi_clip").requires_grad_(True)
        assert isinstance(clip_scorer, ViFiClip)
        return vifi_clip.memory(config, clip_scorer)
    if recipe in EDITORS:
        editor = EDITORS[recipe](require_size(config.data))
    if "refl" in recipe or isinstance(config, OnlineRecipe):
        named = {"reward": config.reward.scorer, "held_out": config.monitor.held_out}
        scorers = {name: scorer(spec) for name, spec in named.items()}
        needed = online_memory if isinstance(config, OnlineRecipe) else refl_memory
        if isinstance(config, dpo.Config):
            needed = memory_of_stages
        return needed(config, editor, scorers, processes)
    return reward_conditioned_memory(config, editor, scorer(config.relabel.scorer), processes)


def make_editor() -> Blueprint:
    """Stable Diffusion 1.5's editor for images of 256 pixels a side, the size of all recipes."""
    with torch.device("meta"):
        unet = UNet2DConditionModel.from_config(UNET)
        vae = AutoencoderKL.from_config(VAE)
        text_encoder = CLIPTextModel(CLIPTextConfig(vocab_size=49408, **WIDE))
    return Blueprint.make(InstructPix2Pix(), unet, vae, [text_encoder], 256)


def line(bytes_by_stage: dict[str, int]) -> str:
    """Line for a recipe's header."""
    return HEAD + table(bytes_by_stage).removeprefix("memory, GiB: ")


def card(head: str) -> float:
    """GiB of the GPU that a recipe's header names."""
    named = re.search(r"# Hardware:.*?(\d+) GB GPU", head)
    assert named, head
    return float(named[1])


def write(recipe: str, head: str, text: str, below: str = "# Hardware:") -> None:
    """Writes a line into a recipe's header, in the place of one with the same head.

    Args:
        below: head of the line above it.
    """
    path = recipe_path(recipe)
    kept = [old for old in path.read_text().splitlines() if not old.startswith(head)]
    at = next(i for i, old in enumerate(kept) if old.startswith(below)) + 1
    path.write_text("\n".join([*kept[:at], text, *kept[at:]]) + "\n")


if __name__ == "__main__":
    command_line = read_command_line(__doc__, "RECIPE")
    sd15 = make_editor()
    for name in command_line.words or RECIPES:
        needed = stages(name, sd15)
        if command_line.write:
            write(name, HEAD, line(needed))
        print(f"{name}: {max(needed.values()) / GIB:.1f} GiB at most")
