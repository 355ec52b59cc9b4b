"""Where a training logs to."""

from torch import nn

from rewardedit.files import read_log
from rewardedit.training.small import SmallTrain, fit


def train(folder, tracker):
    model = nn.Linear(2, 2)
    config = SmallTrain(steps=2, batch=1, warmup=1, precision="no", log_every=1, tracker=tracker)
    fit(config, {"model": model}, lambda step, generator: model.weight.square().sum(), folder, resume=False)


def test_without_tensorboard_a_training_runs_and_says_that_it_has_no_tracker(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr("rewardedit.training.loop.find_spec", lambda name: None)
        train(tmp_path / "without", "tensorboard")
    told = [line for line in capsys.readouterr().out.splitlines() if "tracker" in line]
    assert told == [
        "no tracker: tensorboard is not installed (pip install 'rewardedit[tensorboard]'); metrics are in metrics.jsonl"
    ]
    assert [line["step"] for line in read_log(tmp_path / "without")] == [1, 2]
    assert not (tmp_path / "without" / "logs").exists()

    train(tmp_path / "with", "tensorboard")
    assert list((tmp_path / "with" / "logs").rglob("events*"))
    assert "no tracker" not in capsys.readouterr().out
