"""Advantages within groups, by hand."""

import pytest
import torch
from torch import Tensor

from rewardedit.training.groups import group_advantages

NAN = float("nan")


def one_reward(*groups: list[float], **settings: object):
    rewards = torch.tensor([groups], dtype=torch.float64)
    return group_advantages(rewards, torch.ones(1, dtype=torch.float64), **settings)


def test_one_reward_is_divided_by_the_batchs_deviation():
    found = one_reward([0.0, 2.0], [10.0, 14.0])
    std = torch.tensor([0.0, 2.0, 10.0, 14.0]).double().std(correction=0) + 1e-4
    torch.testing.assert_close(found.value, torch.tensor([[-1.0, 1.0], [-2.0, 2.0]]).double() / std)
    assert found.kept.all()


def test_one_reward_is_divided_by_its_groups_deviation():
    found = one_reward([0.0, 2.0], [10.0, 14.0], std="group")
    torch.testing.assert_close(
        found.value, torch.tensor([[-1.0, 1.0], [-1.0, 1.0]]).double(), atol=2e-4, rtol=0
    )


def test_groups_without_spread_are_dropped_and_weights_make_up():
    found = one_reward([1.0, 1.0], [0.0, 1.0], [5.0, 5.00001])
    assert found.flat.tolist() == [True, False, True]
    assert found.value[0].tolist() == [0, 0]
    assert found.kept.sum(1).tolist() == [0, 2, 0]
    assert found.row_weights(1).sum(1).tolist() == pytest.approx([0, 6, 0])
    assert found.row_weights(3).sum(1).tolist() == pytest.approx([0, 2, 0])


def test_all_groups_without_spread_leave_nothing():
    found = one_reward([1.0, 1.0], [3.0, 3.0])
    assert not found.value.any()
    assert not found.row_weights(2).any()


def test_invalid_scores_are_left_out_and_counted():
    found = one_reward([0.0, NAN, 2.0], [NAN, NAN, 1.0])
    assert found.valid.sum() == 3
    assert found.few.tolist() == [False, True]
    assert found.value.isfinite().all()
    assert found.value[0, 0] == -found.value[0, 2]
    assert found.kept.tolist() == [[True, False, True], [False] * 3]
    assert one_reward([0.0, NAN, NAN, 2.0], least_valid=0.75).few.all()


def test_an_image_invalid_for_one_reward_counts_for_none():
    rewards = torch.tensor([[[0.0, 1.0, 5.0]], [[1.0, 0.0, NAN]]]).double()
    found = group_advantages(rewards, torch.tensor([1.0, 1.0]).double())
    torch.testing.assert_close(found.value, torch.zeros(1, 3).double())


def weighted(first: float, second: float, scale: float = 1.0) -> Tensor:
    rewards = torch.tensor([[[0.0, 1.0, 2.0]], [[2.0, 0.0, 1.0]]]).double()
    rewards[1] *= scale
    return group_advantages(rewards, torch.tensor([first, second]).double()).value


def test_rewards_weigh_by_their_weights_and_not_by_their_units():
    torch.testing.assert_close(weighted(1, 3, scale=1000), weighted(1, 3), atol=1e-3, rtol=0)
    torch.testing.assert_close(weighted(2, 6), weighted(1, 3))
    assert weighted(1, 3).std(correction=0) == pytest.approx(1, abs=1e-3)
    assert weighted(1, 3).argmax() == 0
    assert weighted(3, 1).argmax() == 2


def test_a_reward_without_spread_says_nothing():
    """Of two rewards, the second finds the second group's images alike but for its noise."""
    rewards = torch.tensor([[[0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [0.30005, 0.3]]]).double()
    found = group_advantages(rewards, torch.tensor([1.0, 1.0]).double(), std="group")
    assert (found.value[1, 1] / found.value[0, 1]).item() == pytest.approx(0.5, rel=1e-3)
    assert not found.flat.any()
