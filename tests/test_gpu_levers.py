"""What is faster on a GPU gives the same there: python -m pytest -m gpu"""

import threading

import pytest
import torch
from torch import nn

from rewardedit import devices
from rewardedit.diffusion.compiling import compile_blocks
from rewardedit.diffusion.editors import SamplingConfig, as_editor
from rewardedit.diffusion.families import Conditioning, family_of
from rewardedit.diffusion.replaying import replay_calls
from rewardedit.diffusion.rollout import RolloutConfig, rollout
from rewardedit.models.half_weights import half_weights
from rewardedit.training.loop import LoopConfig, TrainLoop, make_accelerator
from rewardedit.training.memory.savers import card_memory
from rewardedit.training.optimizer import AdamW
from tests.models import tiny_pipeline

pytestmark = pytest.mark.gpu


def test_an_update_has_no_wait_but_that_for_its_numbers(tmp_path):
    """torch raises at any operation that makes the host wait, but not at waiting for an event."""
    config = LoopConfig(
        max_steps=3, log_every=1, mixed_precision="no", tracker="none", lr_warmup_steps=1, ema=0.9
    )
    accelerator = make_accelerator(tmp_path, "no", 1, "none")
    weight = nn.Parameter(torch.zeros(2, device="cuda"))
    optimizer = accelerator.prepare(AdamW([{"params": [weight]}], lr=0.1, fused=True))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    loop = TrainLoop(config, accelerator, optimizer, schedule, [weight], tmp_path)
    rows = torch.tensor(1, device="cuda")
    for step in loop.steps():
        # The first update makes the optimizer's state.
        torch.cuda.set_sync_debug_mode("default" if step == 0 else "error")
        try:
            loss = (weight - 1.0).square().sum()
            loop.record("reward", loss, rows)
            loop.backward(loss, ["a"])
            loop.update()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert 0 < loop.last_loss < 2


def test_compiled_blocks_edit_alike():
    editor = as_editor(tiny_pipeline().to("cuda"))
    source = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain = editor(source, ["make it red"] * 2, settings=SamplingConfig(2))
    compilation = compile_blocks(editor.pipe.unet)
    edited = editor(source, ["make it red"] * 2, settings=SamplingConfig(2))
    assert compilation.failure is None
    assert (edited - plain).abs().max() < 0.02


def test_replayed_steps_edit_alike():
    editor = as_editor(tiny_pipeline().to("cuda"))
    source = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain = editor(source, ["make it red"] * 2, settings=SamplingConfig(3))
    replay = replay_calls(editor.pipe.unet)
    for _ in range(2):
        edited = editor(source, ["make it red"] * 2, settings=SamplingConfig(3))
        assert (edited - plain).abs().max() < 1e-3
    assert replay.failure is None
    assert len(replay.recorded) == 1


def test_a_call_is_recorded_while_others_pin_memory():
    """Rows are read ahead, into pinned memory, while rollouts are recorded."""
    over = threading.Event()
    failures = []

    def pin() -> None:
        size = 1
        while not over.is_set():
            size = size % 2**22 + 4096  # sizes that the allocator does not have yet
            try:
                torch.empty(size).pin_memory()
            except RuntimeError as error:
                failures.append(error)
                return

    unet = tiny_pipeline().to("cuda").unet
    replay = replay_calls(unet)
    thread = threading.Thread(target=pin)
    thread.start()
    try:
        with torch.no_grad():
            for rows in range(1, 9):
                sample = torch.randn(rows, unet.config.in_channels, 8, 8, device="cuda")
                words = torch.randn(rows, 77, unet.config.cross_attention_dim, device="cuda")
                unet(sample, torch.tensor(5, device="cuda"), words)
    finally:
        over.set()
        thread.join()
    assert not failures
    assert (replay.failure, replay.made) == (None, 8)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_calls_on_the_second_gpu_are_replayed_there():
    unet = tiny_pipeline().to("cuda:1").unet
    words = torch.randn(1, 77, unet.config.cross_attention_dim, device="cuda:1")
    samples = torch.randn(2, 1, unet.config.in_channels, 8, 8, device="cuda:1")
    time = torch.tensor(5, device="cuda:1")
    with torch.no_grad():
        plain = [unet(sample, time, words).sample for sample in samples]
        replay_calls(unet)
        for sample, expected in zip(samples, plain, strict=True):
            assert (unet(sample, time, words).sample - expected).abs().max() < 1e-3


def test_replayed_rollouts_follow_the_weights_under_autocast():
    pipe = tiny_pipeline().to("cuda")
    family, unet = family_of(pipe), pipe.unet.requires_grad_(False).train()
    noise = torch.randn(2, unet.config.out_channels, 8, 8, device="cuda")
    words = torch.randn(2, 77, unet.config.cross_attention_dim, device="cuda")
    cond = Conditioning(words, torch.randn_like(noise))

    def roll() -> torch.Tensor:
        with devices.autocast("cuda"):
            return rollout(family, unet, pipe.scheduler, noise, cond, RolloutConfig(3, grad_steps=0)).float()

    replay = replay_calls(unet, enabled=False)
    found = []
    for _ in range(2):
        plain = roll()
        with replay.within():
            found.append(roll())
        assert (found[-1] - plain).abs().max() < 0.02 * plain.abs().max()
        unet.conv_out.weight.mul_(2)
    assert not torch.equal(*found)
    assert (replay.failure, replay.made, replay.as_they_are) == (None, 1, 0)


def test_half_weights_pass_the_same_gradient_under_autocast():
    vae = tiny_pipeline().to("cuda").vae.requires_grad_(False)
    latents = torch.randn(2, vae.config.latent_channels, 8, 8, device="cuda")
    found = []
    for modules in ([], [vae]):
        given = latents.clone().requires_grad_()
        with half_weights(modules), devices.autocast("cuda"):
            image = vae.decode(given, return_dict=False)[0]
            image.float().square().mean().backward()
        found.append((image.detach().float(), given.grad))
    for one, other in zip(*found, strict=True):
        assert (one - other).abs().max() < 0.02 * one.abs().max()
    assert vae.dtype == torch.float32


def test_tf32_is_near_fp32_and_the_card_is_known(monkeypatch):
    monkeypatch.setenv(devices.TF32, "1")
    a, b = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0)).cuda()
    plain = a @ b
    with devices.tf32("cuda"):
        fast = a @ b
    assert ((fast - plain).abs().max() / plain.abs().max()) < 5e-3
    assert torch.equal(a @ b, plain)
    assert card_memory() > 2**30
