"""The loops of reward feedback learning that are compared: they do the same, and differ in rollouts alone."""

import sys

import pytest

from tests.readme import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))


@pytest.mark.slow
def test_both_loops_of_refl_take_the_same_calls_but_for_the_rollouts():
    """Two micro-batches of one row each, with rollouts of three steps, the last of which has a gradient."""
    import refl
    import speed_rollout

    work = refl.small(batch=2, steps=3, micro_batch=1)
    calls: dict[str, list[int]] = {way: [] for way in refl.WAYS}
    for way, step in refl.WAYS.items():
        counted = work.pipe.unet.register_forward_pre_hook(
            lambda module, inputs, way=way: calls[way].append(len(inputs[0]))
        )
        step(work, refl.Clock(work.pipe.device))
        counted.remove()
    assert calls["papers"] == [1] * 2 * (3 + 1)
    assert calls["ours"] == [2, 2] + [1] * 2 * (1 + 1)

    ((name, found),) = speed_rollout.measure(rounds=2, steps=2, memory=False).items()
    assert name == "refl update, micro-batches of 2 in 8 rows"
    assert set(found) == {"ratio", "spread", "n", "seconds", "limit_gflops", "limit_share"}
    assert found["ratio"] > 0
    assert found["n"] == 2
