"""Executors of a stage's shards: leases between processes, late and dead ones, and a Ray cluster."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rewardedit.files import create
from rewardedit.stages import executors, leases
from rewardedit.stages.executors import Shards, run_in_processes, use_engine
from rewardedit.stages.lazy import Lazy
from rewardedit.stages.leases import Leases
from rewardedit.stages.stage import stage
from tests import forks
from tests.stages import ray_cluster

ELSEWHERE = {"machine": "another machine", "pid": 1, "beats": 0}


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    own = Clock()
    monkeypatch.setattr(leases, "time", own)
    monkeypatch.setattr(executors, "time", own)
    return own


def test_what_one_process_makes_no_other_takes(tmp_path):
    with Leases().claim(tmp_path / "a") as first, Leases().claim(tmp_path / "a") as second:
        assert (first, second) == (True, False)
        with Leases().claim(tmp_path / "b") as other:
            assert other
    assert list(tmp_path.iterdir()) == []


def test_a_claim_that_another_machine_left_is_taken_when_it_has_not_changed_for_a_minute(tmp_path, clock):
    file = tmp_path / ".a.claim"
    file.write_text(json.dumps(ELSEWHERE))
    own = Leases()

    def is_granted(seconds: float) -> bool:
        clock.sleep(seconds)
        with own.claim(tmp_path / "a") as granted:
            return granted

    assert not is_granted(0)
    assert not is_granted(59)
    file.write_text(json.dumps({**ELSEWHERE, "beats": 1}))  # its owner lives
    assert not is_granted(59)
    assert not is_granted(59)
    assert is_granted(2)
    assert not file.exists()


def test_a_claim_of_a_dead_process_of_this_machine_is_taken_at_once(tmp_path):
    dead = os.fork()
    if dead == 0:
        os._exit(0)
    os.waitpid(dead, 0)
    owner = {"machine": leases.machine(), "pid": dead, "beats": 0}
    (tmp_path / ".a.claim").write_text(json.dumps(owner))
    with Leases().claim(tmp_path / "a") as granted:
        assert granted
    (tmp_path / ".a.claim").write_text(json.dumps({**owner, "pid": os.getppid()}))
    with Leases().claim(tmp_path / "a") as granted:
        assert not granted


def test_an_owner_writes_its_claim_anew_while_it_works(tmp_path):
    with Leases(heartbeat=0.01).claim(tmp_path / "a"):
        texts: set[str] = set()
        while len(texts) < 3:
            texts.add((tmp_path / ".a.claim").read_text())
    assert not (tmp_path / ".a.claim").exists()


def test_shards_that_a_dead_machine_had_begun_are_made_by_who_is_left(tmp_path, clock):
    """The first of them after a minute's waiting; what it left is cleared away."""
    made: list[int] = []

    def make(number: int, path: Path) -> None:
        if not made:  # while the other machine is at work on two of them
            for i in (1, 2):
                create(tmp_path / f".part-{i:05d}.claim", json.dumps(ELSEWHERE))
            (tmp_path / ".part-00001.another machine-1.partial").write_text("half")
        made.append(number)
        path.write_text(str(number))

    paths = stage(tmp_path, {}, make, 4)
    assert made == [0, 3, 1, 2]
    assert [path.read_text() for path in paths] == ["0", "1", "2", "3"]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"made_of.json", *(path.name for path in paths)}


def test_shards_that_another_process_makes_meanwhile_are_waited_for(tmp_path, clock, monkeypatch):
    create(tmp_path / ".b.claim", json.dumps(ELSEWHERE))
    monkeypatch.setattr(clock, "sleep", lambda seconds: (tmp_path / "b").write_text("by the other"))
    paths = [tmp_path / "a", tmp_path / "b"]
    shards = Shards(lambda number, path: path.write_text("here") and None, paths, range(2), lambda: False)
    run_in_processes(shards)
    assert [path.read_text() for path in paths] == ["here", "by the other"]


