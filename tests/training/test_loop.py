"""The loop: gradients that are no numbers, how others are cut and averaged, how the learning rate runs."""

import math
import os
import signal
from pathlib import Path

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from rewardedit.files import read_log
from rewardedit.training.checkpoints import checkpoints, read_state, write_state
from rewardedit.training.fit import SmallTrainConfig, fit
from rewardedit.training.loop import LoopConfig, TrainingStopped, TrainLoop, make_accelerator
from rewardedit.training.optimizer import learning_rate_share
from rewardedit.training.stopping import Stopped
from tests.forks import launch

PLAIN = {"mixed_precision": "no", "tracker": "none", "lr_warmup_steps": 1}


def make_loop(folder: Path, lr: float = 1.0, **more: float) -> TrainLoop:
    """One of two weights, both 0, by plain gradient descent."""
    config = LoopConfig(max_steps=1, lr=lr, **PLAIN, **more)
    accelerator = make_accelerator(folder, "no", 1, "none")
    weight = nn.Parameter(torch.zeros(2))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=lr))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return TrainLoop(config, accelerator, optimizer, schedule, [weight], folder)


def test_a_gradient_that_is_no_number_stops_the_run_before_it_is_saved(tmp_path):
    """0 times infinity is one, of a loss that is finite."""
    module = nn.Linear(3, 1, bias=False)

    def loss_of(step: int, generator: torch.Generator) -> torch.Tensor:
        out = module(torch.ones(1, 3)).sum()
        return out * 0 + (out - out).clamp_min(0).sqrt() if step == 1 else out

    config = SmallTrainConfig(max_steps=3, checkpoint_every=1, lr=0.1, **PLAIN)
    with pytest.raises(
        TrainingStopped, match="the gradient is nan at step 1, in the batch of rows of step 1"
    ):
        fit(config, {"module": module}, loss_of, tmp_path, False)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000001"]


def test_a_gradient_is_cut_to_the_largest_norm(tmp_path):
    loop = make_loop(tmp_path, max_grad_norm=1.0)
    (weight,) = loop.parameters
    for _ in loop.steps():
        loop.backward((weight * torch.tensor([3.0, 4.0])).sum(), ["a"])
        loop.update()
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.6, -0.8]))


def test_a_mean_of_nothing_is_not_logged(tmp_path):
    loop = make_loop(tmp_path)
    (weight,) = loop.parameters
    for _ in loop.steps():
        loop.record("scores", torch.tensor(2.0), 3)
        loop.record("scores", torch.tensor(0.0), 0)
        loop.record("judged", torch.tensor(0.0), 0)
        loop.backward(weight.sum(), ["a"])
        loop.update()
    (line,) = read_log(tmp_path)
    assert line["scores"] == 2
    assert "judged" not in line


AVERAGED = """
import math, os, sys
from pathlib import Path
from tests.training.test_loop import make_loop

rank = int(os.environ["RANK"])
loop = make_loop(Path(sys.argv[1]), max_grad_norm=math.inf)
(weight,) = loop.parameters
for _ in loop.steps():
    loop.backward(weight.sum() * (rank + 1), ["a"])
    loop.update()
Path(sys.argv[1], f"{rank}.txt").write_text(str(weight.tolist()))
"""


def test_gradients_of_two_processes_are_averaged(tmp_path):
    script = tmp_path / "averaged.py"
    script.write_text(AVERAGED)
    launch(script, 2, str(tmp_path))
    assert [(tmp_path / f"{i}.txt").read_text() for i in range(2)] == [str([-1.5, -1.5])] * 2


def test_an_update_that_was_skipped_moves_neither_the_learning_rate_nor_the_averages(tmp_path, monkeypatch):
    """In fp16, where a gradient overflowed."""
    monkeypatch.setattr(AcceleratedOptimizer, "step_was_skipped", property(lambda _: True))
    loop = make_loop(tmp_path, ema=0.9)
    for _ in loop.steps():
        loop.backward(loop.parameters[0].sum(), ["a"])
        loop.update()
    assert loop.lr_scheduler.get_last_lr() == [1.0]
    assert loop.ema is not None
    assert loop.ema.optimization_step == 0


