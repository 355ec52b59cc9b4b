"""A kill in each stage of a run; `python tests/kills.py` makes ten."""

from pathlib import Path

from tests import forks, kills


def test_a_run_that_is_killed_and_resumed_makes_what_an_unbroken_one_makes():
    ended = forks.run(Path(kills.__file__), "--kills", "1")
    assert ended.statuses == [0], ended.output[-3000:]
    n = len(kills.STAGES)
    assert f"{n} of {n} resumed runs made what an unbroken one makes" in ended.output
    assert " killed  equal" in ended.output
