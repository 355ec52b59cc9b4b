"""pyright over the package and the trainers, in a file of its own: it takes about a minute."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_pyright_finds_nothing():
    done = subprocess.run(
        [Path(sys.executable).with_name("pyright")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "0 errors, 0 warnings" in done.stdout, done.stdout