@pytest.mark.parametrize(("setting", "value"), [("max_grad_norm", 0.0), ("ema", 1.0), ("ema", -0.1)])
def test_settings_that_would_train_nothing_are_refused(setting, value):
    with pytest.raises(ValueError, match=f"{setting}: expected"):
        LoopConfig(**{setting: value})


def test_the_learning_rate_rises_and_falls_by_hand():
    shares = [learning_rate_share(step, warmup=2, last=8) for step in (0, 1, 4, 8, 9)]
    assert shares == pytest.approx([0.5, (1 + math.cos(math.pi / 8)) / 2, 0.5, 0, 0])
    assert learning_rate_share(8, warmup=2, last=8, floor=0.1) == pytest.approx(0.1)
    assert [learning_rate_share(step, warmup=4, last=None) for step in (0, 3, 100)] == [0.25, 1, 1]


def train_with_signals(folder: Path, signals: list[int], resume: bool = False) -> nn.Module:
    """Four steps, in the second of which the signals come."""
    torch.manual_seed(0)
    module = nn.Linear(3, 1)

    def loss_of(step: int, generator: torch.Generator) -> torch.Tensor:
        if step == 1:
            for number in signals:
                os.kill(os.getpid(), number)
        return (module(torch.randn(2, 3, generator=generator)) - step).square().mean()

    fit(SmallTrainConfig(max_steps=4, ema=0.9, **PLAIN), {"module": module}, loss_of, folder, resume)
    return module


@pytest.mark.parametrize(
    ("signals", "status"),
    [([signal.SIGINT], 130), ([signal.SIGTERM], 143), ([signal.SIGINT, signal.SIGTERM], 130)],
)
def test_a_signal_ends_a_training_at_the_end_of_its_step_after_a_checkpoint(signals, status, tmp_path, capfd):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped, match="stopped after step 2, with a checkpoint") as stopped:
        train_with_signals(tmp_path / "run", signals)
    assert stopped.value.status == status
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert "stopping at the end of this step" in capfd.readouterr().err
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["step-000002"]
    resumed = train_with_signals(tmp_path / "run", signals, resume=True)
    unbroken = train_with_signals(tmp_path / "whole", [])
    assert torch.equal(resumed.weight, unbroken.weight)


def test_the_same_signal_a_second_time_ends_a_training_at_once(tmp_path):
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in jobs of a script
    try:
        with pytest.raises(KeyboardInterrupt) as ended:
            train_with_signals(tmp_path, [signal.SIGINT, signal.SIGINT])
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert not isinstance(ended.value, Stopped)
    assert checkpoints(tmp_path) == []


def test_a_checkpoint_of_an_earlier_version_is_resumed(tmp_path):
    """An earlier version stored its own states as pickles, through accelerate."""
    with pytest.raises(Stopped):
        train_with_signals(tmp_path / "run", [signal.SIGTERM])
    (checkpoint,) = checkpoints(tmp_path / "run")
    for i in range(2):
        state = read_state(checkpoint / f"state-{i}.safetensors")
        torch.save(state, checkpoint / f"custom_checkpoint_{i}.pkl")
        (checkpoint / f"state-{i}.safetensors").unlink()
    resumed = train_with_signals(tmp_path / "run", [], resume=True)
    assert torch.equal(resumed.weight, train_with_signals(tmp_path / "whole", []).weight)


def test_a_state_comes_back_as_it_was(tmp_path):
    shared = torch.arange(6.0).reshape(2, 3)
    state = {
        "lr": [1e-3, 0.1 + 0.2],
        "step": 7,
        "none": None,
        "deep": {"0": shared.T, "tensor": [shared, shared[:1].half(), torch.tensor(3)], "values": {}},
    }
    write_state(state, tmp_path / "state-0.safetensors")
    found = read_state(tmp_path / "state-0.safetensors")
    assert {**found, "deep": None} == {**state, "deep": None}
    assert torch.equal(found["deep"]["0"], shared.T)
    kept = found["deep"]["tensor"]
    assert [(t.dtype, t.tolist()) for t in kept] == [(t.dtype, t.tolist()) for t in state["deep"]["tensor"]]
    assert found["deep"]["values"] == {}
