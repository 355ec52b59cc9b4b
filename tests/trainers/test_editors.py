"""Reward feedback learning on editors by flow matching: their recipes at tiny width, from the first stage to
the sweep over the LoRA's share.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rewardedit import load_editor
from rewardedit.cli.recipes import load_recipe
from rewardedit.files import read_log
from rewardedit.trainers import refl
from tests.editors import small_qwen_area, tiny_distilled_klein, tiny_klein, tiny_kontext, tiny_qwen

SMALL = [
    "data={name: shapes, limit: 12, size: 64}",
    "reward.scorer=l1",
    "reward.num_inference_steps=[3]",
    "monitor={held_out: {clip_i: {checkpoint: shapes/clip}}, n: 2, num_inference_steps: 2}",
    "train.max_steps=2",
    "train.batch_size=4",
    "train.micro_batch_size=2",
    "train.lora_rank=2",
    "train.lr=1e-2",
    "train.lr_warmup_steps=0",
    "train.log_every=1",
    "train.tracker=none",
    "train.mixed_precision=no",
    "train.checkpoint_every=1",
    "train.validate_every=2",
    "train.validation_rows=1",
    "evaluate=null",
]
WALKS = [
    ("kontext-refl", tiny_kontext, []),
    ("klein-refl", tiny_klein, []),
    ("klein-refl", tiny_klein, ["reward.guidance_scale=3.0"]),
    ("klein-refl", tiny_distilled_klein, []),
    ("klein-refl-24gb", tiny_klein, []),
    ("qwen-image-edit-refl", tiny_qwen, []),
    ("qwen-image-edit-refl", tiny_qwen, ["reward.guidance_scale=3.0"]),
]


def config_of(recipe: str, base: Path, changes: list[str]) -> Any:
    return load_recipe(recipe, [f"base={base}", *SMALL, *changes])[1]


@pytest.mark.slow  # tests/diffusion/test_families.py has the parts
@pytest.mark.parametrize(("recipe", "make", "changes"), WALKS)
def test_a_recipe_walks_from_latents_to_the_sweep(recipe, make, changes, tmp_path, monkeypatch):
    small_qwen_area(monkeypatch)
    base = tmp_path / "base"
    make().save_pretrained(base)
    config = config_of(recipe, base, changes)
    lines = refl.plan(config)
    assert any(line.startswith("memory, GiB: ") for line in lines), lines
    out = refl.train(config, tmp_path / "run")
    assert out.name == "lora"
    log = [line for line in read_log(tmp_path / "run") if "reward" in line]
    assert [line["step"] for line in log] == [1, 2]
    assert all(torch.tensor(line["reward"]).isfinite() for line in log)
    sweep = json.loads((tmp_path / "run" / "monitor.json").read_text())["sweep"]
    assert sweep[0]["scale"] == 0
    assert sweep[-1]["l1"] != sweep[0]["l1"]
    assert load_editor(str(out)).pipe.get_list_adapters() == {"transformer": ["default_0"]}


def test_a_full_fine_tuning_is_refused_with_the_setting(tmp_path):
    base = tmp_path / "base"
    tiny_kontext().save_pretrained(base)
    config = config_of("kontext-refl", base, ["train.lora_rank=null", "reward.reference_weight=0"])
    with pytest.raises(ValueError, match=r"train\.lora_rank: expected a rank for FluxKontext"):
        refl.train(config, tmp_path / "run")


def test_ddpm_rollouts_of_velocities_are_refused(tmp_path):
    base = tmp_path / "base"
    tiny_kontext().save_pretrained(base)
    with pytest.raises(ValueError, match=r"reward\.scheduler: .*predicts velocities.*leave it out"):
        refl.require_rollouts(config_of("kontext-refl", base, ["reward.scheduler=ddpm"]))
