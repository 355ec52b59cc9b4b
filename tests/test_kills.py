"""A kill in each stage of a run; `python tests/kills.py` makes ten."""

import os
import subprocess
import sys
from pathlib import Path

from tests import kills

ROOT = Path(__file__).parents[1]


def test_a_run_that_is_killed_and_resumed_makes_what_an_unbroken_one_makes():
    """In a process of its own, which has run no backward pass: torch allows none in a fork of one that has."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "tests/kills.py", "--kills", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    n = len(kills.STAGES)
    assert f"{n} of {n} resumed runs made what an unbroken one makes" in done.stdout
    assert " killed  equal" in done.stdout
