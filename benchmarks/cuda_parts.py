"""Parts that benchmarks/cuda.py runs, each as a separate process:
python benchmarks/cuda_parts.py attention [--tiny]

A part writes its figures to the file named by $FIGURES, again after each figure, so that a part that is cut
off leaves those that it has. Errors within a part are recorded and the part continues;
it then ends with exit code 1.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewardedit import devices
from rewardedit.cli import load_recipe, quiet
from rewardedit.cli import main as command_line
from rewardedit.diffusion.attention import (
    HeadsLastProcessor,
    attention_shapes,
    load_xformers,
    sdpa,
    set_attention,
    time_attention,
)
from rewardedit.training.loop import TrainLoop

STEPS = 3  # steps of a trainer: one to warm up and two that are measured


class Figures:
    """Figures that a part has measured so far, kept in a file, and whether something failed."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        self.failed = False

    def add(self, name: str, value: Any) -> None:
        self.values[name] = value
        print(f"{name}: {value}", flush=True)
        if self.path is not None:
            self.path.write_text(json.dumps(self.values, indent=2) + "\n")

    def measure(self, name: str, work: Callable[[], Any]) -> None:
        """Adds the result of `work`, or the error that it raises."""
        try:
            self.add(name, work())
        except Exception as error:
            traceback.print_exc()
            self.failed = True
            self.add(
                name, {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
            )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def device() -> torch.device:
    return torch.device(devices.default_device())


def now() -> float:
    """Time after the GPU has finished all its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def milliseconds(work: Callable[[], object], rounds: int = 5) -> float:
    """Median time of several rounds, after one to warm up."""
    times = []
    for _ in range(rounds + 1):
        began = now()
        work()
        times.append(now() - began)
    return 1000 * statistics.median(times[1:])


def quickstart(figures: Figures, tiny: bool) -> None:
    """Runs the unchanged recipe (shortened on a CPU): its seconds and the oracle's ratings."""
    words = [
        "data.limit=64",
        "train.max_steps=2",
        "train.batch_size=8",
        "train.lr_warmup_steps=1",
        "evaluate.n=14",
        "evaluate.val_n=14",
    ]
    words += ["evaluate.num_inference_steps=[1]", "evaluate.guidance_scale=[1.0]"]
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        code = command_line(
            ["--debug", "train", "quickstart", *(words if tiny else []), "--out", f"{folder}/quickstart"]
        )
        figures.add("seconds", round(time.monotonic() - began, 1))
        figures.failed = code != 0
        metrics = Path(folder) / "quickstart" / "metrics.json"
        if metrics.is_file():
            figures.add("oracle", json.loads(metrics.read_text())["oracle"])


@contextmanager
def stamped() -> Iterator[list[float]]:
    """Records the times at which a trainer's updates end."""
    times: list[float] = []
    update = TrainLoop.update

    def stamp(loop: TrainLoop) -> None:
        update(loop)
        times.append(now())

    TrainLoop.update = stamp
    try:
        yield times
    finally:
        TrainLoop.update = update


def train(recipe: str, words: list[str], folder: Path) -> dict[str, float]:
    """Trains a recipe for a few steps, including saving: seconds per step and in total, and peak memory."""
    words = [
        *words,
        f"train.max_steps={STEPS}",
        "train.lr_warmup_steps=1",
        "train.log_every=1",
        "train.tracker=none",
    ]
    module, config = load_recipe(recipe, words)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    began = now()
    with stamped() as times:
        module.train(config, folder)
    out = {"seconds_per_step": statistics.median(b - a for a, b in itertools.pairwise(times))}
    out["seconds_in_all"] = now() - began
    if torch.cuda.is_available():
        out["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return out


def trainer_runs(base: Path, clip: str, scorer: Path, tiny: bool) -> dict[str, tuple[str, list[str]]]:
    """Recipes and settings of the runs, the cheap ones first;
    ViFi-CLIP's result is the reward of the others.
    """
    on_cpu = ['train.mixed_precision="no"'] if tiny else []
    rows = ["data={name: shapes, split: train, limit: 16}"]  # in place of the recipe's own
    pairs = [f"checkpoint={clip}", "pooling=temporal", *rows, "train.batch_size=8", *on_cpu]
    pairs += ["held_out={name: shapes, limit: 8}"]
    runs = {"vifi_clip": ("humanedit-vifi-clip", pairs)}
    # A LoRA costs less than full fine-tuning, and small images less than large ones.
    for size in (64,) if tiny else (256, 512):
        shared = [
            f"base={base}",
            *rows,
            f"data.size={size}",
            "train.batch_size=4",
            "train.micro_batch_size=null",
            "train.validate_every=0",
            "evaluate=null",
            *on_cpu,
        ]
        labels = ["candidates=null", "relabel.scorer={clip_d: {checkpoint: shapes/clip}}"]
        reward = [
            f"reward.scorer={{vifi_clip: {{checkpoint: {scorer}}}}}",
            "reward.num_inference_steps=[10]",
            "monitor.n=2",
            "monitor.num_inference_steps=2",
        ]
        reward += ["monitor.held_out={ssim: {against: target}}"]
        for kind, recipe in (
            ("reward_conditioned, LoRA", "magicbrush-reward-conditioned-lora-24gb"),
            ("reward_conditioned", "magicbrush-reward-conditioned"),
        ):
            runs[f"{kind}, {size} px"] = (recipe, [*shared, *labels])
        for kind, recipe in (("refl, LoRA", "magicbrush-refl-24gb"), ("refl", "magicbrush-refl")):
            runs[f"{kind}, {size} px"] = (recipe, [*shared, *reward])
    return runs


def trainers(figures: Figures, tiny: bool, only: tuple[str, ...] = ()) -> None:
    """Runs each full-size recipe for a few steps on random weights, with a batch of 4 (ViFi-CLIP: 8)."""
    from sd15 import make_pipeline, save_clip

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clip = "shapes/clip" if tiny else str(save_clip(folder / "clip"))
        # Half precision on disk: half the time to write and to read it.
        make_pipeline(str(device()), narrow=tiny).to(torch.float16).save_pretrained(folder / "base")
        scorer = folder / "vifi_clip" / "scorer"
        for kind, (recipe, words) in trainer_runs(folder / "base", clip, scorer, tiny).items():
            if only and not kind.startswith(only):
                continue
            out = folder / kind.replace(", ", "-").replace(" ", "")
            figures.measure(kind, partial(train, recipe, words, out))
            if kind != "vifi_clip":
                shutil.rmtree(out, ignore_errors=True)


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
            figures.measure(f"{name}, {8 * side} px", partial(time_unet, unet, attend, side))
        figures.add(f"auto, {8 * side} px", str(set_attention(unet.train(), "auto", torch.bfloat16, side)))


def time_unet(unet: Any, attend: Callable[..., Tensor], side: int, batch: int = 4) -> dict[str, float]:
    """Milliseconds of the attention alone and of the whole UNet, and the peak memory of a training step with
    a batch of 4.
    """
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
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    out["unet_forward_backward_ms"] = milliseconds(step)
    if where.type == "cuda":
        out["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return out


def benchmarks(figures: Figures, tiny: bool) -> None:
    """Runs the CUDA measurements of guidance_cost, throughput and refl, or the same on narrow models."""
    import guidance_cost
    import refl
    import throughput

    where = str(device())
    size, steps, rounds = (8, 2, 2) if tiny else (64, 20, 15)
    pipe = guidance_cost.full_size(where, narrow=tiny)
    figures.measure(
        "guidance, seconds a step", partial(guidance_cost.seconds_per_step, pipe, size, 1, steps, rounds)
    )
    del pipe
    with tempfile.TemporaryDirectory() as folder:
        for name, (scorer, pixels) in throughput.scorers(
            Path(folder), only=("clip_d", "l1") if tiny else ()
        ).items():
            batch = 8 if tiny else 16 if pixels > 64 else throughput.BATCH
            work = partial(
                throughput.measure, scorer.to(where), pixels, batch, 1 if tiny else throughput.ROUNDS, where
            )
            figures.measure(f"throughput, {name}, {pixels} px, ms an edit", work)
    make = partial(refl.full_size, *((1, 2) if tiny else (4, 20)), where, tiny)
    figures.measure("refl", partial(refl.measure, make, rounds=1 if tiny else 10))


PARTS = {"quickstart": quickstart, "trainers": trainers, "attention": attention, "benchmarks": benchmarks}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(words)
    quiet()
    path = os.environ.get("FIGURES")
    figures = Figures(Path(path) if path else None)
    PARTS[args.part](figures, args.tiny)
    return 1 if figures.failed else 0


if __name__ == "__main__":
    sys.exit(main())
