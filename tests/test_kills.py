"""A kill in each stage of a run (slow), and what `python tests/kills.py` has recorded of ten and twenty."""

import json
from pathlib import Path

import pytest

from tests import forks, kills


@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_makes_what_an_unbroken_one_makes():
    ended = forks.run(Path(kills.__file__), "--moments", "1")
    assert ended.statuses == [0], ended.output[-3000:]
    n = len(kills.STAGES)
    assert f"{n} of {n} resumed runs made what an unbroken one makes" in ended.output
    for stage in kills.STAGES:
        assert f"SIGKILL in {stage}" in ended.output


@pytest.mark.parametrize(
    ("result", "run"), [("kills", "quickstart"), ("kills-adiee-data", "shapes-adiee-data")]
)
def test_ten_kills_of_each_stage_are_recorded_and_all_runs_are_equal(result, run):
    stages = json.loads((kills.ROOT / "benchmarks" / "results" / f"{result}.json").read_text())["stages"]
    assert set(kills.RUNS[run].stages) <= set(stages) <= set(kills.STAGES)
    for stage, found in stages.items():
        assert len(set(found["moments"])) >= 10, stage
        assert found["killed_in_it"] == found["equal"] == len(found["moments"]), stage


def test_a_hundred_runs_that_were_killed_or_stopped_are_recorded_and_all_are_equal():
    """Stopped ones by SIGSTOP, while a second process was given the same command."""
    results = kills.ROOT / "benchmarks" / "results"
    stages = {}
    for name in ("kills-stopped", "kills-stopped-trainings"):
        stages |= json.loads((results / f"{name}.json").read_text())["stages"]
    assert set(stages) == {"relabel", "shards", "share", "adiee_data", "adiee_scorer", "refl"}
    for stage, found in stages.items():
        assert found["killed_in_it"] == found["equal"] == len(found["moments"]) >= 20, stage
        assert found["signals"].keys() == {"SIGKILL", "SIGTERM", "SIGSTOP"}, stage


def test_twenty_kills_of_each_command_are_recorded_and_all_runs_are_equal():
    found = json.loads((kills.ROOT / "benchmarks" / "results" / "kill.json").read_text())
    assert found["killed"] == found["equal"] == found["n"] >= 80