def test_a_stage_that_others_have_ended_is_not_made_again(tmp_path):
    """Its shards may be gone by then, before one is begun and while it is made."""
    made: list[int] = []

    def make(number: int, path: Path) -> None:
        made.append(number)
        path.write_text("late")

    run_in_processes(Shards(make, [tmp_path / "a"], range(1), lambda: True))
    assert made == []
    over = iter([False, False, False, True, True])
    run_in_processes(Shards(make, [tmp_path / "a"], range(1), lambda: next(over)))
    assert made == [0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("gone_at", [1, 2])
def test_a_folder_that_is_taken_away_meanwhile_is_a_stage_that_is_over(gone_at, tmp_path):
    """By the same command, started twice: it joins all shards and removes them."""
    folder = tmp_path / "shards"
    folder.mkdir()
    looks = itertools.count()

    def is_whole() -> bool:
        if next(looks) == gone_at:
            shutil.rmtree(folder)
        return not folder.exists()

    paths = [folder / "a", folder / "b"]
    run_in_processes(Shards(lambda number, path: path.write_text("late"), paths, range(2), is_whole))
    assert not folder.exists()
    with Leases().claim(folder / "a") as granted:
        assert not granted


def test_what_was_cleared_away_while_it_was_made_is_no_error_in_a_stage_that_is_over(tmp_path):
    def make(number: int, path: Path) -> None:
        path.write_text("half")
        path.unlink()  # by the process that ended the stage

    over = iter([False, True])
    executors.make_shard(Shards(make, [tmp_path / "a"], range(1), lambda: next(over)), 0)
    with pytest.raises(FileNotFoundError):
        executors.make_shard(Shards(make, [tmp_path / "a"], range(1), lambda: False), 0)


def test_other_settings_may_be_tried_where_nothing_was_made(tmp_path):
    def fail(number: int, path: Path) -> None:
        raise ValueError("no weights")

    with pytest.raises(ValueError, match="no weights"):
        stage(tmp_path / "s", {"scorer": "clip_d"}, fail, 2)
    assert stage(tmp_path / "s", {"scorer": "l1"}, lambda number, path: path.touch(), 2)


def test_a_failure_takes_nothing_from_others_that_have_begun(tmp_path):
    def fail(number: int, path: Path) -> None:
        create(tmp_path / "s" / ".part-00001.claim", json.dumps(ELSEWHERE))
        raise ValueError("no room on this machine")

    with pytest.raises(ValueError, match="no room"):
        stage(tmp_path / "s", {"scorer": "clip_d"}, fail, 2)
    names = {path.name for path in (tmp_path / "s").iterdir()}
    assert names == {"making.json", ".part-00001.claim"}
    with pytest.raises(ValueError, match="made with other settings"):
        stage(tmp_path / "s", {"scorer": "l1"}, fail, 2)


def test_what_a_kill_left_after_the_end_is_removed_by_the_next_call(tmp_path):
    made = lambda number, path: path.write_text(str(number)) and None  # noqa: E731
    finish = lambda paths: (tmp_path / "s" / "all").write_text("all") and None  # noqa: E731
    stage(tmp_path / "s", {}, made, 2, finish=finish)
    for name in ("part-00001", ".part-00000.x-1.partial"):
        (tmp_path / "s" / name).write_text("left")
    stage(tmp_path / "s", {}, made, 2, finish=finish)
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["all", "made_of.json"]


TWICE = """
import sys, time
from pathlib import Path
from rewardedit.stages.stage import stage

folder = Path(sys.argv[1])
(folder / f"ready-{time.time_ns()}").touch()
while len(list(folder.glob("ready-*"))) < 2:
    time.sleep(0.01)

def make(number, path):
    time.sleep(0.05)
    path.write_text(str(number))

def finish(paths):
    time.sleep(0.2)
    found = [path.read_text() for path in paths]
    with (folder / "finished").open("a") as file:
        file.write(",".join(found) + "\\n")
    (folder / "s" / "all").write_text(",".join(found))

stage(folder / "s", {"of": 1}, make, 6, finish=finish)
assert (folder / "s" / "all").read_text() == "0,1,2,3,4,5"
"""


def test_one_command_given_twice_makes_one_result(tmp_path):
    """By no launcher, as on two machines: both are the main process of their own."""
    script = tmp_path / "script.py"
    script.write_text(TWICE)
    ended = forks.run(script, str(tmp_path), environments=({}, {}))
    assert ended.statuses == [0, 0], ended.output[-3000:]
    assert (tmp_path / "finished").read_text() == "0,1,2,3,4,5\n"
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["all", "made_of.json"]


def test_a_copy_of_what_is_loaded_once_goes_without_it():
    import pickle

    loaded = Lazy(dict)
    assert loaded() is loaded()
    assert pickle.loads(pickle.dumps(loaded)).made == []


def test_ray_is_asked_for_where_it_is_missing(tmp_path, monkeypatch):
    import builtins

    importing = builtins.__import__

    def without_ray(name: str, *args, **options):
        if name == "ray":
            raise ImportError(name)
        return importing(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    with use_engine("ray"), pytest.raises(ValueError, match=r"engine ray needs Ray: pip install 'ray"):
        stage(tmp_path / "s", {}, lambda number, path: path.touch(), 1)


RAY = """
import os, signal, sys
from pathlib import Path
import ray
from rewardedit.stages.executors import use_engine
from rewardedit.stages.stage import stage

folder = Path(sys.argv[1])
ray.init(num_cpus=2, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False)

def make(number, path):
    if number == 1 and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    path.write_text(str(number))

def broken(number, path):
    raise ValueError("row 3: the image is missing")

with use_engine("ray"):
    made = stage(folder / "s", {}, make, 3)
    try:
        stage(folder / "broken", {}, broken, 1)
    except ValueError as error:
        print(error)
print([path.read_text() for path in made])
"""


@pytest.mark.slow
def test_ray_makes_the_shards_though_a_worker_is_killed(tmp_path):
    """In a process of its own: what pytest adds to check types cannot be sent to workers."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "RAY_worker_niceness": "0"}
    command = [sys.executable, "-c", RAY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "killed").exists()
    assert "row 3: the image is missing" in done.stdout
    assert "['0', '1', '2']" in done.stdout


@pytest.mark.slow
def test_a_ray_cluster_of_two_nodes_makes_what_one_process_makes(tiny_editor, tmp_path):
    """In a process of its own: what pytest adds to check types cannot be sent to workers."""
    script = Path(ray_cluster.__file__)
    environment = {**os.environ, "PYTHONPATH": str(script.parents[2]), "RAY_worker_niceness": "0"}
    command = [sys.executable, str(script), str(tmp_path), tiny_editor]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=550)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all shards are equal" in done.stdout
