"""The papers' values, in one table with the source of each, and the full-size recipes beside it."""

from functools import cache
from typing import Any

import pytest

from rewardedit.cli.recipes import load_recipe, recipe_names, recipe_path
from rewardedit.scorers.bpm.bpm import BpmConfig
from rewardedit.scorers.bpm.checks import JudgeConfig
from rewardedit.scorers.load import BUILT_IN, find_scorer
from tests.readme import recorded

ADIEE = "ADIEE Sec. 4.1"
SUPPLEMENT = "ADIEE App. B"
ADIEE_CODE = "SamsungLabs/ADIEE"
NFT_CODE = "NVlabs/DiffusionNFT"
UNIRL = "UniRL 0.2.0"
DPO_CODE = "huggingface/diffusers, examples/research_projects/diffusion_dpo"
FLOW_FACTORY = "Flow-Factory's examples/grpo/lora/flux1_kontext/default.yaml"
IMAGENHUB = "TIGER-AI-Lab/ImagenHub, as ADIEE App. B says"
FACTORY = "LLaMA-Factory's qwen2vl_lora_sft.yaml, as ADIEE App. B says"
DICE = "aimagelab/DICE and Baraldi et al. 2025"
POSTER = "Donabauer et al. 2025"
VIFI_CODE = "muzairkhattak/ViFi-CLIP"
# recipe, setting, the paper's value, where it stands
VALUES: list[tuple[str, str, Any, str]] = [
    ("adiee-scorer", "model", "llava-hf/llama3-llava-next-8b-hf", ADIEE),
    ("adiee-scorer", "train.epochs", 30, ADIEE),
    ("adiee-scorer", "train.batch_size", 192, ADIEE),
    ("adiee-scorer", "train.lr", 2e-5, ADIEE),
    ("adiee-scorer", "lora_rank", 8, ADIEE),
    ("adiee-scorer", "head", "classes", ADIEE_CODE),
    ("adiee-scorer", "data.magicbrush.size", 512, ADIEE_CODE),
    ("adiee-scorer", "data.magicbrush.resize", "stretch", ADIEE_CODE),
    ("adiee-scorer", "embeddings", "all", ADIEE_CODE),
    ("adiee-scorer", "train.text_weight", 1.0, SUPPLEMENT),
    ("adiee-scorer", "train.score_weight", 10.0, SUPPLEMENT),
    ("adiee-scorer", "train.lr_scheduler", "constant_with_warmup", ADIEE_CODE),
    ("adiee-scorer", "train.lr_warmup_steps", 0, ADIEE_CODE),
    ("adiee-scorer", "train.beta2", 0.95, ADIEE_CODE),
    ("adiee-scorer", "train.weight_decay", 0.0, ADIEE_CODE),
    ("adiee-scorer", "train.max_grad_norm", 1.0, ADIEE_CODE),
    ("adiee-scorer", "train.mixed_precision", "bf16", ADIEE_CODE),
    ("adiee-scorer-24gb", "model", "llava-hf/llama3-llava-next-8b-hf", ADIEE),
    ("adiee-scorer-24gb", "train.lr", 2e-5, ADIEE),
    ("adiee-scorer-24gb", "lora_rank", 8, ADIEE),
    ("adiee-scorer-24gb", "layout", "concat", ADIEE_CODE),
    ("adiee-scorer-24gb", "head", "classes", ADIEE_CODE),
    ("captioner", "lora_rank", 8, SUPPLEMENT),
    ("captioner", "train.batch_size", 8, SUPPLEMENT),
    ("captioner", "train.lr", 1e-4, SUPPLEMENT),
    ("captioner", "train.epochs", 3.0, FACTORY),
    ("captioner", "train.lr_warmup_ratio", 0.1, FACTORY),
    ("magicbrush-adiee-data", "seed", 42, ADIEE_CODE),
    ("magicbrush-adiee-data", "data.magicbrush.size", 512, ADIEE_CODE),
    ("magicbrush-adiee-data", "data.emu_edit.edit_types", ("global", "style"), ADIEE),
    ("magicbrush-adiee-data", "rules.turns", "one", ADIEE_CODE),
    ("magicbrush-adiee-data", "rules.thresholds.similarity_percentile", 5.0, ADIEE_CODE),
    *(
        ("magicbrush-adiee-data", f"methods.{editor}.{name}", value, IMAGENHUB)
        for editor in ("magicbrush", "aurora", "instruct_pix2pix")
        for name, value in (
            ("scheduler", "euler_ancestral"),
            ("num_inference_steps", 100),
            ("guidance_scale", 7.5),
            ("image_guidance_scale", 1.5),
        )
    ),
    ("magicbrush-adiee-data", "methods.cycle_diffusion.guidance_scale", 2.0, IMAGENHUB),
    ("magicbrush-adiee-data", "methods.pix2pix_zero.cross_attention_guidance", 0.15, IMAGENHUB),
    ("magicbrush-adiee-data", "methods.sdedit.scheduler", "ddim", IMAGENHUB),
    ("magicbrush-adiee-data", "methods.sdedit.strength", 0.8, ADIEE_CODE),
    *(
        ("magicbrush-adiee-data", f"methods.{name}.grade", "strong", ADIEE_CODE)
        for name in ("magicbrush", "aurora")
    ),
    *(
        ("magicbrush-adiee-data", f"methods.{name}.grade", "weak", "ADIEE Sec. 3.1")
        for name in ("diffedit", "pix2pix_zero", "sdedit")
    ),
    ("magicbrush-adiee", "phases.phase-3.settings.data.size", 256, ADIEE_CODE),
    (
        "magicbrush-adiee",
        "phases.phase-3.settings.relabel.scale",
        "range",
        "ADIEE App. B: 2 points of 10 a label",
    ),
    (
        "magicbrush-adiee",
        "phases.phase-3.settings.relabel.upper",
        None,
        "ADIEE App. B: 2 points of 10 a label",
    ),
    ("magicbrush-adiee", "phases.phase-3.settings.train.batch_size", 384, ADIEE),
    ("magicbrush-adiee", "phases.phase-4.settings.train.max_steps", 55_000, "as magicbrush-refl"),
    ("magicbrush-reward-conditioned", "base", "vinesmsuic/magicbrush-jul7", "MagicBrush's second checkpoint"),
    ("magicbrush-reward-conditioned", "train.max_steps", 10_000, ADIEE),
    ("magicbrush-reward-conditioned", "train.batch_size", 384, ADIEE),
    ("magicbrush-reward-conditioned", "train.lr", 5e-5, ADIEE),
    ("magicbrush-reward-conditioned", "relabel.prompt", "adiee", "ADIEE Sec. 3.4"),
    ("magicbrush-reward-conditioned", "data.size", 256, ADIEE_CODE),
    ("magicbrush-reward-conditioned", "candidates.num_inference_steps", 100, IMAGENHUB),
    ("magicbrush-reward-conditioned", "candidates.guidance_scale", 7.5, IMAGENHUB),
    ("magicbrush-reward-conditioned", "candidates.image_guidance_scale", 1.5, IMAGENHUB),
    ("magicbrush-reward-conditioned-lora-24gb", "train.max_steps", 10_000, ADIEE),
    ("magicbrush-reward-conditioned-lora-24gb", "train.batch_size", 384, ADIEE),
    ("magicbrush-reward-conditioned-lora-24gb", "relabel.prompt", "adiee", "ADIEE Sec. 3.4"),
    *(
        (recipe, f"reward.{name}", value, source)
        for recipe in ("magicbrush-refl", "magicbrush-refl-24gb")
        for name, value, source in (
            ("num_inference_steps", tuple(range(10, 101, 5)), ADIEE_CODE),
            ("stop_before_end", (1, 1), ADIEE_CODE),
            ("grad_steps", 1, ADIEE_CODE),
            ("scored", "prev_sample", ADIEE_CODE),
            ("scheduler", "ddpm", ADIEE_CODE),
            ("guidance_scale", None, ADIEE_CODE),
            ("loss", "hinge", "ADIEE Eq. 8"),
            ("hinge", 10.0, "ADIEE Eq. 8"),
            ("weight", 1e-3, ADIEE_CODE),
            ("diffusion_weight", 1.0, "ADIEE Eq. 8"),
        )
    ),
    ("magicbrush-refl", "train.lr", 5e-5, ADIEE_CODE),
    ("magicbrush-refl", "train.batch_size", 8, ADIEE_CODE),
    ("magicbrush-refl", "train.max_steps", 55_000, ADIEE_CODE),  # 50 passes over 8,807 rows
    ("magicbrush-refl", "data.size", 256, ADIEE_CODE),
    *(
        (recipe, f"reward.{setting}", value, source)
        for recipe in ("kontext-refl", "klein-refl", "klein-refl-24gb", "qwen-image-edit-refl")
        for setting, value, source in (
            ("grad_steps", 1, ADIEE_CODE),
            ("scored", "prev_sample", ADIEE_CODE),
            ("loss", "hinge", "ADIEE Eq. 8"),
            ("hinge", 10.0, "ADIEE Eq. 8"),
            ("weight", 1e-3, ADIEE_CODE),
            ("diffusion_weight", 1.0, "ADIEE Eq. 8"),
        )
    ),
    *(
        ("instruct-pix2pix-dpo", f"train.{setting}", value, DPO_CODE)
        for setting, value in (
            ("lora_rank", 8),
            ("lr", 1e-5),
            ("lr_warmup_steps", 0),
            ("batch_size", 32),
            ("max_steps", 10_000),
            ("mixed_precision", "fp16"),
        )
    ),
    ("klein-nft", "data.size", 512, UNIRL),
    ("klein-nft", "reward.group_size", 16, UNIRL),
    ("klein-nft", "reward.num_inference_steps", 10, UNIRL),
    ("klein-nft", "train.lora_rank", 16, UNIRL),
    ("klein-nft", "train.lora_alpha", 32, UNIRL),
    ("klein-nft", "nft.reference_weight", 1e-4, NFT_CODE),
    ("qwen-image-edit-nft", "data.size", 384, UNIRL),
    ("qwen-image-edit-nft", "reward.group_size", 16, UNIRL),
    ("qwen-image-edit-nft", "reward.num_inference_steps", 12, UNIRL),
    ("qwen-image-edit-nft", "train.lora_rank", 64, UNIRL),
    ("qwen-image-edit-nft", "train.lora_alpha", 128, UNIRL),
    ("qwen-image-edit-nft", "nft.reference_weight", 0.0, UNIRL),
    ("qwen-image-edit-nft", "nft.times", 0.2, UNIRL),
    *(
        (recipe, setting, value, NFT_CODE)
        for recipe in ("klein-nft", "qwen-image-edit-nft")
        for setting, value in (
            ("reward.guidance_scale", None),
            ("reward.std", "batch"),
            ("reward.advantage_clip", 5.0),
            ("nft.beta", 1.0),
            ("nft.schedule", (0, 0.001, 0.5)),
            ("train.lr", 3e-4),
            ("train.weight_decay", 1e-4),
            ("train.max_grad_norm", 1.0),
            ("train.ema", 0.9),
        )
    ),
    *(
        ("kontext-flow-grpo", setting, value, FLOW_FACTORY)
        for setting, value in (
            ("data.size", 384),
            ("reward.group_size", 16),
            ("reward.updates", 2),
            ("reward.num_inference_steps", 10),
            ("reward.guidance_scale", 2.5),
            ("reward.std", "group"),
            ("reward.advantage_clip", 5.0),
            ("noise.sampler", "sde"),
            ("noise.noise_level", 0.9),
            ("noise.noise_steps", 1),
            ("clip", 1e-4),
            ("kl_weight", 0.0),
            ("train.lr", 3e-4),
            ("train.weight_decay", 1e-4),
            ("train.max_grad_norm", 1.0),
            ("train.lora_rank", 64),
            ("train.lora_alpha", 128),
            ("train.ema", 0.9),
        )
    ),
    *(
        ("dice-detector", f"phases.{phase}.settings.{name}", value, DICE)
        for phase, name, value in (
            ("phase-1", "train.max_steps", 15_000),
            ("phase-1", "pairs.similar.min_similarity", 0.6),
            ("phase-1", "pairs.similar.min_shared", 1),
            ("phase-1", "pairs.similar.max_other", 14),
            ("phase-2", "train.max_steps", 15_000),
            ("phase-2", "adapter", "phase-1/dice"),
        )
    ),
    ("dice-coherence", "model", "HuggingFaceM4/Idefics3-8B-Llama3", DICE),
    ("dice-coherence", "train.max_steps", 550, DICE),
    ("humanedit-vifi-clip", "checkpoint", "openai/clip-vit-base-patch16", POSTER),
    ("humanedit-vifi-clip", "pooling", "mean", POSTER),
    ("humanedit-vifi-clip", "negatives", (), POSTER),
    ("humanedit-vifi-clip", "data.holdout_sources", 1128, POSTER),
    ("humanedit-vifi-clip", "train.lr", 8e-6, VIFI_CODE),
    ("humanedit-vifi-clip", "train.beta2", 0.98, VIFI_CODE),
    ("humanedit-vifi-clip", "train.weight_decay", 1e-3, VIFI_CODE),
    ("humanedit-vifi-clip", "train.floor", 0.01, VIFI_CODE),
]
# What differs on purpose, with the paper's value: words of the recipe's header that say so.
DEVIATIONS: list[tuple[str, str, Any, str]] = [
    ("adiee-scorer", "layout", "concat", "two images, one answer, soft labels"),
    ("adiee-scorer", "compat", "code", "two images, one answer, soft labels"),
    ("adiee-scorer-24gb", "embeddings", "all", "the token's embeddings alone"),
    ("adiee-scorer-24gb", "side", 512, "Smaller images side by side"),
    ("captioner", "model", "Qwen/Qwen2-VL-7B-Instruct", "it fine-tunes Qwen2-VL-7B"),
    ("magicbrush-adiee-data", "captions.model", "Qwen/Qwen2-VL-7B-Instruct", "captions are Qwen2.5-VL's"),
    ("magicbrush-adiee-data", "rules.thresholds.clip_d", 0.2, "thresholds are percentiles of this data set"),
    ("magicbrush-reward-conditioned-lora-24gb", "train.lora_rank", None, ", a LoRA"),
    ("magicbrush-reward-conditioned-lora-24gb", "train.lr", 5e-5, ", a LoRA"),
    ("magicbrush-refl", "train.mixed_precision", "fp16", "in fp16 a step would keep a copy"),
    ("magicbrush-refl-24gb", "train.lora_rank", None, ", a LoRA"),
    ("magicbrush-refl-24gb", "train.lr", 5e-5, ", a LoRA"),
    ("instruct-pix2pix-dpo", "data.size", 512, "256 pixels are ours"),
    ("klein-nft", "train.batch_size", 1024, "Theirs trains on 64 groups an update, this on 8"),
    ("qwen-image-edit-nft", "train.batch_size", 768, "Theirs trains on 48 groups an update, this on 4"),
    ("kontext-flow-grpo", "train.batch_size", 384, "Theirs makes 48 groups a rollout on 8 GPUs, this 8"),
]
FULL_SIZE = sorted(name for name in recipe_names() if not name.startswith("shapes/") and name != "quickstart")


