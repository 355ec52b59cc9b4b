"""Compiled scorers score as plain ones do (slow: Inductor compiles C++)."""

import shutil

import pytest
import torch

from rewardedit import EditBatch
from rewardedit.scorers import load_scorer
from rewardedit.shapes import Shapes

pytestmark = pytest.mark.slow
KINDS = ("l1", "ssim", "clip_d", "vifi_clip", "adiee", "bpm")  # one of each kind


@pytest.mark.parametrize("name", KINDS)
def test_a_compiled_scorer_gives_the_same_scores(name):
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("torch.compile needs a C++ compiler, such as g++")
    samples = Shapes("val").batch(0, 3)
    batch = EditBatch(samples.source, samples.instruction, samples.target, target=samples.target)
    scorer = load_scorer(name)
    with torch.no_grad():
        expected = scorer(batch)
        found = torch.compile(scorer)(batch)
    assert found.reason == expected.reason
    torch.testing.assert_close(found.score, expected.score, rtol=1e-3, atol=1e-3, equal_nan=True)
