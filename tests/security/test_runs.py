"""Training from an untrusted recipe, folder or checkpoint: no file is deleted, no code runs and nothing is
sent.
"""

import json
import os
import pickle
import shutil
import socket
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from rewardedit.cli import main
from rewardedit.cli.announce import announcements
from rewardedit.data import DataConfig
from rewardedit.relabel import RelabelConfig
from rewardedit.trainers.reward_conditioned import Config
from rewardedit.training.fit import SmallTrainConfig, fit
from rewardedit.training.run import start
from rewardedit.training.run_folder import release

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
    start(folder, Config("x", DataConfig("shapes"), RelabelConfig("l1"), "shapes/editor"))
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


@pytest.fixture
def without_training(monkeypatch) -> None:
    """A run that begins although it must not ends at once."""
    monkeypatch.setattr("rewardedit.trainers.reward_conditioned.main", lambda *_, **__: None)


@pytest.mark.usefixtures("without_training")
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


@pytest.mark.usefixtures("without_training")
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_does_not_choose_a_folder(name, victim, capsys):
    plant(victim)
    recipe = victim.parent / "own.yaml"
    name = json.dumps(name.format(victim.parent))
    recipe.write_text(
        f"trainer: reward_conditioned\ndata: {{name: shapes}}\nrelabel: {{scorer: l1}}\nname: {name}\n"
    )
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


JUDGE = "{vlm_judge: {checkpoint: 'https://judge.example:8443/v1#m', key_variable: PLANTED_TOKEN}}"
PARSER = (
    "{bpm: {checkpoint: shapes/detector, parser: 'https://parser.example/v1#m', parser_cache: /etc/planted}}"
)


@pytest.fixture
def connections(monkeypatch) -> list:
    """Addresses that somebody wanted to be connected with."""
    asked: list = []

    def connect(self, address):
        asked.append(address)
        raise OSError("no network here")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setenv("PLANTED_TOKEN", "the-secret-itself")
    return asked


@pytest.mark.parametrize(
    ("setting", "lines"),
    [
        (
            f"relabel.scorer={JUDGE}",
            ["asks judge.example:8443, with the key in PLANTED_TOKEN; sent there: images and instructions"],
        ),
        (
            f"relabel.scorer={PARSER}",
            ["asks parser.example, with no key; sent there: instructions", "writes /etc/planted"],
        ),
        (
            "relabel.scorer={clip_d: {checkpoint: planted/clip}}",
            ["downloads the model planted/clip from https://huggingface.co: size and licence unknown"],
        ),
        ("train.tracker=tensorboard", []),
        (
            "base=planted/editor",
            ["downloads the model planted/editor from https://huggingface.co: size and licence unknown"],
        ),
    ],
)
def test_what_a_recipe_sends_fetches_and_writes_is_said_in_a_dry_run(setting, lines, capsys, connections):
    main(["train", "quickstart", "base=/nowhere", setting, "--dry-run"])  # without a base it ends soon
    told = capsys.readouterr()
    said = [line for line in told.err.splitlines() if not line.startswith("rewardedit:")]
    assert said == lines
    assert "the-secret-itself" not in told.err + told.out
    assert connections == []
    assert not Path("/etc/planted").exists()


def test_a_recipe_that_would_send_a_secret_of_the_machine_is_refused(capsys, connections, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret-itself")
    setting = f"relabel.scorer={JUDGE.replace('PLANTED_TOKEN', 'AWS_SECRET_ACCESS_KEY')}"
    assert main(["train", "quickstart", setting, "--dry-run"]) == 2
    told = capsys.readouterr()
    assert "AWS_SECRET_ACCESS_KEY, which holds another service's secret" in told.err
    assert "the-secret-itself" not in told.err + told.out
    assert connections == []


def test_the_run_that_is_replaced_is_said_and_stays_in_a_dry_run(victim, capsys):
    plant(victim)
    main(words(victim, "base=/nowhere", "--dry-run"))
    assert f"replaces the run in {victim}, which is deleted when" in capsys.readouterr().err
    assert (victim / "victim").read_text() == "mine"


def test_every_address_is_a_host_that_is_asked_whatever_the_setting_is_called():
    strange = {"a": [{"b": ("x", {"c": "HTTPS://One.example/v1"})}], "parser": ["http://10.0.0.7:80/v1#m"]}
    assert announcements(strange) == [
        "asks 10.0.0.7:80, with no key; sent there: instructions",
        "asks one.example, with no key; sent there: images and instructions",
    ]
    for harmless in (
        "l1",
        "clip_d:0.7,l1:0.3",
        "{instruction}. Rating: {word}",
        "a/b:c d",
        "C:x",
        "s3://a/b",
    ):
        assert announcements({"setting": harmless}) == []
    assert announcements({"train": {"tracker": "swanlab"}}) == [
        "tracker swanlab: metrics, settings and previews are sent to its server"
    ]
    code = {"a": [{"strange.module:Reward": {}}], "b": "l1:0.5,reward.py:score:0.5"}
    assert announcements(code) == [
        "runs code that is not rewardedit's: strange.module:Reward",
        "runs code that is not rewardedit's: reward.py:score",
    ]


def test_scoring_and_relabelling_say_what_they_ask(tmp_path, capsys, connections):
    photo = str(tmp_path / "photo.png")
    Image.new("RGB", (32, 32)).save(photo)
    line = "asks judge.example:8443, with the key in PLANTED_TOKEN; sent there: images and instructions"
    once = JUDGE.replace("key_variable", "retries: 0, key_variable")
    for command in (
        ["score", photo, photo, "make it red", "--scorer", once],
        ["edit", photo, "make it red", "--model", "no-such-model", "--scorer", JUDGE, "--out", str(tmp_path)],
        ["relabel", "data.limit=-1", f"relabel.scorer={JUDGE}", "--out", str(tmp_path / "out")],
    ):
        main(command)
        assert capsys.readouterr().err.splitlines()[0] == line, command[0]
