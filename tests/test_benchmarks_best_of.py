"""The comparison of best-of-N with stock diffusers runs, shortened, and computes its ratio."""

import sys

import pytest
import torch

from tests.readme import BENCHMARKS

sys.path[:0] = [str(BENCHMARKS)]


@pytest.mark.world
def test_both_choose_the_same_image_and_are_timed():
    import speed_best_of

    found = speed_best_of.measure(rounds=2, steps=(1, 2), n=3, memory=False)
    assert list(found) == ["best of 3, 1 steps", "best of 3, 2 steps"]
    for figures in found.values():
        assert set(figures) == {"ratio", "spread", "n", "seconds", "limit_gflops", "limit_share"}
        assert figures["n"] == 2
        assert figures["ratio"] > 0
        assert figures["spread"] >= 0
        assert 0 < figures["limit_share"] < 1


def test_another_image_is_no_comparison():
    import speed_best_of

    image = torch.zeros(3, 2, 2)
    with pytest.raises(ValueError, match="expected the same image from both; they differ by 1"):
        speed_best_of.require_same({"plain": lambda: image + 1, "ours": lambda: image})
