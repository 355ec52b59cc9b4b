"""Parts that measure attention kernels, and the cost of scores and of a step of reward feedback learning."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuda_parts.figures import Figures, device, milliseconds, peak_gib, reset_peak
from rewardedit.diffusion.attention import (
    HeadsLastProcessor,
    attention_shapes,
    load_xformers,
    sdpa,
    set_attention,
    time_attention,
)


def attention(figures: Figures, tiny: bool) -> None:
    """Compares xformers with SDPA: the kernels, the UNet's forward pass, and both passes under autocast."""
    from sd15 import make_unet

    where = device()
    kernels = {"sdpa": sdpa}
    try:
        kernels["xformers"] = load_xformers(where)
    except RuntimeError as error:
        figures.add("xformers", str(error))
    with where:
        unet = make_unet(narrow=tiny)
    for side in (8,) if tiny else (32, 64):
        for name, attend in kernels.items():
            figures.measure(
                f"{name}, {8 * side} px", partial(time_unet, unet, attend, side, 1 if tiny else 4)
            )
        figures.add(f"auto, {8 * side} px", str(set_attention(unet.train(), "auto", torch.bfloat16, side)))


def time_unet(unet: Any, attend: Callable[..., Tensor], side: int, batch: int) -> dict[str, float]:
    """Milliseconds of the attention alone and of the whole UNet, and the peak memory of a training step."""
    where = unet.device
    dtype = torch.bfloat16
    shapes = attention_shapes(unet, side)
    unet.set_attn_processor(HeadsLastProcessor(attend))
    sample = torch.randn(batch, 8, side, side, device=where)
    words = torch.randn(batch, 77, unet.config.cross_attention_dim, device=where)
    times = torch.full((batch,), 500, device=where)

    @torch.no_grad()
    def forward() -> None:
        with torch.autocast(where.type, dtype):
            unet(sample, times, words)

    def step() -> None:
        with torch.autocast(where.type, dtype):
            loss = unet(sample, times, words).sample.square().mean()
        loss.backward()
        unet.zero_grad(set_to_none=True)

    out = {
        "attention_forward_ms": 1000 * time_attention(attend, shapes, where, dtype, training=False),
        "attention_forward_backward_ms": 1000 * time_attention(attend, shapes, where, dtype, training=True),
        "unet_forward_ms": milliseconds(forward),
    }
    reset_peak()
    out["unet_forward_backward_ms"] = milliseconds(step)
    peak = peak_gib()
    return out if peak is None else {**out, "peak_gib": peak}


def benchmarks(figures: Figures, tiny: bool) -> None:
    """Runs the programs throughput and refl on CUDA, or on narrow models on a CPU."""
    import refl
    import throughput

    where = str(device())
    rounds = 1 if tiny else throughput.ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        only = ("l1",) if tiny else ()
        for name, (scorer, pixels) in throughput.scorers(Path(folder), only).items():
            batch = 8 if tiny else 16 if pixels > 64 else throughput.BATCH
            work = partial(throughput.measure, scorer.to(where), pixels, batch, rounds, where)
            figures.measure(f"throughput, {name}, {pixels} px, ms an edit", work)
    make = partial(refl.full_size, *((1, 1) if tiny else (4, 20)), where, tiny)
    measure = refl.measure_time if tiny else refl.measure
    figures.measure("refl", partial(measure, make, rounds=rounds))
