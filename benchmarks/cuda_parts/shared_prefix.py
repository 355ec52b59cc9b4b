"""Part that measures a vision-language scorer of the 8B shape: candidates of one source that share its
prefix, against whole passes, and the gradient of one candidate.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cuda_parts.figures import GIB, Figures, device, now, seconds
from rewardedit import EditBatch
from rewardedit.scorers.adiee import Adiee, width_of
from rewardedit.scorers.adiee_head import AdieeSettings, ScoreHead
from rewardedit.scorers.adiee_text import add_token
from rewardedit.shapes import Shapes

CANDIDATES = 8
ROUNDS = 3
WAYS = ("whole", "sharing")


def make_scorers(tiny: bool) -> dict[str, Adiee]:
    """Two scorers with the same random weights, made on the device: one reads source and edit together,
    the other shares the source's keys and values. Both ask the first question.
    """
    from memory import llava

    where = device()
    vlm = llava(str(where), narrow=tiny)
    add_token(vlm.model, vlm.processor)
    vlm.model.eval().requires_grad_(False)
    settings = AdieeSettings(side=64 if tiny else 512)
    head = ScoreHead(width_of(vlm.model), settings).to(where).requires_grad_(False)
    return {way: Adiee(vlm, head, settings, question=0, share_prefix=way == "sharing").eval() for way in WAYS}


def make_batch(scorer: Adiee, candidates: int) -> EditBatch:
    """Edits of one source with one instruction."""
    samples = Shapes("val").batch(0, candidates)
    grow = torch.nn.Upsample((scorer.settings.side,) * 2)
    source = grow(samples.source[:1]).expand(candidates, -1, -1, -1)
    return EditBatch(source, samples.instruction[:1] * candidates, grow(samples.target)).to(device())


def score(scorer: Adiee, batch: EditBatch) -> Tensor:
    """Scores of candidates of one source, which is prepared once; those of random weights are not clamped."""
    prepared = scorer.prepare(batch.source[:1], batch.instruction[:1])
    shared = prepared.take([0] * len(batch)) if scorer.share_prefix else prepared
    return scorer(batch, shared).parts["raw"]


def gradient(scorer: Adiee, batch: EditBatch) -> Tensor:
    """Gradient of one candidate's score with respect to its pixels."""
    edited = batch.edited[:1].clone().requires_grad_(True)
    one = EditBatch(batch.source[:1], batch.instruction[:1], edited)
    (pixel_gradient,) = torch.autograd.grad(score(scorer, one).sum(), edited)
    return pixel_gradient


@torch.no_grad()
def scores_of(scorer: Adiee, batch: EditBatch) -> Tensor:
    """Scores without gradient."""
    return score(scorer, batch)


def times(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each call, run alternately after one round to warm up."""
    spent: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(rounds + 1):
        for way, call in calls.items():
            spent[way].append(seconds(call))
    return {way: statistics.median(durations[1:]) for way, durations in spent.items()}


def extra_gib(call: Callable[[], Any]) -> float:
    """Peak GiB on the GPU beyond the models and inputs."""
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return (torch.cuda.max_memory_allocated() - held) / GIB


def prefix(figures: Figures, tiny: bool) -> None:
    """Seconds of both ways, then their memory."""
    began = now()
    scorers = make_scorers(tiny)
    batch = make_batch(scorers["whole"], 2 if tiny else CANDIDATES)
    figures.add("seconds to make the model", now() - began)
    for name, work in ((f"{len(batch)} candidates", scores_of), ("gradient", gradient)):
        calls = {way: partial(work, scorer, batch) for way, scorer in scorers.items()}

        def compared(calls: dict[str, Callable[[], Any]] = calls) -> dict[str, float]:
            medians = times(calls, 1 if tiny else ROUNDS)
            values = [call().float() for call in calls.values()]
            difference = float((values[0] - values[1]).abs().mean() / values[0].abs().mean())
            return {**medians, "speed": medians["whole"] / medians["sharing"], "difference": difference}

        def memory(calls: dict[str, Callable[[], Any]] = calls) -> dict[str, float]:
            gib = {way: extra_gib(call) for way, call in calls.items()}
            return {**gib, "share": gib["sharing"] / gib["whole"]}

        figures.measure(f"{name}, seconds", compared)
        if device().type == "cuda":
            figures.measure(f"{name}, GiB", memory)
        else:
            figures.skip(f"{name}, GiB", "memory is measured on CUDA")
