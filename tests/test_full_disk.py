"""A disk that fills up: one clear line, nothing half-written, and the rest once there is room."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rewardedit.cli import main
from rewardedit.cli.terminal import full_disk
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


@pytest.fixture(scope="module")
def whole(tiny_editor, tmp_path_factory) -> Path:
    """An unbroken run of relabelling and training."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main(quickstart(tiny_editor, folder)) == 0
    return folder


@pytest.mark.parametrize(
    "share", [pytest.param(0.05, marks=pytest.mark.slow), 0.4, pytest.param(0.8, marks=pytest.mark.slow)]
)
def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(share, whole, disk, tiny_editor, capsys):
    filler = fill(disk, round(share * size(whole)))
    out = disk / "run"
    assert main(quickstart(tiny_editor, out)) == 2
    assert complaints(capsys) == [FULL.format(out)]
    assert not list(disk.rglob("*.partial"))
    filler.unlink()
    assert main(["train", str(out), "--resume"]) == 0  # its settings stand in its folder
    assert made(out) == made(whole)


def test_a_file_that_may_not_grow_is_told_alike(tmp_path, capsys):
    """Where no disk can be mounted: a limit on the size of files stands for a full disk."""
    words = ["score", "name=shapes", "rows=200", "size=16", "--scorer", "l1", "--out"]
    out = tmp_path / "scores.parquet"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        assert main([*words, str(out)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert complaints(capsys) == [FULL.format(out)]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["making.json"]
    assert main([*words, str(out)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["scores.parquet"]


def test_what_numpy_says_of_a_full_disk_is_told_alike(tmp_path):
    """Which raises an OSError without the system's number."""
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
    told = full_disk(full.value, "runs/own")
    assert told is not None
    assert "no space left for runs/own" in told


FULL = "rewardedit: no space left for {}; make room, and give the command again (train: with --resume)"


def complaints(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("rewardedit:")]
