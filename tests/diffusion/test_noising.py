import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, EulerAncestralDiscreteScheduler

from rewardedit.diffusion.families import Conditioning
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.diffusion.noising import conditioning_dropout, noising
from tests.models import tiny_unet

FAMILY = InstructPix2Pix()


def test_dropout_shares_are_instructpix2pix_s():
    u = torch.arange(0, 1, 1e-4)
    no_text, no_image = conditioning_dropout(u, 0.05)
    assert (no_text & ~no_image).float().mean().item() == pytest.approx(0.05, abs=2e-4)
    assert (no_text & no_image).float().mean().item() == pytest.approx(0.05, abs=2e-4)
    assert (~no_text & no_image).float().mean().item() == pytest.approx(0.05, abs=2e-4)


def test_training_noise_is_the_same_however_the_pipeline_samples():
    schedule = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
    sampler = EulerAncestralDiscreteScheduler(**schedule)
    times = torch.tensor([3, 500])
    sampler.set_timesteps(4)
    latents = torch.randn(2, 4, 8, 8)
    noise = torch.randn(2, 4, 8, 8)
    wanted = DDIMScheduler(**schedule).add_noise(latents, noise, times)
    assert torch.equal(noising(sampler).add_noise(latents, noise, times), wanted)


class Constant(torch.nn.Module):
    """A UNet that always predicts the same."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, sample, timestep, encoder_hidden_states, return_dict):
        assert sample.shape[1] == 2 * self.value.shape[1]
        return (self.value,)


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample"])
def test_the_loss_is_zero_for_the_right_prediction_and_one_beside_it(kind):
    scheduler = DDIMScheduler(prediction_type=kind, clip_sample=False)
    latents = torch.randn(3, 4, 8, 8)
    noise = torch.randn(3, 4, 8, 8)
    times = torch.tensor([5, 500, 990])
    right = {
        "epsilon": noise,
        "sample": latents,
        "v_prediction": scheduler.get_velocity(latents, noise, times),
    }[kind]
    inputs = (latents, noise, times, Conditioning(torch.zeros(3, 2, 4), torch.zeros_like(latents)))
    assert FAMILY.loss(Constant(right), scheduler, *inputs).tolist() == [0, 0, 0]
    torch.testing.assert_close(FAMILY.loss(Constant(right + 1), scheduler, *inputs), torch.ones(3))


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample"])
def test_min_snr_weights_by_hand(kind):
    """Hang et al. 2023, Sec. 3.4: min(SNR, 5), over SNR for the noise and over SNR + 1 for a velocity."""
    scheduler = DDPMScheduler(prediction_type=kind)
    times = torch.tensor([1, 800])
    latents = torch.randn(2, 4, 8, 8)
    noise = torch.randn(2, 4, 8, 8)
    right = {
        "epsilon": noise,
        "sample": latents,
        "v_prediction": scheduler.get_velocity(latents, noise, times),
    }[kind]
    inputs = (latents, noise, times, Conditioning(torch.zeros(2, 2, 4), torch.zeros_like(latents)))
    snr = scheduler.alphas_cumprod[times] / (1 - scheduler.alphas_cumprod[times])
    assert snr[0] > 5 > 1 > snr[1]
    made = FAMILY.loss(Constant(right + 1), scheduler, *inputs, min_snr=5.0)
    least = torch.stack([torch.tensor(5.0), snr[1]])
    torch.testing.assert_close(
        made, {"epsilon": least / snr, "sample": least, "v_prediction": least / (snr + 1)}[kind]
    )


def test_eight_channels_are_kept_as_they_are():
    unet = tiny_unet(8)
    before = unet.conv_in
    FAMILY.add_source_channels(unet)
    assert unet.conv_in is before


def test_four_channels_are_widened_without_a_change_to_what_it_says():
    unet = tiny_unet(4)
    noise = torch.randn(1, 4, 8, 8)
    words = torch.randn(1, 3, 16)
    with torch.no_grad():
        wanted = unet(noise, 7, words).sample
        FAMILY.add_source_channels(unet)
        made = unet(torch.cat([noise, torch.randn_like(noise)], dim=1), 7, words).sample
    torch.testing.assert_close(made, wanted)
    assert unet.config.in_channels == 8
    unet.register_to_config(in_channels=5)
    with pytest.raises(ValueError, match="expected 4 or 8 input channels; got 5"):
        FAMILY.add_source_channels(unet)
