"""What each full-size recipe needs of a GPU's memory, written into its head: python benchmarks/memory.py

No GPU and no weights are needed: the models are Stable Diffusion 1.5's editor, ViFi-CLIP on ViT-B/16,
DINOv2-base and Qwen2.5-VL, made without data on the `meta` device.
"""

import re
import tempfile
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    CLIPConfig,
    CLIPModel,
    Dinov2Config,
    Dinov2Model,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

from rewardedit.assets import resolve_model
from rewardedit.cli import load_recipe, recipe_folder
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.images import Preprocess
from rewardedit.scorer_spec import ScorerSpec, read_spec
from rewardedit.scorers import Scorer
from rewardedit.scorers.preservation import DinoI
from rewardedit.scorers.vifi_clip import ViFiClip, make_temporal
from rewardedit.scorers.vlm import Vlm, load_processor
from rewardedit.scorers.vlm_judge import VlmJudge
from rewardedit.scorers.vlm_judge_prompts import chat, questions
from rewardedit.trainers import vifi_clip
from rewardedit.training import memory
from rewardedit.training.meta import GIB, table

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
RECIPES = (
    "magicbrush-reward-conditioned",
    "magicbrush-reward-conditioned-lora-24gb",
    "magicbrush-refl",
    "magicbrush-refl-24gb",
    "humanedit-vifi-clip",
)
# Qwen2.5-VL's language models; their vision towers are alike.
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
QWEN_CHAT = (
    "{% for turn in messages %}<|im_start|>{{ turn['role'] }}\n{% for part in turn['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEAD = "# Memory, GiB (benchmarks/memory.py): "


def scorer(spec: ScorerSpec) -> Scorer:
    """One of the scorers that the recipes name, at its true size, on `meta`."""
    ((name, term),) = read_spec(spec).items()
    if name == "vlm_judge":
        return judge(**term.options)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("shapes-clip"))
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


def judge(checkpoint: str, dtype: str = "float32") -> VlmJudge:
    """A judge by Qwen2.5-VL."""
    processor = qwen_processor()
    tokens = {name: processor.tokenizer.convert_tokens_to_ids(text) for name, text in QWEN_TOKENS.items()}
    text = QWEN[checkpoint]
    vision = {**QWEN_VISION, "out_hidden_size": text["hidden_size"]}
    rope = {"rope_scaling": {"rope_type": "default", "mrope_section": [16, 24, 24]}}
    config = Qwen2_5_VLConfig(text_config={**text, **rope}, vision_config=vision, **tokens)
    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(config).to(getattr(torch, dtype))
    return VlmJudge(Vlm(model.eval().requires_grad_(False), processor), checkpoint)


@cache
def qwen_processor() -> Any:
    """Qwen2.5-VL's, with a tokenizer that knows the judge's own words whole, as the published one does."""
    asked = [chat(question, "", "digits", None) for question in questions("viescore", False)]
    texts = [part["text"] for turns in asked for turn in turns for part in turn["content"] if "text" in part]
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
    whole.add_special_tokens({"additional_special_tokens": [*QWEN_TOKENS.values()]})
    whole.chat_template = QWEN_CHAT
    with tempfile.TemporaryDirectory() as folder:
        whole.save_pretrained(folder)
        Qwen2VLImageProcessorPil(patch_size=14).save_pretrained(folder)
        return load_processor(folder, "qwen2_5_vl")


def stages(recipe: str, editor: memory.Blueprint, processes: int = 1) -> dict[str, int]:
    """Bytes that each stage of a recipe needs at most."""
    _, config = load_recipe(recipe, [])
    if recipe.startswith("humanedit"):
        own = scorer("vifi_clip").requires_grad_(True)
        assert isinstance(own, ViFiClip)
        return vifi_clip.memory(config, own)
    if "refl" in recipe:
        named = {"reward": config.reward.scorer, "held_out": config.watch.held_out}
        scorers = {name: scorer(spec) for name, spec in named.items()}
        return memory.refl(config, editor, scorers, processes)
    return memory.reward_conditioned(config, editor, scorer(config.relabel.scorer), processes)


def make_editor() -> memory.Blueprint:
    """Stable Diffusion 1.5's editor for images of 256 pixels a side, the size of all recipes."""
    return memory.Blueprint.make(InstructPix2Pix(), UNET, VAE, {"vocab_size": 49408, **WIDE}, 256)


def line(found: dict[str, int]) -> str:
    """The line of a recipe's head."""
    return HEAD + table(found).removeprefix("memory, GiB: ")


def card(head: str) -> float:
    """GiB of the card that a recipe's head names."""
    named = re.search(r"# Hardware:.*?(\d+) GB GPU", head)
    assert named, head
    return float(named[1])


def write(recipe: str, found: dict[str, int]) -> None:
    """Puts the line under the one that says which hardware."""
    path = recipe_folder() / f"{recipe}.yaml"
    kept = [text for text in path.read_text().splitlines() if not text.startswith(HEAD)]
    at = next(i for i, text in enumerate(kept) if text.startswith("# Hardware:")) + 1
    path.write_text("\n".join([*kept[:at], line(found), *kept[at:]]) + "\n")


if __name__ == "__main__":
    sd15 = make_editor()
    for name in RECIPES:
        needed = stages(name, sd15)
        write(name, needed)
        print(f"{name}: {max(needed.values()) / GIB:.1f} GiB at most")
