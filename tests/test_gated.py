"""A repository that the hub does not give to this user is never called one that is not there."""

from collections.abc import Callable
from typing import Any

import datasets
import httpx
import pytest
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from rewardedit.data.hub import load_rows
from rewardedit.diffusion.editors import load_editor
from rewardedit.models import fetched, refusal
from rewardedit.regions.detector import Detector
from rewardedit.regions.segmenter import Segmenter
from rewardedit.scorers.load import load_scorer
from rewardedit.training.memory.blueprint import load_blueprint

NAME = "some/gated"
OPENERS: dict[str, Callable[[], Any]] = {
    "editor": lambda: load_editor(NAME),
    "plan": lambda: load_blueprint(NAME, 64),
    "judge": lambda: load_scorer("vlm_judge", checkpoint=NAME),
    "clip": lambda: load_scorer("clip_d", checkpoint=NAME),
    "dino": lambda: load_scorer("dino_i", checkpoint=NAME),
    "adiee": lambda: load_scorer("adiee", checkpoint=NAME),
    "detector": lambda: Detector.from_pretrained(NAME),
    "segmenter": lambda: Segmenter.from_pretrained(NAME),
    "files": lambda: fetched(NAME),
    "data": lambda: load_rows(NAME, "train", ("instruction",), ("source",)),
}


def answer(kind: type[HfHubHTTPError], status: int) -> HfHubHTTPError:
    request = httpx.Request("HEAD", "https://localhost/file")
    return kind("refused\nsee the page", response=httpx.Response(status, request=request))


def refuse_all(monkeypatch: pytest.MonkeyPatch, kind: type[HfHubHTTPError], status: int) -> None:
    """Makes the hub answer every request with an error."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise answer(kind, status)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", refuse)
    for name in ("repo_info", "dataset_info", "model_info"):
        monkeypatch.setattr(f"huggingface_hub.HfApi.{name}", refuse)


@pytest.mark.parametrize("opener", OPENERS)
def test_a_gated_repository_is_called_gated(opener, monkeypatch):
    refuse_all(monkeypatch, GatedRepoError, 401)
    with pytest.raises(
        ValueError, match=f"{NAME} is gated: accept its terms on its page on the hub"
    ) as error:
        OPENERS[opener]()
    assert str(error.value).splitlines()[0].count("`hf auth login`") == 1


@pytest.mark.parametrize(
    ("kind", "status", "told"),
    [
        (
            RepositoryNotFoundError,
            404,
            "a/b is no file or folder here, and not on the hub, or private there: check the name",
        ),
        (HfHubHTTPError, 403, "a/b is not given to this login: `hf auth login` with a token"),
        (HfHubHTTPError, 503, None),
    ],
)
def test_other_refusals_have_their_remedies(kind, status, told):
    try:
        try:
            raise answer(kind, status)
        except HfHubHTTPError as cause:
            raise OSError("cannot be loaded") from cause
    except OSError as error:
        said = refusal("a/b", error)
    assert said is None if told is None else said.startswith(told)


@pytest.mark.parametrize("opener", ["files", "data", "clip"])
def test_a_misspelt_path_is_called_one(opener, monkeypatch):
    refuse_all(monkeypatch, RepositoryNotFoundError, 404)
    with pytest.raises(ValueError, match=f"{NAME} is no file or folder here, and not on the hub, or private"):
        OPENERS[opener]()
