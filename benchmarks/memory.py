"""What each full-size recipe needs of a GPU's memory, written into its head: python benchmarks/memory.py

No GPU and no weights are needed: the models are Stable Diffusion 1.5's editor, CLIP ViT-L/14, ViFi-CLIP on
ViT-B/16 and DINOv2-base, made without data on the `meta` device.
"""

import re
from typing import Any

import torch
from transformers import AutoTokenizer, CLIPConfig, CLIPModel, Dinov2Config, Dinov2Model

from rewardedit.assets import resolve_model
from rewardedit.cli import load_recipe, recipe_folder
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.images import Preprocess
from rewardedit.scorer_spec import spec_name
from rewardedit.scorers import Scorer
from rewardedit.scorers.clip import ClipD
from rewardedit.scorers.preservation import DinoI
from rewardedit.scorers.vifi_clip import ViFiClip, make_temporal
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
LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
}
RECIPES = (
    "magicbrush-reward-conditioned",
    "magicbrush-reward-conditioned-lora-24gb",
    "magicbrush-refl",
    "magicbrush-refl-24gb",
    "humanedit-vifi-clip",
)
HEAD = "# Memory, GiB (benchmarks/memory.py): "


def scorer(name: str) -> Scorer:
    """One of the scorers that the recipes name, at its true size, on `meta`."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("shapes-clip"))
    preprocess = Preprocess(224, (0.5,) * 3, (0.25,) * 3)
    with torch.device("meta"):
        if name == "clip_d":
            clip = CLIPModel(CLIPConfig(text_config=WIDE, vision_config=LARGE, projection_dim=768))
            return ClipD(clip, tokenizer, preprocess).eval().requires_grad_(False)
        if name == "dino_i":
            return (
                DinoI(Dinov2Model(Dinov2Config(**WIDE)), preprocess, against="target")
                .eval()
                .requires_grad_(False)
            )
        assert name == "vifi_clip"
        clip = CLIPModel(CLIPConfig(vision_config={"patch_size": 16}))
        return ViFiClip(clip, tokenizer, preprocess, make_temporal(clip)).eval().requires_grad_(False)


def stages(recipe: str, editor: memory.Blueprint, processes: int = 1) -> dict[str, int]:
    """Bytes that each stage of a recipe needs at most."""
    _, config = load_recipe(recipe, [])
    if recipe.startswith("humanedit"):
        own = scorer("vifi_clip").requires_grad_(True)
        assert isinstance(own, ViFiClip)
        return vifi_clip.memory(config, own)
    if "refl" in recipe:
        scorers = {
            name: scorer(name) for name in map(spec_name, (config.reward.scorer, config.watch.held_out))
        }
        return memory.refl(config, editor, scorers, processes)
    return memory.reward_conditioned(config, editor, scorer(spec_name(config.relabel.scorer)), processes)


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
