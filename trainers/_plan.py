"""What a recipe will do, found out before any of it is done: rows, trained parameters, memory, time, missing files."""

import time
from typing import Any

import diffusers
import torch
from diffusers import DiffusionPipeline, UNet2DConditionModel
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rewardedit import devices
from rewardedit.assets import resolve
from rewardedit.data import open_rows
from rewardedit.diffusion.editors import locate
from rewardedit.scorers import load_scorer
from rewardedit.trainers import _run
from rewardedit.trainers._models import Train, add_lora, require_pipeline

TOKENS = 77
EFFICIENCY = 0.35  # of a plain matrix product's rate that training a UNet reaches


def plan(config: Any) -> list[str]:
    """Lines to print for a reward-conditioned recipe.

    Raises:
        ValueError: naming the first file, data set or model that is not there.
    """
    rows = len(open_rows(config.data))
    editors = config.candidates.editors if config.candidates else ()
    for name in (config.base, *editors):
        _pipeline_config(name)
    load_scorer(config.relabel.scorer, **config.relabel.options)
    per_row = 1 if config.candidates is None else 1 + int(config.candidates.source) + len(editors)
    return [
        f"rows: {rows} × {per_row} candidates = {rows * per_row}; arms: {', '.join(config.arms)}",
        *plan_training(config.base, config.train, config.data.size, len(config.arms)),
    ]


def plan_training(base: str, train: Train, size: int, arms: int, calls: float = 1.0) -> list[str]:
    """Parameters, memory and time of fine-tuning an editor; `calls` are UNet calls a step, in those of a plain step.

    Raises:
        ValueError: where the editor is not there.
    """
    _pipeline_config(base)
    unet = _meta_unet(base)
    total = sum(p.numel() for p in unet.parameters())
    if train.lora_rank:
        unet.requires_grad_(False)
        add_lora(unet, train)
    trained = sum(p.numel() for p in unet.parameters() if p.requires_grad)
    flops, activations = _measure(unet, train, size, _factor(base))
    weights = 4 * total + (4 + 8) * trained + (4 * trained if train.ema else 0)
    processes = _run.processes().num_processes
    micro_batch, passes = train.micro_batches(processes)
    steps = train.steps * passes * arms
    seconds = 3 * flops * steps * calls / (EFFICIENCY * _rate(train))
    return [
        f"trained parameters: {trained / 1e6:.2f} M of {total / 1e6:.2f} M",
        f"memory, estimated: {(weights + activations) / 2**30:.1f} GiB ({weights / 2**30:.1f} weights and optimizer, "
        f"{activations / 2**30:.1f} activations)",
        f"training time on this machine, estimated: {_duration(seconds)} for {steps} forward passes of {micro_batch}",
        "all files and models are there",
    ]


def _pipeline_config(name: str) -> dict[str, Any]:
    try:
        return DiffusionPipeline.load_config(resolve(locate(name)))
    except OSError as error:
        raise ValueError(
            f"editor {name!r} is not there ({str(error).splitlines()[0]}); give a folder, or a hub name online"
        ) from error


def load_scheduler(name: str) -> Any:
    """The scheduler of a base, without its weights.

    Raises:
        ValueError: where there is no such pipeline, or it is a LoRA.
    """
    require_pipeline(name)
    kind = getattr(diffusers, _pipeline_config(name)["scheduler"][1])
    return kind.from_config(_sub_config(kind, name, "scheduler"))


def _sub_config(kind: Any, name: str, subfolder: str) -> Any:
    try:
        return kind.load_config(resolve(locate(name)), subfolder=subfolder)
    except OSError as error:
        raise ValueError(f"editor {name!r} has no {subfolder} ({str(error).splitlines()[0]})") from error


def _meta_unet(name: str) -> UNet2DConditionModel:
    config = _sub_config(UNet2DConditionModel, name, "unet")
    with torch.device("meta"):
        return UNet2DConditionModel.from_config(config)


def _factor(name: str) -> int:
    from diffusers import AutoencoderKL

    return 2 ** (len(_sub_config(AutoencoderKL, name, "vae")["block_out_channels"]) - 1)


def _measure(unet: UNet2DConditionModel, train: Train, size: int, factor: int) -> tuple[float, float]:
    """Operations and bytes of activations of one micro-step's forward pass, counted on tensors without data."""
    side, kept = size // factor, 0
    b, _ = train.micro_batches(_run.processes().num_processes)
    inputs = (
        torch.empty(b, unet.config.in_channels, side, side, device="meta"),
        torch.empty(b, dtype=torch.long, device="meta"),
        torch.empty(b, TOKENS, unet.config.cross_attention_dim, device="meta"),
    )

    def keep(module: nn.Module, args: Any, out: Any) -> None:
        nonlocal kept
        if isinstance(out, torch.Tensor) and not list(module.children()):
            kept += out.numel()

    hooks = [m.register_forward_hook(keep) for m in unet.modules()]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        unet(*inputs)
    for hook in hooks:
        hook.remove()
    size_of = 4 if train.precision == "no" else 2
    return counter.get_total_flops(), kept * size_of * (0.3 if train.checkpointing else 1.0)


def _rate(train: Train) -> float:
    """Operations a second of a matrix product here, in the type that training uses."""
    device = devices.default_device()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(train.precision, torch.float32)
    n = 4096 if device == "cuda" else 768
    a = torch.randn(n, n, device=device, dtype=dtype)
    float((a @ a)[0, 0])
    began = time.perf_counter()
    for _ in range(5):
        out = a @ a
    float(out[0, 0])
    return 5 * 2 * n**3 / (time.perf_counter() - began)


def _duration(seconds: float) -> str:
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
