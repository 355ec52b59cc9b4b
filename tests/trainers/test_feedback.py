"""Reward feedback: invalid rows have no part in its loss, and chance raises no flag."""

import pytest
import torch

from rewardedit.trainers._feedback import reward_loss
from rewardedit.trainers._watch import flag


def test_the_loss_is_the_mean_of_the_rows_that_could_be_scored():
    score, valid = torch.tensor([9.0, torch.nan, 4.0, torch.nan]), torch.tensor([True, False, True, False])
    assert reward_loss(score, valid, "hinge", 10.0) == pytest.approx((1 + 6) / 2)
    assert reward_loss(score, valid, "linear") == pytest.approx(-13 / 2)


def test_a_held_out_reward_that_may_fall_by_chance_alone_is_no_flag():
    base = {"a": torch.zeros(40), "b": torch.zeros(40)}
    rises = torch.linspace(0.5, 1.5, 40)
    by_chance = torch.linspace(-1.1, 1.0, 40)  # mean −0.05, interval about ± 0.2
    assert flag({"a": rises, "b": by_chance}, base, "a", "b") is None
    assert flag({"a": by_chance, "b": -rises}, base, "a", "b") is None
    assert flag({"a": rises, "b": -rises}, base, "a", "b") is not None
