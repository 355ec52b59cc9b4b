"""The loop: gradients that are no numbers, how others are cut and averaged, how the learning rate runs."""

import math
from pathlib import Path

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from rewardedit.training.loop import LoopConfig, TrainingStopped, TrainLoop, checkpoints, make_accelerator
from rewardedit.training.optimizer import learning_rate_share
from rewardedit.training.small import SmallTrainConfig, fit
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


def test_a_gradient_that_is_no_number_stops_the_run_before_it_is_made_use_of(tmp_path):
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
    assert module.weight.isfinite().all()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000001"]


def test_a_gradient_is_cut_to_the_largest_norm(tmp_path):
    loop = make_loop(tmp_path, max_grad_norm=1.0)
    (weight,) = loop.parameters
    for _ in loop.steps():
        loop.backward((weight * torch.tensor([3.0, 4.0])).sum(), ["a"])
        loop.update()
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.6, -0.8]))


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
