"""Trainers end with the moving averages of the weights where they are asked for.

The averages' share of the old is min(t / (10 + t), ema) after step t + 1: 0, 1/11,
1/6 … (`EMAModel` with its warm-up).
"""

import torch
from diffusers import StableDiffusionInstructPix2PixPipeline
from diffusers.training_utils import EMAModel
from torch import nn

from rewardedit.data import DataConfig, open_rows
from rewardedit.diffusion.editors import load_editor
from rewardedit.trainers.reward_conditioned import finetune
from rewardedit.training.averages import MovingAverages
from rewardedit.training.fit import SmallTrainConfig, fit
from rewardedit.training.latents import make_cache
from rewardedit.training.trainable import RewardLabels, TrainConfig

DATA = DataConfig("shapes", limit=8, size=32)


def test_a_fine_tuned_editor_has_its_averaged_weights(tiny_editor, tmp_path):
    cache = make_cache(open_rows(DATA), DATA, load_editor(tiny_editor), tmp_path / "cache")

    def weights(steps: int, ema: float | None) -> torch.Tensor:
        config = TrainConfig(
            max_steps=steps, batch_size=2, lr_warmup_steps=0, lr=1e-2, tracker="none", ema=ema
        )
        out = finetune(config, tiny_editor, cache, RewardLabels(None, [0] * 8), tmp_path / f"{steps}-{ema}")
        pipe = StableDiffusionInstructPix2PixPipeline.from_pretrained(out)
        return torch.cat([p.detach().flatten() for p in pipe.unet.parameters()])

    one = weights(1, None)
    two = weights(2, None)
    averaged = weights(2, 0.9)
    assert (two - one).abs().max() > 1e-3
    torch.testing.assert_close(averaged, (one + 10 * two) / 11, rtol=0, atol=1e-5)


def test_a_small_model_ends_with_its_averaged_weights(tmp_path):
    def trained(ema: float | None) -> tuple[list[torch.Tensor], torch.Tensor]:
        module = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.constant_(module.weight, 1.0)
        seen = []

        def loss_of(step: int, generator: torch.Generator) -> torch.Tensor:
            seen.append(module.weight.detach().clone())
            return module(torch.randn(8, 3, generator=generator)).square().mean()

        config = SmallTrainConfig(max_steps=3, lr=0.1, lr_warmup_steps=1, mixed_precision="no", ema=ema)
        fit(config, {"module": module}, loss_of, tmp_path / str(ema), False)
        return seen, module.weight.detach()

    (_, one, two), three = trained(None)
    assert (three - one).abs().max() > 1e-2
    wanted = ((one + 10 * two) / 11 + 5 * three) / 6
    torch.testing.assert_close(trained(0.9)[1], wanted, rtol=0, atol=1e-5)


def test_averages_on_a_device_are_those_of_the_plain_loop(standin_device):
    torch.manual_seed(0)
    here = [nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (5,))]
    there = [nn.Parameter(p.detach().to(standin_device)) for p in here]
    plain = EMAModel(here, decay=0.5, use_ema_warmup=True, inv_gamma=10.0, power=1.0)
    fused = MovingAverages(there, 0.5)
    for _ in range(14):
        with torch.no_grad():
            for a, b in zip(here, there, strict=True):
                a.add_(torch.randn_like(a))
                b.copy_(a)
        plain.step(here)
        fused.step(there)
        for a, b in zip(plain.shadow_params, fused.shadow_params, strict=True):
            assert b.device.type == standin_device
            torch.testing.assert_close(b.cpu(), a, rtol=0, atol=1e-6)
    assert fused.cur_decay_value == plain.cur_decay_value == 0.5
    kept = {name: value for name, value in fused.state_dict().items() if name != "shadow_params"}
    assert kept == {name: value for name, value in plain.state_dict().items() if name != "shadow_params"}
