"""GPU memory of recipes: a calculation by hand, the VAE's checkpointing,
and the GPU of each full-size recipe.
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rewardedit.batch import EditBatch, Scores
from rewardedit.cli import recipe_path
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.training.blueprint import Blueprint
from rewardedit.training.memory import dummy_batch
from rewardedit.training.meta import GIB, peak_memory
from tests.models import small

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import memory

SHARE = 0.9  # of a card that a recipe may take


@pytest.fixture(scope="module")
def sd15() -> Blueprint:
    return memory.make_editor()


def test_bytes_by_hand():
    """A product has 512 numbers, their squares another 512;
    only without a gradient is the product let go for the sum.
    """
    with torch.device("meta"):
        layer = nn.Linear(16, 32, bias=False)
        x = torch.empty(16, 16)

    def forward() -> Tensor:
        return layer(x).square().sum()

    with torch.no_grad():
        assert peak_memory(forward).peak == 4 * (512 + 512)
    found = peak_memory(forward)
    assert found.kept == 4 * (512 + 1), "the product, whose square's gradient needs it, and the sum"
    assert found.peak >= found.kept + 4 * 512, "the weight's gradient has as many numbers as the product"


def test_types_are_those_of_autocast_on_cuda():
    with torch.device("meta"):
        layers = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        x = torch.empty(4, 8)
    seen: list[torch.dtype] = []
    for layer in layers:
        layer.register_forward_hook(lambda module, inputs, out: seen.append(out.dtype))
    peak_memory(lambda: layers(x).sum(), torch.float16)
    assert seen == [torch.float16, torch.float32]


def test_attention_keeps_no_matrix_of_all_pairs():
    query = torch.empty(1, 8, 4096, 40, device="meta", requires_grad=True)
    found = peak_memory(lambda: nn.functional.scaled_dot_product_attention(query, query, query).sum())
    assert found.peak < 8 * 4096 * 4096


def test_queries_may_share_keys_and_values():
    query, shared = (torch.empty(1, heads, 64, 16, device="meta", requires_grad=True) for heads in (8, 2))
    attend = nn.functional.scaled_dot_product_attention
    found = peak_memory(lambda: attend(query, shared, shared, enable_gqa=True).sum())
    assert found.kept > 3 * 8 * 64 * 16 * 4, "queries' result, and keys and values for each of them"
    assert shared.grad is not None
    assert shared.grad.shape == shared.shape


def test_whole_numbers_keep_their_values():
    """Three rows are chosen and squared: what is counted depends on the numbers."""
    x = torch.empty(4, 1024, device="meta")
    numbers = torch.tensor([3, 1, 3, 3])

    def forward() -> Tensor:
        there = numbers.to("meta")
        counted = torch.arange(int(there.max()), device="meta")
        assert counted.tolist() == [0, 1, 2]
        return x[there == 3].square().sum()

    with torch.no_grad():
        rows = peak_memory(forward).peak / (4 * 1024)
    assert 6 <= rows < 6.1


@pytest.mark.parametrize(
    ("name", "parameters"),
    [pytest.param("7B", 8.29e9, marks=pytest.mark.slow), pytest.param("3B", 3.75e9, marks=pytest.mark.slow)],
)
def test_a_judge_of_true_size_is_measured(name, parameters, sd15):
    """Qwen publishes as many parameters; the judge's own words are few tokens each. With a gradient, every
    layer keeps more than its input.
    """
    spec = {"vlm_judge": {"checkpoint": f"Qwen/Qwen2.5-VL-{name}-Instruct", "dtype": "bfloat16"}}
    judge = memory.scorer(spec)
    assert sum(p.numel() for p in judge.parameters()) == pytest.approx(parameters, rel=0.005)
    asked = memory.chat(judge.questions[0], "", "digits", None)[0]["content"][-1]["text"]
    tokens = memory.qwen_processor().tokenizer(asked).input_ids
    assert 1 <= len(tokens) / len(asked.split()) < 1.6

    def peak(**gradient: bool) -> int:
        edited = torch.empty(1, 3, 256, 256, device="meta", **gradient)
        return peak_memory(lambda: judge(dummy_batch(sd15, edited)).score).peak

    layers, width = (memory.QWEN[judge.name][key] for key in ("num_hidden_layers", "hidden_size"))
    kept = peak(requires_grad=True)
    assert kept > 2 * layers * width * len(tokens) * len(judge.questions)
    with torch.no_grad():
        assert peak() < kept / 10


@pytest.mark.parametrize(
    "name", [pytest.param("adiee", marks=pytest.mark.slow), "clip_d", "l1", "ssim", "vifi_clip"]
)
def test_a_built_in_reward_is_measured(name, sd15):
    """Its gradient needs what the forward pass keeps; in half precision small models save little."""
    scorer = load_scorer(small(name)).to("meta")

    def peak(autocast: torch.dtype | None = None, **gradient: bool) -> int:
        edited = torch.empty(2, 3, 256, 256, device="meta", **gradient)
        return peak_memory(lambda: scorer(dummy_batch(sd15, edited)).score, autocast).peak

    kept = peak(requires_grad=True)
    assert kept > 2 * 3 * 256 * 256 * 4, "the gradient of the edited images alone is as large"
    assert peak(torch.bfloat16, requires_grad=True) < 1.1 * kept
    with torch.no_grad():
        assert peak() < kept


def test_a_judge_recomputes_one_question_at_a_time(tiny_judge, sd15):
    """Of so small a judge, most of what stays are the images of its four questions."""
    judge = load_scorer("vlm_judge", checkpoint=tiny_judge).to("meta")

    def peak(score: Callable[[EditBatch], Scores]) -> int:
        edited = torch.empty(1, 3, 256, 256, device="meta", requires_grad=True)
        return peak_memory(lambda: score(dummy_batch(sd15, edited)).score).peak

    at_once = peak(partial(Scorer.checkpointed, judge))
    assert at_once > 0.9 * peak(judge)
    assert peak(judge.checkpointed) < 0.7 * at_once


def test_what_is_checkpointed_is_computed_again_and_counted():
    with torch.device("meta"):
        block = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)))
        x = torch.empty(1024, 64)
    plain = peak_memory(lambda: block(x).sum())

    def one_segment() -> Tensor:
        return checkpoint(block, x, use_reentrant=False).sum()

    def many_segments(y: Tensor = x) -> Tensor:
        for part in block:
            y = checkpoint(part, y, use_reentrant=False)
        return y.sum()

    assert peak_memory(one_segment).kept < plain.kept / 4
    assert peak_memory(one_segment).peak > 0.9 * plain.peak, "all of it is there again in the backward pass"
    assert peak_memory(many_segments).peak < 0.8 * plain.peak


def test_the_vaes_own_checkpointing_saves_memory(narrow_sd15):
    """One segment around all of the decoding saves nothing:
    its activations are all there again in the backward pass.
    """
    with torch.device("meta"):
        vae = AutoencoderKL.from_config(
            AutoencoderKL.load_config(narrow_sd15, subfolder="vae")
        ).requires_grad_(False)

    def peak() -> int:
        latents = torch.empty(2, 4, 32, 32, device="meta", requires_grad=True)
        return peak_memory(lambda: InstructPix2Pix().decode(vae, latents)).peak

    plain = peak()
    vae.enable_gradient_checkpointing()
    assert peak() < 0.7 * plain


# The suite measures one recipe, of which the others are larger.
MEASURED = {"humanedit-vifi-clip"}


@pytest.mark.parametrize(
    "recipe",
    [name if name in MEASURED else pytest.param(name, marks=pytest.mark.slow) for name in memory.RECIPES],
)
def test_a_full_size_recipe_fits_its_card(recipe, sd15):
    head = recipe_path(recipe).read_text()
    found = memory.stages(recipe, sd15)
    assert max(found.values()) < SHARE * memory.card(head) * GIB
    assert memory.line(found) in head.splitlines(), "write it anew: python benchmarks/memory.py"


@pytest.mark.slow
def test_more_processes_need_more(sd15):
    recipe = "magicbrush-reward-conditioned"
    six = memory.stages(recipe, sd15, 6)["step"]
    (head,) = re.findall(rf"{re.escape(memory.HEAD)}.*step ([\d.]+)", recipe_path(recipe).read_text())
    assert float(head) * GIB < six < SHARE * 80 * GIB  # the head's is that of one process
