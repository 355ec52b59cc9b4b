"""Cost of a step of reward feedback learning: python benchmarks/refl.py

Compares our loop with a plain version of the papers' loop, which encodes prompts and images again at each
step, rolls out in each micro-batch and keeps all activations: same models, rows, rollout, losses and
optimizer, alternately. Samples per second, peak memory and time by part; the small editor on the CPU, and
Stable Diffusion 1.5's size with CUDA.
"""

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from resource import RUSAGE_SELF, getrusage
from typing import Any

import torch
from command_line import read_command_line
from sd15 import make_pipeline, make_vifi_clip
from speed_measures import RESET, memory_mib
from torch import Tensor

from rewardedit import EditBatch, devices, load_editor, load_scorer
from rewardedit.cli import quiet
from rewardedit.diffusion.attention import set_attention
from rewardedit.diffusion.families import Conditioning, family_of
from rewardedit.diffusion.rollout import RolloutConfig, steps_with_gradient, steps_without_gradient
from rewardedit.scorers import Scorer
from rewardedit.shapes import Shapes
from rewardedit.training.reward import reward_loss

WEIGHT = 1e-3  # λ
PARTS = ("encode", "rollout", "decode and score", "pairs", "backward", "optimizer")


@dataclass
class Clock:
    """Seconds of each part of a step, summed over its micro-batches."""

    device: torch.device
    spent: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})

    def start(self) -> None:
        """Starts a step."""
        for each in self.spent.values():
            each.append(0.0)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = self.now()
        yield
        self.spent[name][-1] += self.now() - began

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


