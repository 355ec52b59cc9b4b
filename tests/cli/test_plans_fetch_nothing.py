"""A plan asks the hub about downloads, and fetches none of them, though the hub would answer."""

import logging
import re
import shutil
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import datasets
import pytest
from huggingface_hub import DatasetCardData, constants
from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError
from huggingface_hub.hf_api import DatasetInfo, ModelInfo

from rewardedit.cli import main
from rewardedit.cli.announce import offline
from rewardedit.cli.recipes import header
from rewardedit.cli.train import not_computed
from rewardedit.data import DataConfig
from rewardedit.data.stream import planned_rows
from rewardedit.models import resolve_model
from tests.hub_cache import REVISION
from tests.test_gated import answer

CARD = {
    "dataset_info": {
        "splits": [{"name": "train", "num_examples": 8807}, {"name": "dev", "num_examples": 528}]
    }
}
GATED = "black-forest-labs/FLUX.1-Kontext-dev"


def reported(api: Any, repo_id: str, repo_type: str | None = None, **_: Any) -> Any:
    """The hub's listing of a repository: MagicBrush's rows, and that Kontext is gated."""
    if constants.HF_HUB_OFFLINE:  # as for every request
        raise OfflineModeIsEnabled
    name = repo_id
    files = [{"rfilename": "weights", "size": 10**9}]
    if repo_type == "dataset":
        return DatasetInfo(id=name, siblings=files, cardData=DatasetCardData(**CARD), tags=[], gated=False)
    return ModelInfo(id=name, siblings=files, tags=[], gated="auto" if name == GATED else False)


class Fetched(Exception):
    """A connection was tried."""


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The hub answers, and connections beyond its listings are counted."""
    connections: list[Any] = []

    def connect(*arguments: Any, **_: Any) -> None:
        connections.append(arguments)
        raise Fetched  # no OSError, after which libraries would try again for minutes

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", reported)
    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    return connections


RECIPES = {  # one of each trainer, and the code that its plan ends with where files of no hub are missing
    "magicbrush-refl": 0,
    "magicbrush-reward-conditioned": 0,
    "instruct-pix2pix-dpo": 0,
    "klein-nft": 0,
    "kontext-flow-grpo": 0,
    "humanedit-vifi-clip": 0,
    "captioner": 2,
    "adiee-scorer": 2,
    "magicbrush-adiee-data": 2,
    "magicbrush-adiee": 2,
}


@pytest.mark.parametrize(("recipe", "code"), RECIPES.items())
def test_a_plan_fetches_nothing_from_an_answering_hub(recipe, code, answering, capsys):
    assert main(["train", recipe, "--dry-run"]) == code
    told = capsys.readouterr()
    assert not answering
    assert "downloads the " in told.err
    assert "hub cannot be reached" not in told.out + told.err
    if code == 0:
        assert re.search("^rows, memory and hours .* computed once they are fetched: .*/", told.out, re.M)
        assert f"{recipe}: Memory, GiB" in told.out, "the header's, as none was computed"
        timed = any(line.startswith("Time (") for line in header(recipe))
        assert (f"{recipe}: Time (benchmarks/hours.py): about" in told.out) == timed
    assert not constants.HF_HUB_OFFLINE, "the process goes on as before"
    assert not datasets.config.HF_HUB_OFFLINE


def test_a_plan_says_what_the_hub_lists(answering, capsys):
    assert main(["train", "kontext-refl", "--dry-run"]) == 0
    told = capsys.readouterr()
    assert "rows of osunlp/MagicBrush: train 8,807, dev 528, by its card\n" in told.out
    (kontext,) = [line for line in told.err.splitlines() if GATED in line]
    assert kontext.endswith("gated: accept its terms on its page on the hub, then `hf auth login`")


def test_the_header_s_memory_is_not_that_of_other_settings(answering, capsys):
    assert main(["train", "klein-refl", "base=black-forest-labs/FLUX.2-dev", "--dry-run"]) == 0
    (memory,) = [line for line in capsys.readouterr().out.splitlines() if "Memory, GiB" in line]
    assert memory.startswith("the recipe as it stands, without your settings: klein-refl: Memory")


def test_memory_is_said_once_whatever_is_missing(tiny_editor, capsys):
    """The plan's own estimate, though rows are missing; of a recipe whose header has another one."""
    settings = ["data={name: table, path: nowhere.csv, size: 32}", f"base={tiny_editor}", "evaluate=null"]
    settings += ["reward={scorer: l1}", "monitor={held_out: {clip_i: {checkpoint: shapes/clip}}}"]
    assert main(["train", "magicbrush-refl", *settings, "--dry-run"]) == 2
    assert len(re.findall("memory, GiB", capsys.readouterr().out, re.I)) == 1


