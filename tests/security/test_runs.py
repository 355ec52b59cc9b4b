"""What a stranger's recipe, folder or checkpoint can do where it is trained: nothing is erased, runs or is
sent.
"""

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from rewardedit.cli import main
from rewardedit.trainers.reward_conditioned import Config
from rewardedit.training.run import start
from rewardedit.training.run_folder import release
from rewardedit.training.small import SmallTrainConfig, fit

LOOP = {"mixed_precision": "no", "tracker": "none", "lr_warmup_steps": 1, "checkpoint_every": 1}


class Planted:
    """Makes a file where it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return Path.touch, (self.canary,)


def train(folder: Path, max_steps: int, resume: bool = False) -> nn.Module:
    """A training of two weights, with all that a checkpoint can hold without a GPU."""
    torch.manual_seed(0)
    module = nn.Linear(2, 1, bias=False)

    def loss_of(step: int, generator: torch.Generator) -> torch.Tensor:
        return (module(torch.randn(4, 2, generator=generator)) - step).square().mean()

    fit(SmallTrainConfig(max_steps=max_steps, ema=0.9, **LOOP), {"module": module}, loss_of, folder, resume)
    return module


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(folder, 2)
    return folder


OF_ACCELERATE = ["optimizer.bin", "random_states_0.pkl", "pytorch_model.bin", "custom_checkpoint_0.pkl"]
OURS = ["state-0.safetensors", "state-1.safetensors", "model.safetensors"]


@pytest.mark.parametrize("name", [*OF_ACCELERATE, *OURS])
@pytest.mark.parametrize("form", ["torch", "raw"])
def test_no_file_of_a_checkpoint_is_unpickled(name, form, trained, tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000002"
    checkpoint.parent.mkdir(parents=True)
    shutil.copytree(trained / "checkpoints" / "step-000002", checkpoint)
    if name == "pytorch_model.bin":  # which is read where the other is not there
        (checkpoint / "model.safetensors").unlink()
    assert name not in OURS or (checkpoint / name).exists()
    canary = tmp_path / "ran"
    if form == "torch":
        torch.save(Planted(canary), checkpoint / name)
    else:
        (checkpoint / name).write_bytes(pickle.dumps(Planted(canary)))
    with pytest.raises(
        ValueError, match=r"step-000002: cannot be loaded \(.*\); remove it, and the run goes on"
    ):
        train(tmp_path / "run", 3, resume=True)
    assert not canary.exists()


def test_the_planted_pickle_would_run(tmp_path):
    pickle.loads(pickle.dumps(Planted(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


def words(out: Path, *more: str) -> list[str]:
    """A command that would begin a run."""
    return ["train", "quickstart", "--out", str(out), "--overwrite", *more]


def plant(folder: Path) -> None:
    """A folder that looks as if it were a run, with something to be lost."""
    start(folder, Config("x"))
    release(folder)
    (folder / "victim").write_text("mine")


def home(folder: Path) -> Path:
    plant(folder)
    os.environ["HOME"] = str(folder)  # given back by the fixture
    return folder


def above_home(folder: Path) -> Path:
    plant(folder)
    (folder / "a" / "home").mkdir(parents=True)
    os.environ["HOME"] = str(folder / "a" / "home")
    return folder


def repository(folder: Path) -> Path:
    plant(folder)
    (folder / ".git").mkdir()
    return folder


def repository_within(folder: Path) -> Path:
    plant(folder)
    (folder / "checkout" / ".git").mkdir(parents=True)
    return folder


def link(folder: Path) -> Path:
    plant(folder)
    (folder.parent / "link").symlink_to(folder)
    return folder.parent / "link"


def photographs(folder: Path) -> Path:
    folder.mkdir()
    (folder / "victim").write_text("mine")
    return folder


def settings_alone(folder: Path) -> Path:
    plant(folder)
    (folder / "environment.json").unlink()
    return folder


def linked_settings(folder: Path) -> Path:
    plant(folder)
    os.replace(folder / "config.yaml", folder.parent / "elsewhere.yaml")
    (folder / "config.yaml").symlink_to(folder.parent / "elsewhere.yaml")
    return folder


def working_folder(folder: Path) -> Path:
    plant(folder)
    (folder / "below").mkdir()
    os.chdir(folder / "below")
    return Path("..")


PLANTED = [home, above_home, working_folder, repository, repository_within, link, photographs]


@pytest.fixture
def victim(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", os.environ.get("HOME", "/"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "victim's"


@pytest.mark.parametrize("planted", [*PLANTED, settings_alone, linked_settings])
def test_a_folder_that_is_no_run_is_never_removed(planted, victim, capsys):
    out = planted(victim)
    before = sorted(victim.rglob("*"))
    assert main(words(out)) == 2
    (error,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("rewardedit:"))
    assert "take another folder" in error
    assert (victim / "victim").read_text() == "mine"
    assert sorted(victim.rglob("*")) == before


NAMES = ["../victim's", "{}/victim's", "a/b", "..", ".ssh", "", "C:\\Users", "x\n", "a\u202eb", "x" * 300]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_does_not_choose_a_folder(name, victim, capsys):
    plant(victim)
    recipe = victim.parent / "own.yaml"
    name = json.dumps(name.format(victim.parent))
    recipe.write_text(f"trainer: reward_conditioned\nname: {name}\n")
    assert main(["train", str(recipe), "--overwrite"]) == 2
    assert "name: expected a plain name of one folder or file" in capsys.readouterr().err
    assert (victim / "victim").read_text() == "mine"
    assert sorted(path.name for path in victim.parent.iterdir()) == ["own.yaml", "victim's"]


@pytest.mark.parametrize(
    "wrong", ["base=/nowhere", "data={name: table, path: nowhere.csv, size: 64}", "relabel.scorer=no_such"]
)
def test_a_run_that_cannot_begin_leaves_the_earlier_one(wrong, victim, capsys):
    plant(victim)
    assert main(words(victim, wrong)) == 2
    assert (victim / "victim").read_text() == "mine"
    assert [path.name for path in victim.parent.iterdir()] == ["victim's"]


def test_a_link_in_the_place_of_a_result_goes_and_what_it_leads_to_stays(tmp_path):
    from rewardedit.files import replaced

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "victim").write_text("mine")
    (tmp_path / "pipeline").symlink_to(tmp_path / "elsewhere")
    with replaced(tmp_path / "pipeline") as aside:
        aside.mkdir()
    assert (tmp_path / "elsewhere" / "victim").read_text() == "mine"
    assert not (tmp_path / "pipeline").is_symlink()


def test_the_owner_s_file_of_a_run_is_no_way_to_another(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".owner").symlink_to(tmp_path / "victim")
    assert main(["train", "quickstart", "--out", str(tmp_path / "run")]) == 2
    assert (tmp_path / "victim").read_text() == "mine"
