"""Measures of the benchmarks of speed: ratio, memory, share of the limit."""

import sys
from functools import partial

import pytest
import torch

from tests.readme import BENCHMARKS

sys.path[:0] = [str(BENCHMARKS)]

SIDE = 64


def products(mib: int = 0) -> dict:
    """Two ways to compute one product of matrices; the plain one fills some memory beside it."""
    a = torch.ones(SIDE, SIDE)

    def plain():
        torch.ones(mib * 2**18).add_(1)
        return a @ a

    return {"plain": plain, "ours": lambda: a @ a}


def test_the_ratio_is_the_plain_time_over_ours(monkeypatch):
    import speed_measures

    now = [0.0]
    order = []

    def takes(name, seconds):
        def work():
            now[0] += seconds
            order.append(name)

        return work

    monkeypatch.setattr(speed_measures.time, "perf_counter", lambda: now[0])
    ways = {"plain": takes("plain", 3.0), "ours": takes("ours", 2.0)}
    expected = {"ratio": 1.5, "spread": 0.0, "n": 2, "seconds": 2.0}
    assert speed_measures.compare(ways, rounds=2) == expected
    assert order == ["plain", "ours", "ours", "plain", "plain", "ours"]


def test_the_share_is_of_the_products_a_second(monkeypatch):
    import speed_measures

    monkeypatch.setattr(speed_measures, "matrix_limit", lambda dtype: 1e15)
    found = speed_measures.measure_path(products, rounds=2, memory=False)
    assert found["limit_share"] == pytest.approx(2 * SIDE**3 / found["seconds"] / 1e15)
    nothing = speed_measures.measure_path(lambda: {"plain": list, "ours": list}, rounds=2, memory=False)
    assert "limit_share" not in nothing


def test_memory_is_what_a_call_takes_at_most():
    import speed_measures

    if not speed_measures.RESET.exists():
        pytest.skip("needs Linux")
    found = speed_measures.peak_mib(partial(products, 200), "plain")
    assert 198 <= found <= 260
