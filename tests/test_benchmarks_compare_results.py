"""Recorded results of two commits are compared number by number, also where their folder moved."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readme import BENCHMARKS

sys.path.insert(0, str(BENCHMARKS))

import compare_results

BEFORE = {"notes": ["3 tries"], "date": 1, "n": 280, "gain": {"clip": [0.5, 0.25]}, "kept": 7.5, "seed": 3}
AFTER = {"notes": ["2 tries"], "date": 2, "n": 281, "gain": {"clip_d": [0.5, 0.25]}, "kept": 7.5, "hours": 9}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True)

    git("init", "-q")
    for folder, result in (("results", BEFORE), ("benchmarks/results", AFTER)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.json").write_text(json.dumps(result))
        git("add", "-A")
        git("commit", "-qm", folder)
        (tmp_path / folder / "a.json").unlink()
    return tmp_path


def test_each_number_that_differs_is_listed(repository):
    assert compare_results.report(repository, "HEAD~1") == [
        "a.json: 5 numbers, 5 differ",
        "  changed n: 280 → 281",
        "  moved gain.clip.0: 0.5, now gain.clip_d.0",
        "  moved gain.clip.1: 0.25, now gain.clip_d.1",
        "  vanished seed: 3",
        "  appeared hours: 9",
    ]
    assert compare_results.report(repository, "HEAD") == ["a.json: 5 numbers, 0 differ"]


def test_a_number_that_stays_undefined_is_equal():
    undefined = {"correlation": float("nan")}
    assert compare_results.compare(undefined, dict(undefined)) == []
