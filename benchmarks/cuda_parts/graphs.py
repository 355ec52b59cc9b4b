"""Part that measures guided sampling and rollouts, eager, compiled and replayed as CUDA graphs.

The ways to run a UNet, each on the same weights:
eager: as diffusers calls it;
regional: its repeated blocks compiled (diffusers' `compile_repeated_blocks`);
graph: the eager UNet's kernels, recorded once for each shape and replayed;
regional graph: the kernels of the compiled blocks, likewise;
reduce-overhead: the whole UNet compiled by `torch.compile` in that mode.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cuda_parts.figures import Figures, device, milliseconds, now, peak_reserved_gib, reset_reserved, seconds
from rewardedit import devices
from rewardedit.diffusion.families import Conditioning, family_of
from rewardedit.diffusion.replaying import Replay, replay_calls
from rewardedit.diffusion.rollout import RolloutConfig, rollout

WAYS = ("eager", "graph", "regional", "regional graph", "reduce-overhead")
BATCHES = (1, 8)
TOLERANCE = 0.05  # most mean difference of a way's prediction from the eager one, as a share of its mean size


def why_not(way: str) -> str | None:
    """Reason for which a way cannot be measured here, if any."""
    if "graph" in way or way == "reduce-overhead":
        return None if device().type == "cuda" else "CUDA graphs need a GPU"
    if way == "regional" and device().type == "cpu":
        return None if shutil.which("c++") or shutil.which("g++") else "torch.compile needs a C++ compiler"
    return None


@contextmanager
def running(unet: Any, way: str) -> Iterator[None]:
    """Makes calls of a UNet run in this way, within the block.

    Raises:
        RuntimeError: at its end, if calls were to be recorded and ran as they are.
    """
    torch.compiler.reset()
    plain = unet.forward
    replay = None
    blocks = [module for module in unet.modules() if type(module).__name__ in unet._repeated_blocks]
    try:
        if way.startswith("regional"):
            unet.compile_repeated_blocks(fullgraph=True, dynamic=False)
        if way.endswith("graph"):
            replay = replay_calls(unet)
        if way == "reduce-overhead":
            unet.forward = torch.compile(plain, mode=way, dynamic=False)
        yield
        if replay is not None:
            require_recorded(replay)
    finally:
        unet.__dict__.pop("forward", None)
        for block in blocks:
            block._compiled_call_impl = None
        torch.compiler.reset()


def require_recorded(replay: Replay) -> None:
    """Raises RuntimeError unless calls were recorded, and none ran as it is."""
    if not replay.made or replay.as_they_are:
        raise RuntimeError(f"expected all calls to be recorded; got {replay}; do not use the figures")


def require_near(predicted: Tensor, plain: Tensor) -> float:
    """Mean difference of two predictions as a share of the plain one's mean size.

    Raises:
        ValueError: if it is above `TOLERANCE`.
    """
    share = float((predicted - plain).abs().float().mean() / plain.abs().float().mean())
    if not share <= TOLERANCE:
        raise ValueError(
            f"prediction: expected within {TOLERANCE} of the eager one, got {share:.3g}; do not use it"
        )
    return share


def sampling(pipe: Any, way: str, side: int, batch: int, steps: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a guided denoising step (three branches) without and with mask guidance, the share that
    the mask adds, and the seconds of first calls, which compile or record.
    """
    from guidance_cost import seconds_per_step

    unet = pipe.unet
    where = {"device": unet.device, "dtype": unet.dtype}
    generator = torch.Generator(unet.device).manual_seed(0)
    sample = torch.randn(3 * batch, unet.config.in_channels, side, side, generator=generator, **where)
    words = torch.randn(3 * batch, 77, unet.config.cross_attention_dim, generator=generator, **where)
    times = torch.tensor(500, device=unet.device)

    @torch.no_grad()
    def predict() -> Tensor:
        return unet(sample, times, encoder_hidden_states=words, return_dict=False)[0].clone()

    plain = predict()
    reset_reserved()
    with running(unet, way):
        first = seconds(predict)
        difference = require_near(predict(), plain)
        cost = seconds_per_step(pipe, side, batch, steps, rounds)
    figures = {
        "step_ms": 1000 * cost["plain"],
        "step_with_mask_ms": 1000 * cost["guided"],
        "mask_extra_share": cost["extra_share"],
        "first_call_seconds": first,
        "difference": difference,
    }
    peak = peak_reserved_gib()
    return figures if peak is None else {**figures, "peak_reserved_gib": peak}


def rollout_step(pipe: Any, way: str, side: int, batch: int, steps: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a step of ReFL's rollout (one branch, without gradient), and the seconds of the first
    rollout.
    """
    unet = pipe.unet
    where = {"device": unet.device, "dtype": unet.dtype}
    noise = torch.randn(batch, unet.config.out_channels, side, side, **where)
    words = torch.randn(batch, 77, unet.config.cross_attention_dim, **where)
    cond = Conditioning(words, torch.randn_like(noise))
    config = RolloutConfig(steps, grad_steps=0)

    @torch.no_grad()
    def roll() -> None:
        with devices.autocast(unet.device.type, enabled=unet.dtype == torch.float32):
            rollout(family_of(pipe), unet, pipe.scheduler, noise, cond, config)

    reset_reserved()
    with running(unet, way):
        first = seconds(roll)
        figures = {"step_ms": milliseconds(roll, rounds) / steps, "first_rollout_seconds": first}
    peak = peak_reserved_gib()
    return figures if peak is None else {**figures, "peak_reserved_gib": peak}


def graphs(figures: Figures, tiny: bool) -> None:
    """Guided sampling at 512 px and ReFL's rollouts: the ways in the order of what they cost to prepare."""
    began = now()
    pipe = make_pipeline(tiny)
    figures.add("seconds to make the models", now() - began)
    batches = BATCHES[:1] if tiny else BATCHES
    side, steps, rounds = (8, 1, 1) if tiny else (64, 10, 3)
    for way in WAYS:
        for batch in batches:
            name = f"sampling, {way}, batch {batch}"
            reason = why_not(way)
            if reason is not None:
                figures.skip(name, reason)
                continue
            figures.measure(name, partial(sampling, pipe, way, side, batch, steps, rounds))
        if why_not(way) is None and way != "reduce-overhead":
            name = f"rollout, {way}, batch {batches[-1]}"
            figures.measure(name, partial(rollout_step, pipe, way, side, batches[-1], steps, rounds))

    pipe.unet.float()  # as a trainer holds it, under autocast
    name = f"rollout, eager under autocast, batch {batches[-1]}"
    figures.measure(name, partial(rollout_step, pipe, "eager", side, batches[-1], steps, rounds))


def make_pipeline(tiny: bool) -> Any:
    """Stable Diffusion 1.5's editor with random weights, in bf16 on a GPU; a tiny one has a single kind
    of block, so that little is compiled.
    """
    import sd15

    where = device()
    pipe = sd15.make_pipeline(str(where), narrow=tiny)
    if tiny:
        pipe.unet = sd15.make_shallow_unet()
    pipe.unet.requires_grad_(False).eval()
    return pipe if where.type == "cpu" else pipe.to(torch.bfloat16)
