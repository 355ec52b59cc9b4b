"""The benchmark programs run, shortened; on CUDA they do more of the same."""

import json
import sys
from pathlib import Path

import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))


def test_guidance():
    import guidance

    from rewardedit import load_editor

    found = guidance.quality(28)
    assert set(found["oracle"]) == {"plain", "guided"}
    assert found["guided_minus_plain"]["preservation"]["difference"] > 0
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


def recorded(name: str) -> dict:
    return json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())


def test_what_was_measured_holds_what_is_promised():
    quickstart, guidance = recorded("quickstart")["oracle"], recorded("guidance")
    assert min(quickstart["ci95"][0], quickstart["ci95_vs_one"][0]) > 0
    assert quickstart["n"] >= 128
    assert recorded("shapes-editor")["oracle"]["plain"]["all"] >= 3.0
    assert guidance["n"] >= 1024
    assert guidance["guided_minus_plain"]["preservation"]["ci95"][0] > 0
    assert guidance["guided_minus_plain"]["alignment"]["difference"] >= -0.2
    assert guidance["seconds_per_step"]["small, CPU, batch 8"]["extra_share"] <= 0.05
