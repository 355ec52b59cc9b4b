"""Reward feedback: invalid rows have no part in its loss, and a row's noise is its own."""

import pytest
import torch

from rewardedit.data import Data
from rewardedit.files import read_log
from rewardedit.trainers.refl import Config, train
from rewardedit.training.monitor import MonitorConfig
from rewardedit.training.reward import Reward, reward_loss
from rewardedit.training.trainable import Train


def test_the_loss_is_the_mean_of_the_rows_that_could_be_scored():
    score, valid = torch.tensor([9.0, torch.nan, 4.0, torch.nan]), torch.tensor([True, False, True, False])
    assert reward_loss(score, valid, "hinge", 10.0) == pytest.approx((1 + 6) / 2)
    assert reward_loss(score, valid, "linear") == pytest.approx(-13 / 2)


def test_a_row_has_the_same_noise_in_any_batch_also_where_steps_add_noise(tiny_editor, tmp_path):
    look = MonitorConfig(n=2, steps=1, held_out="clip_d")
    reward = Reward("l1", steps=(3,), weight=1.0, pairs=0.0, scale="none", loss="linear", scheduler="ddpm")
    for name, micro_batch in (("whole", 2), ("parts", 1)):
        settings = Train(steps=1, batch=2, micro_batch=micro_batch, warmup=0, log_every=1, tracker="none", ema=None)
        train(Config("x", tiny_editor, Data(rows=4, size=32), reward, settings, look), tmp_path / name)
    whole, parts = (read_log(tmp_path / name)[0]["loss"] for name in ("whole", "parts"))
    assert parts == pytest.approx(whole, rel=1e-5)
