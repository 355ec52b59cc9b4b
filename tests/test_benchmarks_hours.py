"""Hours in the recipes' headers are computed from the denoiser's calls, or from a language model's steps."""

import math
import sys
from pathlib import Path

import pytest

from rewardedit.cli import load_recipe, recipe_path
from rewardedit.training.estimate import unet_calls
from rewardedit.training.timing import LAUNCH

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import hours
import memory

COMPUTED = {"magicbrush-refl-24gb"}  # those that the fast suite computes


@pytest.fixture(scope="module")
def sd15():
    return memory.make_editor()


@pytest.mark.parametrize(
    "recipe",
    [
        name if name in COMPUTED else pytest.param(name, marks=pytest.mark.slow)
        for name in (*memory.OF_EDITORS, *memory.OF_VLMS)
    ],
)
def test_a_header_has_the_hours_of_the_plan(recipe, sd15):
    head = recipe_path(recipe).read_text()
    assert hours.line(recipe, sd15) in head.splitlines(), "write it anew: python benchmarks/hours.py"


def test_phases_and_passes_count_in_the_hours_of_a_vlm(monkeypatch):
    monkeypatch.setattr(memory, "vlm_step", lambda config: (0, 1e12))
    once = 15_000 * 8 * 1e12 / (0.35 * 165.2e12)
    assert hours.vlm_seconds("dice-detector") == pytest.approx(2 * once), "two phases"
    two_rows = 1e12 / (0.35 * 989.4e12)
    steps = math.ceil(30 * 65_000 / 192)
    assert hours.vlm_seconds("adiee-scorer") == pytest.approx(steps * 192 / 2 * two_rows)


def test_no_call_is_shorter_than_its_launch(sd15):
    _, config = load_recipe("magicbrush-refl-24gb", [])
    calls = unet_calls(config.train, config.reward, 1)
    least = config.train.max_steps * sum(call.passes for call in calls) * LAUNCH
    assert hours.seconds("magicbrush-refl-24gb", sd15) >= least
    tenth = hours.seconds("magicbrush-refl-24gb", sd15, ["train.max_steps=1000"])
    assert 10 * tenth == pytest.approx(hours.seconds("magicbrush-refl-24gb", sd15))
