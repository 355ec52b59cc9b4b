"""Savings from a shared source prefix: python benchmarks/prefix.py

A causal language model reads a source and then each of N candidates: complete passes are compared with passes
that share the source's keys and values, without gradient, and for the gradient of one candidate. On a CPU it
is a small Llama; with CUDA, one of Llama-3-8B's shape with random weights. Source and candidate have as many
tokens as in LLaVA-NeXT for two images of 672 pixels; the small model's as in shapes/adiee, whose
questions are long relative to its images, or with 61 % of them in the source.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from command_line import read_command_line
from table_parts import read
from tables_speed import prefix as table
from transformers import LlamaConfig, LlamaModel

from rewardedit import devices
from rewardedit.cli import quiet
from rewardedit.language.prefix import as_cache, prefix_attention, split_rows

CANDIDATES = (1, 4, 8, 16)
SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 8192,
}
LLAMA_8B: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 64,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
# tokens of the source, and of a candidate with its question
TOKENS = {"shapes/adiee": (137, 167), "small": (272, 176), "8B": (2880, 2940)}


def make_model(size: str, device: str) -> LlamaModel:
    """Creates a model with random weights, in bf16 on CUDA."""
    config = LlamaConfig(**(LLAMA_8B if size == "8B" else SMALL))
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        torch.set_default_dtype(dtype)
        try:
            model = LlamaModel(config)
        finally:
            torch.set_default_dtype(torch.float32)
    return model.eval().requires_grad_(False)


def embeddings(model: LlamaModel, rows: int, tokens: int, seed: int) -> torch.Tensor:
    """Random embeddings (rows, tokens, d) in place of images and words."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(rows, tokens, model.config.hidden_size, generator=generator)
    return (0.02 * drawn).to(model.device, model.dtype)


def whole(model: LlamaModel, source: torch.Tensor, edited: torch.Tensor) -> torch.Tensor:
    """Last states of N candidates, with the source read again for each."""
    both = torch.cat([source.expand(len(edited), -1, -1), edited], dim=1)
    return model(inputs_embeds=both, use_cache=False).last_hidden_state[:, -1]


def sharing(model: LlamaModel, source: torch.Tensor, edited: torch.Tensor) -> torch.Tensor:
    """Last states of N candidates, with the source read once."""
    with torch.no_grad():
        prefix = split_rows(model(inputs_embeds=source, use_cache=True).past_key_values)[0]
    place = torch.arange(len(prefix), len(prefix) + edited.shape[1], device=edited.device)
    with prefix_attention(model):
        out = model(
            inputs_embeds=edited,
            past_key_values=as_cache([prefix] * len(edited)),
            position_ids=place.expand(len(edited), -1),
            use_cache=True,
        )
    return out.last_hidden_state[:, -1]


WAYS = {"whole": whole, "sharing": sharing}


def make_call(size: str, device: str, way: str, n: int | None) -> Callable[[], Any]:
    """Function that scores n candidates without gradient, or computes the gradient of one if n is None."""
    model = make_model(size, device)
    before, after = TOKENS[size]
    source = embeddings(model, 1, before, 0)
    edited = embeddings(model, n or 1, after, 1)

    def score() -> torch.Tensor:
        with torch.no_grad():
            return WAYS[way](model, source, edited)

    def gradient() -> torch.Tensor:
        image = edited.clone().requires_grad_(True)
        (pixel_gradient,) = torch.autograd.grad(WAYS[way](model, source, image).float().square().sum(), image)
        return pixel_gradient

    return score if n else gradient


def seconds(call: Callable[[], Any], device: str, rounds: int) -> float:
    """Median seconds of a call, after one call to warm up."""
    times = []
    call()
    for _ in range(rounds):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def memory(size: str, device: str, way: str, n: int | None) -> float:
    """Peak GiB of a call, besides the model and its inputs: of the device's memory, or on a CPU of a fresh
    process.
    """
    if device == "cuda":
        return peak_of_device(make_call(size, device, way, n))
    with multiprocessing.get_context("spawn").Pool(1) as alone:
        return alone.apply(peak, (size, way, n, TOKENS[size]))


def peak_of_device(call: Callable[[], Any]) -> float:
    """Peak GiB of the device's memory that a call needs beyond what is held before it."""
    call()  # loads the kernels, which do not count
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return (torch.cuda.max_memory_allocated() - held) / 2**30


def peak(size: str, way: str, n: int | None, tokens: tuple[int, int]) -> float:
    """Peak GiB of a call in this process on a CPU; see `memory`."""
    torch.set_num_threads(1)  # buffers of further threads would count, too
    TOKENS[size] = (2, 2)
    make_call(size, "cpu", way, n)()  # loads the kernels, which do not count
    TOKENS[size] = tokens
    call = make_call(size, "cpu", way, n)
    held = peak_kib()
    call()
    return (peak_kib() - held) / 2**20


def peak_kib() -> int:
    """Peak memory of this process in KiB. The value of getrusage would start at the parent's."""
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    ]
    return int(line.split()[1])


def measure(
    size: str, device: str, candidates: tuple[int, ...] = CANDIDATES, rounds: int = 5
) -> dict[str, Any]:
    """Seconds and memory of both methods, by number of candidates, and for one candidate's gradient."""
    before, after = TOKENS[size]
    figures: dict[str, Any] = {"source_tokens": before, "candidate_tokens": after}
    for n in (*candidates, None):
        ways = {
            way: {
                "seconds": seconds(make_call(size, device, way, n), device, rounds),
                "gib": memory(size, device, way, n),
            }
            for way in WAYS
        }
        figures[str(n) if n else "gradient"] = {
            **ways,
            "speedup": ways["whole"]["seconds"] / ways["sharing"]["seconds"],
            "memory_share": ways["sharing"]["gib"] / max(ways["whole"]["gib"], 1e-9),
        }
    return figures


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    results = {
        "n": max(CANDIDATES),
        "small, CPU": measure("small", "cpu"),
        "shapes/adiee, CPU": measure("shapes/adiee", "cpu"),
    }
    if devices.default_device() == "cuda":
        results["8B, CUDA"] = measure("8B", "cuda")
    line.keep("prefix", results)
    print(table(read("prefix")))
