"""Cost of a denoising step with and without mask guidance: of the small editor on a CPU,
and of Stable Diffusion 1.5's size with CUDA. `make cuda` and the offline world's guidance.py measure it.
"""

import statistics
import time
from typing import Any

import torch
from sd15 import make_pipeline

from rewardedit import devices, load_editor, mask_guidance


def seconds_per_step(pipe: Any, size: int, batch: int, steps: int, rounds: int) -> dict[str, float]:
    """Median seconds per denoising step, without and with guidance, measured alternately;
    and the median of their ratios.
    """
    device = pipe.unet.device
    dtype = pipe.unet.dtype
    width = pipe.unet.config.cross_attention_dim
    inputs = {
        "prompt_embeds": torch.randn(batch, 77, width, device=device, dtype=dtype),
        "negative_prompt_embeds": torch.randn(batch, 77, width, device=device, dtype=dtype),
        "image": torch.randn(batch, 4, size, size, device=device, dtype=dtype),
    }
    mask = torch.zeros(1, 1, 8 * size, 8 * size)
    mask[..., : 4 * size, :] = 1

    def run() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        pipe(
            **inputs,
            num_inference_steps=steps,
            guidance_scale=7.5,
            image_guidance_scale=1.5,
            output_type="latent",
        )
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps

    plain = []
    guided = []
    for _ in range(rounds + 1):  # the first round warms up
        plain.append(run())
        with mask_guidance(pipe, mask):
            guided.append(run())
    ratios = [b / a for a, b in zip(plain[1:], guided[1:], strict=True)]
    return {
        "plain": statistics.median(plain[1:]),
        "guided": statistics.median(guided[1:]),
        "extra_share": statistics.median(ratios) - 1,
    }


def full_size(device: str = "cuda", narrow: bool = False) -> Any:
    """Stable Diffusion 1.5's editor with random weights, fp16 on CUDA; `narrow` has thinner layers."""
    return make_pipeline(device, narrow).to(torch.float32 if device == "cpu" else torch.float16)


def cost() -> dict[str, dict[str, float]]:
    """Seconds per step at the sizes that this machine can run."""
    small = load_editor("shapes/editor").pipe
    out = {"small, CPU, batch 8": seconds_per_step(small, size=16, batch=8, steps=10, rounds=15)}
    if devices.default_device() == "cuda":
        name = "Stable Diffusion 1.5, CUDA, 512 px, batch 1"
        out[name] = seconds_per_step(full_size(), size=64, batch=1, steps=20, rounds=15)
    return out
