"""Reward feedback: invalid rows have no part in its loss, and a row's noise is its own."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch

from rewardedit.cli.recipes import load_recipe, recipe_names
from rewardedit.data import DataConfig
from rewardedit.files import read_log
from rewardedit.reward_prompt import RewardScale
from rewardedit.scorer_spec import spec_name
from rewardedit.scorers.base import FunctionScorer, Scorer
from rewardedit.scorers.load import find_scorer
from rewardedit.trainers.refl import Config, train
from rewardedit.training.monitor import MonitorConfig
from rewardedit.training.reward import RewardConfig, chosen_scale, reward_loss, reward_mapping
from rewardedit.training.trainable import TrainConfig


def test_the_loss_is_the_mean_of_the_rows_that_could_be_scored():
    score = torch.tensor([9.0, torch.nan, 4.0, torch.nan])
    valid = torch.tensor([True, False, True, False])
    assert reward_loss(score, valid, "hinge", 10.0) == pytest.approx((1 + 6) / 2)
    assert reward_loss(score, valid, "linear") == pytest.approx(-13 / 2)


@pytest.mark.slow
def test_a_row_has_the_same_noise_in_any_batch_also_where_steps_add_noise(tiny_editor, tmp_path):
    look = MonitorConfig(n=2, num_inference_steps=1, held_out={"clip_d": {"checkpoint": "shapes/clip"}})
    reward = RewardConfig(
        "l1",
        num_inference_steps=(3,),
        weight=1.0,
        diffusion_weight=0.0,
        scale="none",
        loss="linear",
        scheduler="ddpm",
    )
    for name, micro_batch, together in (("whole", 2, None), ("parts", 1, None), ("alone", 1, 1)):
        settings = TrainConfig(
            max_steps=1,
            batch_size=2,
            micro_batch_size=micro_batch,
            lr_warmup_steps=0,
            log_every=1,
            tracker="none",
            ema=None,
        )
        own = replace(reward, rollout_batch_size=together)
        train(
            Config("x", DataConfig("shapes", limit=4, size=32), own, tiny_editor, settings, look),
            tmp_path / name,
        )
    whole, parts, alone = (read_log(tmp_path / name)[0]["loss"] for name in ("whole", "parts", "alone"))
    assert parts == pytest.approx(whole, rel=1e-5)
    assert alone == pytest.approx(whole, rel=1e-5)


def slopes(mapping: RewardScale | None, bounds: tuple[float, float]) -> torch.Tensor:
    """The mapped score's derivative at places all over a scorer's range."""
    score = torch.linspace(*bounds, 203, dtype=torch.float64)[1:-1].requires_grad_(True)
    mapped = score if mapping is None else mapping(score, clamp=False)
    (slope,) = torch.autograd.grad(mapped.sum(), score)
    return slope


def ranged(bounds: tuple[float, float]) -> Scorer:
    """A scorer with such a range."""
    return FunctionScorer(lambda batch: batch.edited.mean((1, 2, 3)), range=bounds, differentiable=True)


FULL_SIZE = [name for name in recipe_names() if name.startswith("magicbrush-refl")]


@pytest.mark.parametrize("recipe", FULL_SIZE)
def test_a_failed_edit_counts_as_much_as_a_nearly_right_one_in_the_full_size_recipes(recipe, capsys):
    """True targets alone are scored before these trainings, and nearly all of them high."""
    reward = load_recipe(recipe, [])[1].reward
    scorer = ranged(find_scorer(spec_name(reward.scorer)).range)
    targets = (10 - 10 * np.random.default_rng(0).beta(1, 12, 500)).tolist()
    slope = slopes(reward_mapping(reward, scorer, targets), scorer.range)
    assert slope.max() / slope.min() < 3
    quantiles = reward_mapping(replace(reward, scale="quantiles"), scorer, targets)
    assert quantiles is not None
    assert slopes(quantiles, scorer.range).max() / slopes(quantiles, scorer.range).min() > 10
    assert "reward.scale: by these rows' quantiles" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("bounds", "scale"),
    [((0.0, 10.0), "none"), ((-1.0, 1.0), "range"), ((-100.0, 100.0), "range"), ((-inf, 0.0), "standard")],
)
def test_a_score_is_mapped_by_its_own_range_and_by_no_rows(bounds, scale):
    scorer = ranged(bounds)
    assert chosen_scale(RewardConfig("l1"), scorer) == scale
    few = reward_mapping(RewardConfig("l1"), scorer, [-0.5, -0.4, -0.1])
    assert few is None if scale == "none" else few is not None
    if scale == "standard":
        with pytest.raises(ValueError, match=r"reward\.scale: expected a scorer with bounds .*; l1"):
            chosen_scale(RewardConfig("l1", scale="range"), scorer)
    else:
        slope = slopes(few, bounds)
        assert slope.max() / slope.min() == pytest.approx(1)
