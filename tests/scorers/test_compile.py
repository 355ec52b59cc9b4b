"""Compiled scorers score as plain ones do (slow: compilers are)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
# One of each kind. Inductor takes many minutes of a CPU for the larger ones; these are traced and
# differentiated as for it, and run without code of its own.
KINDS = {
    "l1": "inductor",
    "ssim": "inductor",
    "clip_d": "inductor",
    "vifi_clip": "aot_eager",
    "adiee": "aot_eager",
    "bpm": "aot_eager",
}
SCRIPT = """
import sys

import torch

from rewardedit import EditBatch, load_scorer
from rewardedit.data.worlds import world
from rewardedit.scorer_spec import with_options
from rewardedit.shapes import Shapes

samples = Shapes("val").batch(0, 3)
batch = EditBatch(samples.source, samples.instruction, samples.target, target=samples.target)
scorer = load_scorer(with_options(sys.argv[1], world("shapes").scorers))
with torch.no_grad():
    expected = scorer(batch)
    found = torch.compile(scorer, backend=sys.argv[2])(batch)
assert found.reason == expected.reason
torch.testing.assert_close(found.score, expected.score, rtol=1e-3, atol=1e-3, equal_nan=True)
assert torch._dynamo.utils.counters["frames"]["ok"] > 0, "nothing was compiled"
"""


@pytest.mark.parametrize(("name", "backend"), KINDS.items())
def test_a_compiled_scorer_gives_the_same_scores(name, backend):
    """In a process of its own: the checks of types that pytest adds cannot be compiled."""
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("torch.compile needs a C++ compiler, such as g++")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", SCRIPT, name, backend]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
