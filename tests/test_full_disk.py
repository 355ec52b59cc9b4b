"""A disk that fills up: one clear line, nothing half-written, and the rest once there is room."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardedit.cli import main
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
def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(
    share, whole, disk, tiny_editor, capsys, monkeypatch
):
    from rewardedit.cli import terminal

    room = round(share * size(whole))
    filler = fill(disk, room)
    monkeypatch.setattr(terminal, "LITTLE", room)  # what is written last is larger than what is left
    out = disk / "run"
    assert main(quickstart(tiny_editor, out)) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rewardedit:")]
    assert said == [
        f"rewardedit: no space left on the disk of {out}; make room, and give the command again (train: with "
        "--resume)"
    ]
    assert not list(disk.rglob("*.partial"))
    filler.unlink()
    assert main([*quickstart(tiny_editor, out), "--resume"]) == 0
    assert made(out) == made(whole)