SHAPES = [
    "data={name: shapes, limit: 40, size: 32}",
    "reward={scorer: l1}",
    "monitor={held_out: {clip_i: {checkpoint: shapes/clip}}}",
    "evaluate=null",
]


@pytest.fixture
def clip_in_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a repository in the hub's cache that is no editor."""
    repo = tmp_path / "hub" / "models--own--clip"
    snapshot = repo / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(Path(resolve_model("shapes/clip"), name), snapshot)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(REVISION)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(repo.parent))
    monkeypatch.setenv("HF_HUB_CACHE", str(repo.parent))
    return "own/clip"


def test_a_file_that_no_repository_has_is_no_download(clip_in_cache, answering, capsys):
    assert main(["train", "magicbrush-refl", f"base={clip_in_cache}", *SHAPES, "--dry-run"]) == 2
    told = capsys.readouterr()
    assert "disk: nothing to download" in told.out
    assert "computed once" not in told.out
    assert "rewardedit: editor 'own/clip' is not there" in told.err


def test_weights_outside_the_hub_are_awaited(tiny_editor, answering, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    settings = [*SHAPES, f"base={tiny_editor}", "monitor.held_out=lpips"]
    assert main(["train", "magicbrush-refl", *settings, "--dry-run"]) == 0
    waits = "computed once they are fetched: weights that are not on the hub\n"
    assert waits in capsys.readouterr().out


def test_a_refused_base_is_the_last_word(answering, monkeypatch, capsys):
    def refusing(api: Any, repo_id: str, **options: Any) -> Any:
        if repo_id == "foo/typo":
            raise answer(RepositoryNotFoundError, 404)
        return reported(api, repo_id, **options)

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", refusing)
    assert main(["train", "magicbrush-refl", "base=foo/typo", "--dry-run"]) == 2
    told = capsys.readouterr()
    refusal = "model foo/typo is no file or folder here, and not on the hub, or private there: check the name"
    lines = told.err.splitlines()
    assert lines[-1] == f"rewardedit: {refusal}, or `hf auth login`"
    assert f"cannot download: {refusal}, or `hf auth login`" in lines
    assert "downloads the model foo/typo" not in told.err
    listed = sum(line.startswith("downloads the ") for line in lines)
    assert f"disk: {listed} downloads: about {listed}.0 GB;" in told.out
    assert "OfflineModeIsEnabled" not in told.out + told.err


def test_a_missing_package_is_the_last_word(answering, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    assert main(["train", "klein-refl-24gb", "--dry-run"]) == 2
    told = capsys.readouterr()
    assert told.err.splitlines()[-1].startswith("rewardedit: package bitsandbytes: pip install ")
    assert "OfflineModeIsEnabled" not in told.out + told.err


def test_streamed_rows_are_not_awaited(tiny_editor, answering, capsys):
    settings = [
        "candidates=null",
        "data.stream=true",
        "data.size=32",
        "relabel={scorer: l1}",
        "evaluate=null",
    ]
    words = ["train", "magicbrush-reward-conditioned", *settings, f"base={tiny_editor}", "--dry-run"]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "rows: streamed; " in told.out
    assert "memory, GiB" in told.out
    assert "computed once" not in told.out
    assert "disk: nothing to download" in told.out
    assert "streams the data osunlp/MagicBrush from" in told.err
    with pytest.raises(ValueError, match="stream: files are read whole; leave limit"):
        planned_rows(DataConfig("magicbrush", "osunlp/MagicBrush", size=32, stream=True, limit=4))


def test_a_plan_s_own_hours_replace_the_header_s():
    known = ["a, x alone: Time (b): 1 hour", "a, x alone: Memory, GiB: 1", "b, y alone: Time (b): 2 hours"]
    plan = ["a: x", "  training time on this machine: at least 3 hours", "b: y", "  rows: 4"]
    assert not_computed(known, plan) == known[1:]
    assert not_computed(["x: Time (b): 1 hour", "x: Memory, GiB: 1"], [plan[1].strip()]) == [
        "x: Memory, GiB: 1"
    ]


def test_a_full_cache_is_no_news(answering):
    logger = logging.getLogger("datasets.load")
    level = logging.getLogger("datasets").level
    with suppress(ValueError), offline():
        assert constants.HF_HUB_OFFLINE
        assert datasets.config.HF_HUB_OFFLINE
        assert not logger.isEnabledFor(logging.WARNING)
        raise ValueError("broken")
    assert not constants.HF_HUB_OFFLINE
    assert not datasets.config.HF_HUB_OFFLINE
    assert logging.getLogger("datasets").level == level
