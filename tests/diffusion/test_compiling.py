"""Compiled editors edit as plain ones do."""

import shutil
import subprocess
import sys

import pytest
import torch

from rewardedit.diffusion.compiling import compile_blocks
from rewardedit.diffusion.editors import Editor, SamplingConfig, as_editor
from rewardedit.diffusion.guidance import mask_guidance
from tests.models import tiny_pipeline

SIZES = ((1, 32, 32), (1, 32, 64), (2, 48, 32), (3, 64, 64))  # images and their sides


@pytest.fixture
def editor():
    torch.compiler.reset()
    yield as_editor(tiny_pipeline())
    torch.compiler.reset()


def edit(editor: Editor, b: int, h: int, w: int) -> torch.Tensor:
    source = torch.rand(b, 3, h, w, generator=torch.Generator().manual_seed(0))
    return editor(source, ["make it red"] * b, settings=SamplingConfig(2))


def test_blocks_that_run_as_graphs_edit_the_same(editor):
    plain = [edit(editor, *size) for size in SIZES[:2]]
    compilation = compile_blocks(editor.pipe.unet, backend="eager")
    for size, wanted in zip(SIZES, plain, strict=False):
        torch.testing.assert_close(edit(editor, *size), wanted, rtol=0, atol=1e-6)
    assert compilation.graphs > 0
    with mask_guidance(editor.pipe, torch.zeros(1, 1, 32, 32)):
        assert not torch.equal(edit(editor, *SIZES[0]), plain[0])
    assert torch.equal(edit(editor, *SIZES[0]), plain[0])


@pytest.mark.slow
def test_sizes_after_the_second_need_no_further_graphs(editor):
    compilation = compile_blocks(editor.pipe.unet, backend="eager")
    counts = []
    for size in (*SIZES, (4, 32, 48)):
        edit(editor, *size)
        counts.append(compilation.graphs)
    blocks = sum(type(m).__name__ == "BasicTransformerBlock" for m in editor.pipe.unet.modules())
    assert counts[0] < blocks  # one for all of a kind
    assert counts[2:] == counts[2:3] * 3


def test_blocks_that_cannot_be_compiled_run_as_they_are(editor):
    plain = [edit(editor, *size) for size in SIZES[:2]]
    compilation = compile_blocks(editor.pipe.unet, backend="no such compiler")
    with pytest.warns(UserWarning, match="nothing was compiled") as warned:
        edited = [edit(editor, *size) for size in SIZES[:2]]
    assert all(map(torch.equal, edited, plain))
    assert sum("nothing was compiled" in str(w.message) for w in warned) == 1
    assert str(compilation).startswith("compile: not compiled (")


SCRIPT = """
import torch
from rewardedit.diffusion.compiling import compile_blocks
from tests.diffusion.test_compiling import SIZES, as_editor, edit, tiny_pipeline

editor = as_editor(tiny_pipeline())
plain = [edit(editor, *size) for size in SIZES[:2]]
compilation = compile_blocks(editor.pipe.unet)
for size, wanted in zip(SIZES, plain):
    torch.testing.assert_close(edit(editor, *size), wanted, rtol=0, atol=1e-4)
print(compilation)
assert compilation.graphs > 0 and compilation.seconds > 0
"""


@pytest.mark.slow
def test_inductor_compiles_blocks_that_edit_the_same():
    """In a process of its own: the checks of types that pytest adds cannot be compiled."""
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler, such as g++")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "in the compiler" in done.stdout
