"""Reward feedback: invalid rows have no part in its loss, and a row's noise is its own."""

import pytest
import torch

from rewardedit.data import DataConfig
from rewardedit.files import read_log
from rewardedit.trainers.refl import Config, train
from rewardedit.training.monitor import MonitorConfig
from rewardedit.training.reward import RewardConfig, reward_loss
from rewardedit.training.trainable import TrainConfig


def test_the_loss_is_the_mean_of_the_rows_that_could_be_scored():
    score = torch.tensor([9.0, torch.nan, 4.0, torch.nan])
    valid = torch.tensor([True, False, True, False])
    assert reward_loss(score, valid, "hinge", 10.0) == pytest.approx((1 + 6) / 2)
    assert reward_loss(score, valid, "linear") == pytest.approx(-13 / 2)


def test_a_row_has_the_same_noise_in_any_batch_also_where_steps_add_noise(tiny_editor, tmp_path):
    look = MonitorConfig(n=2, num_inference_steps=1, held_out="clip_d")
    reward = RewardConfig(
        "l1",
        num_inference_steps=(3,),
        weight=1.0,
        diffusion_weight=0.0,
        scale="none",
        loss="linear",
        scheduler="ddpm",
    )
    for name, micro_batch in (("whole", 2), ("parts", 1)):
        settings = TrainConfig(
            max_steps=1,
            batch_size=2,
            micro_batch_size=micro_batch,
            lr_warmup_steps=0,
            log_every=1,
            tracker="none",
            ema=None,
        )
        train(Config("x", tiny_editor, DataConfig(rows=4, size=32), reward, settings, look), tmp_path / name)
    whole, parts = (read_log(tmp_path / name)[0]["loss"] for name in ("whole", "parts"))
    assert parts == pytest.approx(whole, rel=1e-5)
