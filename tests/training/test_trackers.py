"""Logging of a training: metrics, the run's settings and previews,
in every tracker that accelerate supports.
"""

import contextlib
import io
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from accelerate.utils import LoggerType
from torch import nn

from rewardedit.cli import load_recipe
from rewardedit.data import DataConfig
from rewardedit.files import read_log
from rewardedit.images import load_image
from rewardedit.trainers.refl import Config, TrainConfig
from rewardedit.trainers.refl import train as train_refl
from rewardedit.training.fit import SmallTrainConfig, fit
from rewardedit.training.monitor import MonitorConfig
from rewardedit.training.reward import RewardConfig
from rewardedit.training.trackers import TAKES_IMAGES, Tracker, flatten, run_name

AVAILABLE = "accelerate.tracking._available_trackers"  # what accelerate found installed


class Memory(GeneralTracker):
    """A tracker of accelerate's kind that takes no images; what it is given stays in memory."""

    name = "comet_ml"
    requires_logging_directory = False
    tracker = None
    settings: ClassVar[dict[str, Any]] = {}
    logged: ClassVar[list[tuple[int, dict[str, float]]]] = []

    def __init__(self, project: str) -> None:
        super().__init__()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.settings.update(values)

    def log(self, values: dict[str, float], step: int | None = None, **_: Any) -> None:
        self.logged.append((step or 0, values))


def train_small(folder: Path, tracker: Tracker) -> None:
    model = nn.Linear(2, 2)
    config = SmallTrainConfig(
        max_steps=2, batch_size=1, lr_warmup_steps=1, mixed_precision="no", log_every=1, tracker=tracker
    )
    fit(config, {"model": model}, lambda step, generator: model.weight.square().sum(), folder, resume=False)


def train_editor(base: str, folder: Path, tracker: Tracker) -> None:
    settings = TrainConfig(
        max_steps=2,
        batch_size=2,
        lr_warmup_steps=1,
        log_every=1,
        ema=None,
        tracker=tracker,
        validate_every=1,
        validation_rows=2,
    )
    watch = MonitorConfig(n=2, num_inference_steps=1, held_out={"clip_d": {"checkpoint": "shapes/clip"}})
    reward = RewardConfig("l1", num_inference_steps=(2,), stop_before_end=(0, 0), weight=0.1)
    train_refl(Config("x", DataConfig("shapes", limit=4, size=32), reward, base, settings, watch), folder)


@pytest.fixture(scope="module")
def tracked(tiny_editor, tmp_path_factory) -> tuple[Path, list[str]]:
    """The folder of a run that logs to TensorBoard and to a tracker without images,
    and what it said of trackers.
    """
    folder = tmp_path_factory.mktemp("tracked") / "run"
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(AVAILABLE, [LoggerType.TENSORBOARD, LoggerType.COMETML])
        patch.setitem(LOGGER_TYPE_TO_CLASS, "comet_ml", Memory)
        train_editor(tiny_editor, folder, "all")
    return folder, [line for line in out.getvalue().splitlines() if "tracker" in line]


def test_tensorboard_holds_metrics_settings_and_previews(tracked, tiny_editor, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    folder, _ = tracked
    logs = [EventAccumulator(str(path)).Reload() for path in sorted((folder / "logs").rglob("events*"))]
    metrics = next(log for log in logs if "loss" in log.Tags()["scalars"])
    hparams = next(log for log in logs if "_hparams_/session_start_info" in log.summary_metadata)

    assert [event.step for event in metrics.Scalars("reward")] == [1, 2]
    content = hparams.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    settings = HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["base"].string_value == tiny_editor
    assert settings["train.lr"].number_value == 5e-5
    assert settings["reward.num_inference_steps"].string_value == "[2]"
    assert settings["data.limit"].number_value == 4
    assert settings["folder"].string_value == str(folder)

    assert metrics.Tags()["images"] == ["validation/00", "validation/01"]
    images = metrics.Images("validation/01")
    assert [image.step for image in images] == [1, 2]
    (tmp_path / "logged.png").write_bytes(images[1].encoded_image_string)
    preview = load_image(folder / "validation" / "step-000002" / "01.png")
    assert preview.shape == (3, 32, 64), "source beside edit"
    np.testing.assert_allclose(load_image(tmp_path / "logged.png"), preview, atol=1.5 / 255)


def test_a_tracker_without_images_has_the_rest_and_that_is_said_once(tracked):
    folder, said = tracked
    assert said == [
        f"tracker: comet_ml takes no images from accelerate; previews are in {folder / 'validation'}"
    ]
    assert [step for step, _ in Memory.logged] == [1, 2]
    assert {"loss", "lr", "reward"} <= set(Memory.logged[0][1])
    assert Memory.settings["name"] == "x"
    assert Memory.settings["train.tracker"] == "all"


@pytest.mark.parametrize(
    ("tracker", "said"),
    [
        (
            "tensorboard",
            "tensorboard is not installed (pip install 'tensorboard>=2.18'); metrics are in metrics.jsonl",
        ),
        ("all", "none that accelerate knows is installed; metrics are in metrics.jsonl"),
    ],
)
def test_without_its_package_a_training_runs_and_says_that_it_has_no_tracker(
    tracker, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(AVAILABLE, [])
    train_small(tmp_path, tracker)
    lines = [line for line in capsys.readouterr().out.splitlines() if "tracker" in line]
    assert lines == [f"no tracker: {said}"]
    assert [line["step"] for line in read_log(tmp_path)] == [1, 2]
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("tracker", "remedy"), [("trackio", "pip install trackio"), ("wandb", "pip install 'wandb'")]
)
def test_a_tracker_that_was_asked_for_by_name_and_is_missing_is_refused(tracker, remedy, monkeypatch):
    monkeypatch.setattr(AVAILABLE, [])
    with pytest.raises(ValueError, match=f"tracker: {tracker} is not installed; {remedy}, or take"):
        SmallTrainConfig(tracker=tracker)


def test_every_tracker_of_accelerate_is_known_and_no_other():
    assert set(get_args(Tracker)) == {*LOGGER_TYPE_TO_CLASS, "all", "none"}
    assert set(TAKES_IMAGES) == {
        name for name, kind in LOGGER_TYPE_TO_CLASS.items() if hasattr(kind, "log_images")
    }
    assert load_recipe("quickstart", ["train.tracker=none"])[1].train.tracker == "none"
    with pytest.raises(
        ValueError, match=r"train\.tracker: expected one of .*comet_ml.*; got 'wandbb'; did you mean wandb"
    ):
        load_recipe("quickstart", ["train.tracker=wandbb"])


def test_settings_are_flat_values_that_every_tracker_takes():
    flat = flatten({"a": {"b": 1, "c": [1, 2], "d": {}}, "e": None, "f": True, "g": 0.5})
    assert flat == {"a.b": 1, "a.c": "[1, 2]", "a.d": "{}", "e": "None", "f": True, "g": 0.5}


def test_a_part_of_a_comparison_has_a_name_of_its_own():
    assert run_name(Path("runs/mine"), {"name": "shapes-refl"}) == "shapes-refl"
    assert run_name(Path("runs/mine/variants/refl"), {"name": "shapes-refl"}) == "shapes-refl-refl"
