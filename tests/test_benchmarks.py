"""The benchmark programs run, shortened; on CUDA they do more of the same."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))


def test_guidance():
    import guidance

    from rewardedit import load_editor

    found = guidance.quality(14)
    assert set(found["oracle"]) == {"plain", "guided"}
    low, high = found["guided_minus_plain"]["preservation"]["ci95"]
    assert low <= found["guided_minus_plain"]["preservation"]["difference"] <= high
    cost = guidance.seconds_per_step(load_editor("shapes-editor").pipe, size=16, batch=1, steps=2, rounds=2)
    assert cost["plain"] > 0


def test_preservation_looks_outside_the_mask_alone():
    import guidance

    source, mask = torch.zeros(2, 3, 8, 8), torch.zeros(2, 1, 8, 8)
    mask[..., :4] = 1
    edited = source.clone()
    edited[0, ..., :4] = 1.0
    edited[1, ..., 4:] = 0.5
    assert guidance.preservation(source, edited, mask).tolist() == [1.0, 0.5]


def test_best_of_n():
    import best_of_n

    found = best_of_n.compare(3, 2)
    assert found["oracle"]["oracle's choice"] >= max(v for k, v in found["oracle"].items() if k != "oracle's choice")
