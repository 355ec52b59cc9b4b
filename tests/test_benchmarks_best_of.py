"""The comparison of best-of-N with stock diffusers runs, shortened, and computes its ratio."""

import sys

import pytest
import torch

from tests.readme import BENCHMARKS

sys.path[:0] = [str(BENCHMARKS)]


@pytest.mark.world
def test_both_choose_the_same_image_and_are_timed():
    import speed_best_of

    found = speed_best_of.measure(rounds=2, steps=(1, 2), n=3)
    assert list(found) == ["best of 3, 1 steps", "best of 3, 2 steps"]
    for figures in found.values():
        assert set(figures) == {"ratio", "spread", "n"}
        assert figures["n"] == 2
        assert figures["ratio"] > 0
        assert figures["spread"] >= 0


def test_the_ratio_is_stocks_time_over_ours(monkeypatch):
    import speed_best_of

    image = torch.zeros(3, 2, 2)
    now = [0.0]
    order = []

    def takes(name, seconds):
        def work():
            now[0] += seconds
            order.append(name)
            return image

        return work

    monkeypatch.setattr(speed_best_of.time, "perf_counter", lambda: now[0])
    ways = {"stock": takes("stock", 3.0), "ours": takes("ours", 2.0)}
    assert speed_best_of.compare(ways, rounds=2) == {"ratio": 1.5, "spread": 0.0, "n": 2}
    assert order == ["stock", "ours", "ours", "stock", "stock", "ours"]


def test_another_image_is_no_comparison():
    import speed_best_of

    image = torch.zeros(3, 2, 2)
    with pytest.raises(ValueError, match="expected the same image from both; they differ by 1"):
        speed_best_of.compare({"stock": lambda: image + 1, "ours": lambda: image}, rounds=2)
