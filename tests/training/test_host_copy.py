"""Each update makes the host wait for the device once, for all its numbers together."""

import pytest
import torch
from torch import nn

from rewardedit.data import DataConfig, open_rows
from rewardedit.diffusion.editors import load_editor
from rewardedit.files import read_log
from rewardedit.training.finetune import Finetuning
from rewardedit.training.host_copy import HostCopy
from rewardedit.training.latents import make_cache
from rewardedit.training.loop import LoopConfig, TrainLoop, make_accelerator
from rewardedit.training.trainable import RewardLabels, TrainConfig
from tests import standin

DATA = DataConfig("shapes", limit=8, size=32)
ONE_COPY = ["aten::_copy_from"]


def test_numbers_of_several_types_and_places_come_back_in_their_order(standin_device):
    numbers = [torch.tensor(0.1, device=standin_device), torch.tensor(7), torch.tensor(0.5).bfloat16()]
    with standin.counted_waits() as waits:
        values = HostCopy(numbers, torch.device(standin_device)).read()
    assert values == [float(torch.tensor(0.1)), 7, 0.5]
    assert waits == ONE_COPY


def test_losses_and_recorded_means_of_an_update_are_read_at_once(standin_device, tmp_path):
    config = LoopConfig(
        max_steps=2, log_every=1, mixed_precision="no", tracker="none", lr_warmup_steps=1, ema=0.9
    )
    accelerator = make_accelerator(tmp_path, "no", 3, "none")
    weight = nn.Parameter(torch.zeros(2, device=standin_device))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=0.1))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    loop = TrainLoop(config, accelerator, optimizer, schedule, [weight], tmp_path)

    valid = [torch.tensor(n, device=standin_device) for n in range(4)]
    counts = []
    for step in loop.steps():
        with standin.counted_waits() as waits:
            for rows in (1, 2, 3):
                with loop.accumulate():
                    loss = (weight - rows - step).square().sum()
                    loop.record("a", loss, valid[rows])
                    loop.record("b", loss + 1, 1)
                    loop.backward(loss, [f"{step}-{rows}"])
            loop.update()
        counts.append(waits)
    assert counts == [ONE_COPY, ONE_COPY]

    first, second = read_log(tmp_path)
    assert first["loss"] == pytest.approx((2 + 8 + 18) / 3)
    assert first["a"] == pytest.approx((2 * 1 + 8 * 2 + 18 * 3) / 6)
    assert first["b"] == pytest.approx((3 + 9 + 19) / 3)
    assert second["loss"] > first["loss"]


def test_an_update_of_an_editor_waits_once_however_many_micro_batches(standin_device, tiny_editor, tmp_path):
    cache = make_cache(open_rows(DATA), DATA, load_editor(tiny_editor), tmp_path / "cache")
    config = TrainConfig(
        max_steps=3, batch_size=4, micro_batch_size=2, lr_warmup_steps=1, tracker="none", ema=0.9
    )
    tuning = Finetuning(config, tiny_editor, cache, RewardLabels(None, [0] * 8), tmp_path / "run")
    counts = []
    for step in tuning.loop.steps():
        micros = tuning.micro_batches(step)
        with standin.counted_waits() as waits:
            for micro in micros:
                with tuning.loop.accumulate():
                    loss = tuning.diffusion_loss(micro)
                    tuning.loop.backward(loss, micro.ids)
            tuning.loop.update()
        counts.append(waits)
    # The first update moves the noise schedule to the device.
    assert counts[1:] == [ONE_COPY, ONE_COPY]
