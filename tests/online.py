"""A tiny recipe of online RL on drawn shapes, and its parts without a trainer."""

from pathlib import Path
from typing import Any

from rewardedit.data import DataConfig
from rewardedit.training.finetune import Finetuning
from rewardedit.training.group_rollouts import GroupRollouts
from rewardedit.training.monitor import MonitorConfig
from rewardedit.training.old_policy import OldPolicy
from rewardedit.training.online import OnlineConfig, OnlineInputs, OnlineRecipe, prepare, with_data
from rewardedit.training.trainable import TrainConfig

DATA = DataConfig("shapes", limit=6, size=32)
REWARD = OnlineConfig("l1", group_size=3, num_inference_steps=2)
MONITOR = MonitorConfig(n=2, num_inference_steps=1, held_out={"clip_d": {"checkpoint": "shapes/clip"}})
TRAIN: dict[str, Any] = {
    "max_steps": 2,
    "batch_size": 6,
    "lora_rank": 2,
    "lr": 1e-2,
    "lr_warmup_steps": 1,
    "log_every": 1,
    "checkpoint_every": 1,
    "tracker": "none",
    "ema": None,
    "validation_rows": 1,
}


def settings(base: str | Path, train: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Arguments of a tiny recipe."""
    common = {"name": "x", "data": DATA, "reward": REWARD, "monitor": MONITOR}
    return {**common, "base": str(base), "train": TrainConfig(**{**TRAIN, **(train or {})}), **changes}


def parts(
    recipe: OnlineRecipe, folder: Path, inputs: OnlineInputs | None = None
) -> tuple[OnlineInputs, Finetuning, OldPolicy, GroupRollouts]:
    """Inputs, the editor with its adapters, and rollouts."""
    inputs = inputs or prepare(with_data(recipe), folder)
    tuning = Finetuning(recipe.train, recipe.base, inputs.prompts.cache, inputs.labels, folder)
    old = OldPolicy(tuning.modules.unet)
    return inputs, tuning, old, GroupRollouts(recipe.reward, recipe.train, inputs, tuning.editor.pipe)
