"""DDIM's inverse for a model that predicts the clean latents."""

import torch
from diffusers import DDIMInverseScheduler

from rewardedit.diffusion.schedulers import SampleDDIMInverseScheduler

OWN = {"timestep_spacing": "trailing", "rescale_betas_zero_snr": True, "clip_sample": False}


def test_it_goes_where_the_library_s_inverse_goes_by_the_same_noise():
    inverse = SampleDDIMInverseScheduler(prediction_type="sample", **OWN)
    by_noise = DDIMInverseScheduler(prediction_type="epsilon", **OWN)
    inverse.set_timesteps(10)
    by_noise.set_timesteps(10)
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(2, 4, 3, 3, generator=generator)
    for timestep in inverse.timesteps[:9]:  # at the last nothing is left of the clean latents
        predicted = torch.randn(latents.shape, generator=generator)
        alpha = inverse.alphas_cumprod[timestep]
        noise = (latents - alpha**0.5 * predicted) / (1 - alpha) ** 0.5
        expected = by_noise.step(noise, timestep, latents)
        found = inverse.step(predicted, timestep, latents)
        torch.testing.assert_close(found.prev_sample, expected.prev_sample)
        torch.testing.assert_close(found.pred_original_sample, expected.pred_original_sample)
        torch.testing.assert_close(inverse.step(predicted, timestep, latents, False)[0], found.prev_sample)
        latents = found.prev_sample
    assert latents.isfinite().all()
