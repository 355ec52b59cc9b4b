"""The whole comparison at tiny size: what a page holds, that a second call scores nothing, and that a killed
one gives the same bytes.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rewardedit.cli import main
from rewardedit.shapes.bench.settings import EDITORS
from tests.readme import ROOT

pytestmark = [pytest.mark.world, pytest.mark.slow]
COMMAND = [
    *("bench", "shapes", "n=10", "candidates=3", "seeds=2", "judged=6", "timed=null", "attack.stepped=2"),
    *("attack.steps=2", "attack.combinations=[[vifi_clip, l1]]", "--scorer", "vifi_clip", "l1"),
]
FILES = ("bench.json", "bench.csv", "bench.html")


def start(out: Path) -> subprocess.Popen:
    """The command in a process group of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "rewardedit", *COMMAND, "--out", str(out)]
    return subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The folder of an unbroken call, and its seconds."""
    out = tmp_path_factory.mktemp("whole") / "bench"
    begun = time.monotonic()
    assert start(out).wait() == 0
    return out, time.monotonic() - begun


def written(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in FILES}


def test_page_holds_every_scorer_editor_and_attack(whole: tuple[Path, float]):
    found = json.loads((whole[0] / "bench.json").read_text())
    tables = {table["title"]: table for table in found["tables"]}
    assert [row["name"] for row in tables["Editors"]["rows"]] == list(EDITORS)
    usual, reserved = (table for title, table in tables.items() if "wordings" in title)
    for table in (usual, reserved):
        assert [row["name"] for row in table["rows"]] == [
            "vifi_clip",
            "l1",
            "which editor made it",
            "a random score",
        ]
    assert "pass before 2/255" in usual["columns"]
    assert "pass before 2/255" not in reserved["columns"]
    assert usual["rows"][0]["cells"] != reserved["rows"][0]["cells"]
    assert "Transfer of gradient steps within 8/255" in tables


def test_second_call_scores_nothing(whole: tuple[Path, float], capsys: pytest.CaptureFixture[str]):
    out, _ = whole
    before = written(out)
    made = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.parent != out and path.is_file()}
    main([*COMMAND, "--out", str(out)])
    assert "vifi_clip" in capsys.readouterr().out
    assert written(out) == before
    assert made == {
        path: path.stat().st_mtime_ns for path in out.rglob("*") if path.parent != out and path.is_file()
    }


@pytest.mark.parametrize("seed", range(2))
def test_killed_call_goes_on_to_the_same_bytes(whole: tuple[Path, float], tmp_path: Path, seed: int):
    out = tmp_path / "bench"
    process = start(out)
    time.sleep(random.Random(seed).uniform(0.3, 0.9) * whole[1])
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert start(out).wait() == 0
    assert written(out) == written(whole[0])
