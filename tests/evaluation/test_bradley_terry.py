"""Strengths by Bradley and Terry: closed forms, and choix as an oracle."""

import choix
import numpy as np
import pytest

from rewardedit.evaluation.statistics import bradley_terry


def test_two_competitors_have_their_log_odds():
    wins = np.array([[0.0, 30.0], [10.0, 0.0]])
    low, high = sorted(bradley_terry(wins, prior=0))
    assert high - low == pytest.approx(np.log(3))
    assert high == pytest.approx(-low)
    assert np.ptp(bradley_terry(wins, prior=2)) == pytest.approx(np.log(31 / 11))


@pytest.mark.parametrize("k", [3, 5, 12])
@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_strengths_are_those_of_choix(k, prior):
    rng = np.random.default_rng(k)
    wins = rng.integers(1, 30, (k, k)) + rng.integers(0, 2, (k, k)) / 2
    np.fill_diagonal(wins, 0)
    with_prior = (wins + prior / 2) * (1 - np.eye(k))
    assert np.allclose(bradley_terry(wins, prior), choix.ilsr_pairwise_dense(with_prior), atol=1e-7)


def test_resamples_are_fitted_each_by_itself():
    tables = np.random.default_rng(0).integers(0, 9, (4, 5, 3, 3)).astype(float)
    fitted = bradley_terry(tables)
    assert fitted.shape == (4, 5, 3)
    assert np.allclose(fitted[2, 3], bradley_terry(tables[2, 3]))


def test_without_a_finite_maximum_there_is_none():
    never_lost = np.array([[0, 5, 2], [0, 0, 3], [0, 4, 0]])
    assert np.isnan(bradley_terry(never_lost, prior=0)).all()
    assert np.argmax(bradley_terry(never_lost)) == 0
    two_groups = np.zeros((4, 4))
    two_groups[0, 1] = two_groups[1, 0] = two_groups[2, 3] = two_groups[3, 2] = 5
    assert np.isnan(bradley_terry(two_groups, prior=0)).all()
    cycle = np.roll(np.eye(5), 1, 1)
    assert np.allclose(bradley_terry(cycle, prior=0), 0)


@pytest.mark.parametrize("wins", [np.zeros((2, 3)), np.zeros((1, 1)), -np.ones((2, 2))])
def test_other_tables_are_refused(wins):
    with pytest.raises(ValueError, match="wins: expected"):
        bradley_terry(wins)