@cache
def resolved(recipe: str) -> Any:
    return load_recipe(recipe, [])[1]


def value_of(recipe: str, setting: str) -> Any:
    """A setting of a resolved recipe, by its dotted name."""
    found = resolved(recipe)
    for part in setting.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    return found


@pytest.mark.parametrize("recipe", FULL_SIZE)
def test_a_full_size_recipe_has_its_paper_s_values(recipe):
    wanted = {setting: value for name, setting, value, _ in VALUES if name == recipe}
    assert wanted, "no value of this recipe stands in the table"
    assert {setting: value_of(recipe, setting) for setting in wanted} == wanted


@pytest.mark.parametrize(("recipe", "setting", "paper", "words"), DEVIATIONS)
def test_a_recipe_says_where_it_differs_from_its_paper(recipe, setting, paper, words):
    assert value_of(recipe, setting) != paper
    assert words in recipe_path(recipe).read_text()


def test_bpm_has_the_values_of_its_paper_and_code():
    judges = JudgeConfig()
    assert BpmConfig().alpha == 0.7, "BPM Sec. 4.1"
    assert (judges.larger, judges.smaller, judges.overlap) == (1.2, 0.8, 0.4), "joyli-x/BPM"
    assert BpmConfig().context == 1.5, "joyli-x/BPM"


def test_no_scorer_is_called_another_benchmark_s_by_default():
    """MagicBrush's measures are of other models, of images in other sizes, and compare with the target."""
    for name in BUILT_IN:
        scorer = find_scorer(name)
        assert "MagicBrush" not in scorer.paper, name
        assert "MagicBrush" not in (scorer.__doc__ or ""), name


def test_the_paper_s_prompts_are_told_apart_from_ours_by_nothing_that_was_measured():
    found = recorded("prompts")
    low, high = found["ours_above_paper"]
    assert found["n"] >= 280
    assert low < 0 < high, "the page says that the interval holds 0"
    assert found["spearman"]["ours"]["rho"] == pytest.approx(0.80, abs=0.005)
    assert found["spearman"]["paper"]["rho"] == pytest.approx(0.77, abs=0.005)
