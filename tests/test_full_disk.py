"""A disk that fills up: one clear line, nothing half-written, and the rest once there is room."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rewardedit.cli import main
from rewardedit.cli.terminal import disk_full_message
from rewardedit.files import join_arrays, write_json
from rewardedit.stages.stage import stage
from rewardedit.synthesis.outputs import Output, write_outputs
from tests.kills import made, quickstart

SIZE = 64  # MiB of the disk


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, room: int) -> Path:
    """A file that leaves so many bytes of the disk."""
    path = disk / "filler"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - room)
    return path


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def short(editor: str, out: Path) -> list[str]:
    """Every stage, on few rows."""
    return [*quickstart(Path(editor), out), "data.limit=12", "train.max_steps=4"]


@pytest.fixture(scope="module")
def whole(tiny_editor, tmp_path_factory) -> Path:
    """An unbroken run of relabelling and training."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main(short(tiny_editor, folder)) == 0
    return folder


@pytest.mark.parametrize(
    "share", [pytest.param(0.05, marks=pytest.mark.slow), 0.4, pytest.param(0.8, marks=pytest.mark.slow)]
)
def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(share, whole, disk, tiny_editor, capsys):
    filler = fill(disk, round(share * size(whole)))
    out = disk / "run"
    assert main(short(tiny_editor, out)) == 2
    assert complaints(capsys) == [FULL.format(out)]
    assert not list(disk.rglob("*.partial"))
    filler.unlink()
    assert main(["train", str(out), "--resume"]) == 0  # its settings stand in its folder
    assert made(out) == made(whole)


def test_a_file_that_may_not_grow_is_told_alike(tmp_path, capsys):
    """A limit on file sizes replaces a full disk, for machines on which no disk can be mounted."""
    words = ["score", "name=shapes", "limit=200", "size=16", "--scorer", "l1", "--out"]
    out = tmp_path / "scores.parquet"
    with no_room():
        assert main([*words, str(out)]) == 2
    assert complaints(capsys) == [FULL.format(out)]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["making.json"]
    assert main([*words, str(out)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["scores.parquet"]


def test_what_numpy_says_of_a_full_disk_is_told_alike(tmp_path):
    """NumPy raises an OSError without an errno."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with (
            (tmp_path / "a").open("wb", buffering=0) as file,
            pytest.raises(OSError, match="written") as full,
        ):
            np.zeros(3000).tofile(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert full.value.errno is None
    told = disk_full_message(full.value, "runs/own")
    assert told is not None
    assert "no space left for runs/own" in told


def arrays(number: int, path: Path) -> None:
    path.mkdir()
    np.save(path / "latents.npy", np.zeros((64, 128), np.float32))


def table(number: int, path: Path) -> None:
    record = {"row": number, "image": os.urandom(32768), "reason": None}
    write_outputs([Output(**record)], path)


def texts(number: int, path: Path) -> None:
    write_json(path, {"texts": ["text" * 100] * 80})


@pytest.mark.parametrize("make", [arrays, table, texts])
def test_a_shard_that_finds_no_room_leaves_nothing_and_is_made_when_there_is_some(make, tmp_path):
    with no_room(), pytest.raises(Exception) as full:  # noqa: PT011
        stage(tmp_path / "s", {}, make, 1)
    assert disk_full_message(full.value, str(tmp_path)) == FULL.format(tmp_path).removeprefix("rewardedit: ")
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["making.json"]
    assert stage(tmp_path / "s", {}, make, 1)[0].exists()


def test_arrays_that_find_no_room_together_are_joined_when_there_is_some(tmp_path):
    def join(paths: list[Path]) -> None:
        join_arrays([path / "latents.npy" for path in paths], tmp_path / "s" / "all.npy")

    with pytest.raises(RuntimeError):
        stage(tmp_path / "s", {}, arrays, 3, finish=stop)
    with no_room(40_000), pytest.raises(OSError, match="too large") as full:
        stage(tmp_path / "s", {}, arrays, 3, finish=join)
    assert disk_full_message(full.value, str(tmp_path)) is not None
    assert not list(tmp_path.rglob("*.partial"))
    stage(tmp_path / "s", {}, arrays, 3, finish=join)
    assert np.load(tmp_path / "s" / "all.npy").shape == (192, 128)


def stop(paths: list[Path]) -> None:
    raise RuntimeError("ended before they are joined")


@contextmanager
def no_room(most: int = 4096) -> Iterator[None]:
    """No file may grow above so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


FULL = "rewardedit: no space left for {}; make room, and give the command again (train: with --resume)"


def complaints(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("rewardedit:")]