@dataclass
class Work:
    """Work shared by both loops: an editor, a scorer and rows."""

    pipe: Any
    scorer: Scorer
    source: Tensor
    target: Tensor
    instruction: list[str]
    steps: int
    checkpointing: bool
    micro_batch: int | None = None  # rows of a pass with gradient; None: all

    def __post_init__(self) -> None:
        self.pipe.vae.requires_grad_(False)
        self.pipe.text_encoder.requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.pipe.unet.train().requires_grad_(True).parameters(), lr=1e-6)
        self.cached = self.encode()

    @property
    def micro_batches(self) -> list[slice]:
        """Rows of each micro-batch."""
        size = self.micro_batch or len(self.source)
        return [slice(at, at + size) for at in range(0, len(self.source), size)]

    @torch.no_grad()
    def encode(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings of the prompts, and latents of sources and targets as unscaled modes."""
        pipe = self.pipe
        source, target = (family_of(pipe).encode_images(pipe, x[rows]) for x in (self.source, self.target))
        return family_of(pipe).encode_prompts(pipe, self.instruction[rows]), source, target

    def learn(self, clock: Clock, rows: slice, edited: Tensor, cond: Conditioning, target: Tensor) -> None:
        """Score, loss of the pairs and backward pass of a micro-batch, the same in both loops."""
        pipe = self.pipe
        b = len(edited)
        with clock.part("decode and score"):
            scores = self.scorer(EditBatch(self.source[rows], self.instruction[rows], edited))
            loss = WEIGHT * reward_loss(scores.score, scores.valid)
        with clock.part("pairs"):
            times = torch.randint(pipe.scheduler.config.num_train_timesteps, (b,), device=target.device)
            latents = target * pipe.vae.config.scaling_factor
            noise = torch.randn_like(target)
            loss = loss + family_of(pipe).loss(pipe.unet, pipe.scheduler, latents, noise, times, cond).mean()
        with clock.part("backward"):
            (loss / len(self.micro_batches)).backward()

    def update(self, clock: Clock) -> None:
        """The optimizer's step, the same in both loops."""
        with clock.part("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def papers_step(work: Work, clock: Clock) -> None:
    """ReFL as in the papers' code: everything is encoded again, no checkpointing,
    a loop over the scheduler's steps in each micro-batch.
    """
    clock.start()
    for rows in work.micro_batches:
        with devices.autocast(work.pipe.device.type):
            _papers_micro_batch(work, clock, rows)
    work.update(clock)


def _papers_micro_batch(work: Work, clock: Clock, rows: slice) -> None:
    pipe = work.pipe
    with clock.part("encode"):
        embeds, source, target = work.encode(rows)
    with clock.part("rollout"):
        pipe.scheduler.set_timesteps(work.steps, device=source.device)
        latents = torch.randn_like(source)
        with torch.no_grad():
            for t in pipe.scheduler.timesteps[:-1]:
                predicted = pipe.unet(torch.cat([latents, source], 1), t, embeds, return_dict=False)[0]
                latents = pipe.scheduler.step(predicted, t, latents, return_dict=False)[0]
        torch.clear_autocast_cache()  # weights cast without gradient pass none
        t = pipe.scheduler.timesteps[-1]
        predicted = pipe.unet(torch.cat([latents, source], 1), t, embeds, return_dict=False)[0]
        latents = pipe.scheduler.step(predicted, t, latents, return_dict=False)[0]
    with clock.part("decode and score"):
        decoded = pipe.vae.decode(latents / pipe.vae.config.scaling_factor, return_dict=False)[0]
        edited = (decoded.float() / 2 + 0.5).clamp(0, 1)
    work.learn(clock, rows, edited, Conditioning(embeds, source), target)


def our_step(work: Work, clock: Clock) -> None:
    """The same step from inputs encoded once: all rows take the steps without gradient together."""
    clock.start()
    pipe, (embeds, source, target) = work.pipe, work.cached
    family = family_of(pipe)
    with devices.autocast(pipe.device.type), clock.part("rollout"):
        cond = Conditioning(embeds, source)
        config = RolloutConfig(work.steps, gradient_checkpointing=work.checkpointing)
        noise = torch.randn_like(source)
        start = steps_without_gradient(family, pipe.unet, pipe.scheduler, noise, cond, config)

    for rows in work.micro_batches:
        with devices.autocast(pipe.device.type):
            with clock.part("rollout"):
                state = start.take(rows)
                latents = steps_with_gradient(family, pipe.unet, state)
            with clock.part("decode and score"):
                edited = family.decode(pipe.vae, latents)
            work.learn(clock, rows, edited, state.cond, target[rows])
    work.update(clock)


WAYS: dict[str, Callable[[Work, Clock], None]] = {"papers": papers_step, "ours": our_step}


def small(batch: int = 16, steps: int = 10, micro_batch: int | None = None) -> Work:
    """The small editor and the temporal scorer, on the CPU."""
    samples = Shapes("train").batch(0, batch)
    pipe = load_editor("shapes/editor").pipe
    scorer = load_scorer("vifi_clip", checkpoint="shapes/vifi-clip")
    pairs = (samples.source, samples.target, samples.instruction)
    return Work(pipe, scorer, *pairs, steps, checkpointing=False, micro_batch=micro_batch)


def full_size(
    batch: int = 4,
    steps: int = 20,
    device: str = "cuda",
    narrow: bool = False,
    micro_batch: int | None = None,
    size: int = 256,
    checkpointing: bool = True,
) -> Work:
    """Stable Diffusion 1.5's editor and ViFi-CLIP on CLIP B/16, with random weights, for images of `size`
    pixels a side.

    `narrow`: an editor with thinner layers at 64 pixels and the small temporal scorer.
    """
    size = 64 if narrow else size
    pipe = make_pipeline(device, narrow)
    if checkpointing:
        pipe.vae.enable_gradient_checkpointing()
    set_attention(pipe.unet.train(), "auto", torch.bfloat16, side=size // 8)
    if narrow:
        scorer = load_scorer("vifi_clip", checkpoint="shapes/vifi-clip")
    else:
        scorer = make_vifi_clip(pipe.tokenizer)
    samples = Shapes("train").batch(0, batch)
    grow = torch.nn.Upsample((size, size))
    source, target = (grow(x).to(device) for x in (samples.source, samples.target))
    instructions = samples.instruction
    return Work(
        pipe, scorer.to(device), source, target, instructions, steps, checkpointing, micro_batch=micro_batch
    )


def measure(make: Callable[[], Work], rounds: int) -> dict[str, dict[str, Any]]:
    """Time and memory of both loops."""
    out = measure_time(make, rounds)
    for way, figures in out.items():
        figures["peak_gib"] = measure_memory(make, way)
    return out


def measure_time(make: Callable[[], Work], rounds: int) -> dict[str, dict[str, Any]]:
    """Median times of both loops, run alternately, after one round to warm up."""
    work = make()
    out = {}
    clocks = {name: Clock(work.pipe.device) for name in WAYS}
    for _ in range(rounds + 1):
        for name, step in WAYS.items():
            step(work, clocks[name])
    for name, clock in clocks.items():
        shares = {part: statistics.median(spent[1:]) for part, spent in clock.spent.items()}
        whole = sum(shares.values())
        out[name] = {
            "samples_per_second": len(work.source) / whole,
            "milliseconds": {k: 1000 * v for k, v in shares.items()},
        }
    return out


def measure_memory(make: Callable[[], Work], way: str) -> float:
    """Peak GiB of a separate run: of the device's memory, or on a CPU of a fresh process."""
    if devices.default_device() == "cuda":
        return peak(make, way)
    with multiprocessing.get_context("spawn").Pool(1) as alone:
        return alone.apply(peak, (make, way))


def peak(make: Callable[[], Work], way: str) -> float:
    """Peak GiB of two steps, including models: of the device's memory, or of the process on a CPU, without
    what loading the models took at its most.
    """
    work = make()
    gc.collect()
    if RESET.exists():
        RESET.write_text("5")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        WAYS[way](work, Clock(work.pipe.device))
    if work.pipe.device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return memory_mib("VmHWM") / 1024 if RESET.exists() else getrusage(RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    by_setup = {"small editor, CPU, batch 16, 10 steps": measure(small, rounds=10)}
    if devices.default_device() == "cuda":
        by_setup["Stable Diffusion 1.5, CUDA, 256 px, batch 4, 20 steps"] = measure(full_size, rounds=10)
    line.keep("refl-step", {"steps": by_setup})
