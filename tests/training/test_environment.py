"""Environment that is recorded with a run: the processor, and the commit with and without git."""

import subprocess

import pytest
import torch

from rewardedit.training import environment as recorded

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CPU_INFO = """processor	: 0
vendor_id	: GenuineIntel
cpu family	: 6
model		: 207
model name	: Some Processor
stepping	: 2
flags		: fpu avx avx2 fma avx512f avx512_bf16 amx_bf16 amx_tile bmi2

processor	: 1
model		: 1
"""


def test_the_record_says_which_processor_it_was_made_on(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(CPU_INFO)
    cpu = recorded.environment()["cpu"]
    numbers = [cpu[name] for name in ("name", "cpu family", "model", "stepping")]
    assert numbers == ["Some Processor", "6", "207", "2"]
    assert cpu["flags"] == ["amx_bf16", "amx_tile", "avx2", "avx512_bf16", "avx512f", "fma"]
    assert cpu["threads"] == torch.get_num_threads()
    (tmp_path / "cpuinfo").unlink()  # as on other systems than Linux
    assert recorded.cpu()["flags"] == []
    assert recorded.cpu()["name"]


def test_without_git_the_commit_is_the_named_one(tmp_path, monkeypatch):
    monkeypatch.delenv(recorded.COMMIT, raising=False)
    assert recorded.commit(tmp_path) == (None, None)
    monkeypatch.setenv(recorded.COMMIT, COMMIT)
    assert recorded.commit(tmp_path) == (COMMIT, recorded.COMMIT)
    monkeypatch.setenv(recorded.COMMIT, "$(git rev-parse HEAD)")
    with pytest.raises(ValueError, match="REWARDEDIT_COMMIT: expected what `git rev-parse HEAD` prints, got"):
        recorded.commit(tmp_path)

    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    found, source = recorded.commit(tmp_path)
    assert source == "git"
    assert found is not None
    assert len(found) == 40
