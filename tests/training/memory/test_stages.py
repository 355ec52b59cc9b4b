"""GPU memory of scorers and of the VAE's checkpointing, and the GPU of each full-size recipe."""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL

from rewardedit.batch import EditBatch, Scores
from rewardedit.cli import recipe_path
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.training.memory.blueprint import Blueprint
from rewardedit.training.memory.peak import GIB, peak_memory
from rewardedit.training.memory.stages import dummy_batch
from tests.models import small

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import memory

SHARE = 0.9  # of a card that a recipe may take


@pytest.fixture(scope="module")
def sd15() -> Blueprint:
    return memory.make_editor()


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
