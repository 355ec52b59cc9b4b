"""A plan asks the hub about downloads, and fetches none of them, though the hub would answer."""

import re
import socket
from typing import Any

import pytest
from huggingface_hub import DatasetCardData, constants
from huggingface_hub.errors import OfflineModeIsEnabled
from huggingface_hub.hf_api import DatasetInfo, ModelInfo

from rewardedit.cli import main

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
    import datasets

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
        assert re.search("^computed once they are fetched, .*: .*/", told.out, re.M)
        assert f"{recipe}: Memory, GiB" in told.out, "the header's, as none was computed"


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
