"""The folder of a run: its one owner, what is removed for a new run and what comes back."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from rewardedit.data import DataConfig
from rewardedit.files import write_json
from rewardedit.relabel import RelabelConfig
from rewardedit.trainers.reward_conditioned import Config
from rewardedit.training.run import start
from rewardedit.training.run_folder import (
    OWNER,
    earlier,
    hold,
    holds_something,
    release,
    run_folder,
    why_no_run,
)

CONFIG = Config("x", DataConfig("shapes"), RelabelConfig("l1"), "shapes/editor")


def own_in_another_process(folder: Path) -> int:
    """Starts a process that owns a folder until it is killed; returns its id, 0 where it was refused."""
    reads, writes = os.pipe()
    process = os.fork()
    if not process:
        try:
            hold(folder)
            os.write(writes, b"1")
            time.sleep(30)
        finally:
            os._exit(1)
    os.close(writes)
    held = os.read(reads, 1)  # nothing where it has ended
    os.close(reads)
    return process if held else 0


def end(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


@pytest.fixture
def run(tmp_path) -> Path:
    """A folder as a run leaves it, without its results."""
    folder = tmp_path / "run"
    start(folder, CONFIG)
    release(folder)
    (folder / "result").write_text("of the first")
    return folder


def test_a_folder_that_another_process_owns_is_refused_until_that_is_dead(tmp_path):
    folder = tmp_path / "run"
    process = own_in_another_process(folder)
    owner = rf"process {process} of the machine \S+ runs in it; wait until it has ended"
    for tried in (
        lambda: run_folder(folder).__enter__(),
        lambda: run_folder(folder, resume=True).__enter__(),
        lambda: run_folder(folder, overwrite=True).__enter__(),
        lambda: start(folder, CONFIG),
        lambda: run_folder(folder / "variants" / "pairs_only").__enter__(),
    ):
        with pytest.raises(ValueError, match=owner):
            tried()
    assert [path.name for path in folder.iterdir()] == [OWNER]
    end(process)
    with run_folder(folder):
        assert json.loads((folder / OWNER).read_text())["pid"] == os.getpid()
    assert not folder.exists(), "nothing was begun in it"


def test_a_run_one_of_whose_variants_has_an_owner_has_one(tmp_path):
    variant = own_in_another_process(tmp_path / "variants" / "draft_1")
    with pytest.raises(ValueError, match=f"process {variant} of the machine"):
        hold(tmp_path)
    end(variant)
    hold(tmp_path)
    hold(tmp_path)  # the same process may, as a command does and the training that it starts
    assert own_in_another_process(tmp_path) == 0
    release(tmp_path)
    assert not (tmp_path / OWNER).exists()


def test_an_earlier_run_comes_back_where_the_new_one_does_not_begin(run):
    def fail() -> None:
        with run_folder(run, overwrite=True):
            assert earlier(run).is_dir()
            assert not holds_something(run)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (run / "result").read_text() == "of the first"
    assert sorted(path.name for path in run.parent.iterdir()) == ["run"]


def test_an_earlier_run_goes_when_the_new_one_has_begun(run):
    with run_folder(run, overwrite=True):
        start(run, CONFIG)
        assert not earlier(run).exists()
    assert sorted(path.name for path in run.iterdir()) == ["config.yaml", "environment.json", "inputs.json"]


def test_a_run_that_was_killed_between_the_two_is_put_right_by_the_next(run):
    os.replace(run, earlier(run))
    with run_folder(run, resume=True):
        assert (run / "result").read_text() == "of the first"
    os.replace(run, earlier(run))
    start(run, CONFIG)  # begun, and killed before the earlier one was deleted
    release(run)
    with run_folder(run, resume=True):
        start(run, CONFIG, resume=True)
    assert sorted(path.name for path in run.parent.iterdir()) == ["run"]


def test_a_run_that_was_killed_before_it_had_begun_is_started_by_the_same_command(tmp_path):
    for name in (".config.yaml.0a1b2c3d-77-01234567.partial", "environment.json", OWNER):
        (tmp_path / name).write_text("{}")
    for resume in (False, True):
        with run_folder(tmp_path, resume=resume):
            assert json.loads((tmp_path / OWNER).read_text())["pid"] == os.getpid()


def test_a_run_whose_inputs_lie_in_its_folder_is_not_removed_for_itself(run):
    settings = {"base": "a", "data": [{"path": str(run / "result")}]}
    with (
        pytest.raises(ValueError, match=r"would remove .*result, which the settings name"),
        run_folder(run, overwrite=True, settings=settings),
    ):
        pass
    assert (run / "result").read_text() == "of the first"


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_there_is_nothing_to_resume_in_an_empty_folder(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    error = "there is no run to go on with; leave --resume out to start one"
    with (
        pytest.raises(ValueError, match=error),
        run_folder(tmp_path / folder, resume=True),
    ):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]


def test_a_run_is_known_by_what_it_says_of_itself(run):
    assert why_no_run(run) is None
    write_json(run / "environment.json", {"trainer": 5})
    assert why_no_run(run) == f"{run / 'environment.json'}: trainer: expected a name; got int"
    (run / "environment.json").unlink()
    assert "has no config.yaml and environment.json" in str(why_no_run(run))
