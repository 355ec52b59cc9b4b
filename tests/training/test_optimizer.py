"""Muon, and the small models' loop with it."""

import pytest
import torch
from torch import nn

from rewardedit.training.fit import SmallTrainConfig, fit
from rewardedit.training.optimizer import AdamW, Muon, orthogonalised, parameter_groups
from rewardedit.training.trainable import TrainConfig, TrainedModules, make_optimizer


def test_orthogonalised_matrices_have_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((16, 16), (16, 144), (64, 8)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
        assert values.min() > 0.3
        assert values.max() < 1.3


def test_only_hidden_matrices_and_convolutions_step_by_muon():
    unet = nn.Module()
    unet.conv_in = nn.Conv2d(3, 8, 3)
    unet.middle = nn.Conv2d(8, 8, 3)
    unet.norm = nn.GroupNorm(2, 8)
    unet.frozen = nn.Linear(4, 4).requires_grad_(False)
    others, muon = parameter_groups(unet, 1e-4, 0.02)
    assert [p.shape for p in muon["params"]] == [(8, 8, 3, 3)]
    assert (muon["lr"], others["lr"]) == (0.02, 1e-4)
    assert len(others["params"]) == 5  # conv_in, the middle's bias, norm
    assert len(parameter_groups(unet, 1e-4, None)[0]["params"]) == 6


def test_a_muon_step_is_adamw_elsewhere():
    torch.manual_seed(0)
    weight, bias = (nn.Parameter(torch.randn(4, 4)) for _ in range(2))
    reference = nn.Parameter(bias.detach().clone())
    options = {"lr": 1e-2, "weight_decay": 0.1}
    mixed = Muon([{"params": [weight], "muon": True}, {"params": [bias]}], **options)
    plain = torch.optim.AdamW([reference], **options)
    before = weight.detach().clone()
    for _ in range(3):
        for p in (weight, bias, reference):
            p.grad = p.detach().clone()
        mixed.step()
        plain.step()
    assert torch.equal(bias, reference)
    assert 0 < (weight - before).norm() < 3 * 1e-2 * 1.3 * 2


def test_a_fused_step_is_the_plain_one(standin_device):
    torch.manual_seed(0)
    plain = nn.Linear(4, 3)
    there = nn.Linear(4, 3)
    there.load_state_dict(plain.state_dict())
    there.to(standin_device)
    optimizers = {}
    for net in (plain, there):
        modules = TrainedModules(net, None, None, None, list(net.parameters()))
        optimizers[net] = make_optimizer(TrainConfig(lr=1e-2), modules)
    for step in range(3):
        for net, optimizer in optimizers.items():
            for p in net.parameters():
                p.grad = torch.full_like(p, 1.0 + step)
            optimizer.step()
    assert [optimizer.param_groups[0]["fused"] for optimizer in optimizers.values()] == [None, True]
    for a, b in zip(plain.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(b.cpu(), a.detach(), rtol=0, atol=1e-6)


def test_a_fused_step_whose_gradient_overflowed_is_not_taken_by_the_scaler():
    """So that the loop learns of it: the kernel would skip it by itself."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = AdamW([{"params": [weight]}], fused=True)
    scaler = torch.amp.GradScaler("cpu")
    taken = []
    optimizer.register_step_post_hook(lambda *_: taken.append(True))
    for gradient in (torch.inf, 1.0):
        scaler.scale((weight * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert taken == [True]


def test_a_run_with_muon_goes_on_where_it_stopped(tmp_path):
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1))

    def loss_of(net: nn.Module):
        return lambda step, generator: (net(torch.randn(2, 3, 8, 8, generator=generator)) - 1).square().mean()

    whole = make()
    broken = make()
    config = SmallTrainConfig(
        max_steps=6, muon_lr=0.02, ema=0.9, mixed_precision="no", checkpoint_every=3, log_every=2
    )
    fit(config, {"net": whole}, loss_of(whole), tmp_path / "whole", False)

    def stopping(step, generator):
        if step == 4:
            raise KeyboardInterrupt
        return loss_of(broken)(step, generator)

    with pytest.raises(KeyboardInterrupt):
        fit(config, {"net": broken}, stopping, tmp_path / "broken", False)
    resumed = make()
    fit(config, {"net": resumed}, loss_of(resumed), tmp_path / "broken", True)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
