"""What a recipe needs of a GPU's memory: the reckoning by hand, the VAE's checkpointing,
and each full-size recipe's card.
"""

import re
import sys
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rewardedit.cli import recipe_folder
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.training.memory import Blueprint
from rewardedit.training.meta import GIB, measure

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
        assert measure(forward).peak == 4 * (512 + 512)
    found = measure(forward)
    assert found.kept == 4 * (512 + 1), "the product, whose square's gradient needs it, and the sum"
    assert found.peak >= found.kept + 4 * 512, "the weight's gradient has as many numbers as the product"


def test_types_are_those_of_autocast_on_cuda():
    with torch.device("meta"):
        layers = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        x = torch.empty(4, 8)
    seen: list[torch.dtype] = []
    for layer in layers:
        layer.register_forward_hook(lambda module, inputs, out: seen.append(out.dtype))
    measure(lambda: layers(x).sum(), torch.float16)
    assert seen == [torch.float16, torch.float32]


def test_attention_keeps_no_matrix_of_all_pairs():
    query = torch.empty(1, 8, 4096, 40, device="meta", requires_grad=True)
    found = measure(lambda: nn.functional.scaled_dot_product_attention(query, query, query).sum())
    assert found.peak < 8 * 4096 * 4096


def test_what_is_checkpointed_is_computed_again_and_counted():
    with torch.device("meta"):
        block = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)))
        x = torch.empty(1024, 64)
    plain = measure(lambda: block(x).sum())

    def one_segment() -> Tensor:
        return checkpoint(block, x, use_reentrant=False).sum()

    def many_segments(y: Tensor = x) -> Tensor:
        for part in block:
            y = checkpoint(part, y, use_reentrant=False)
        return y.sum()

    assert measure(one_segment).kept < plain.kept / 4
    assert measure(one_segment).peak > 0.9 * plain.peak, "all of it is there again in the backward pass"
    assert measure(many_segments).peak < 0.8 * plain.peak


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
        return measure(lambda: InstructPix2Pix().decode(vae, latents)).peak

    plain = peak()
    vae.enable_gradient_checkpointing()
    assert peak() < 0.7 * plain


@pytest.mark.parametrize("recipe", memory.RECIPES)
def test_a_full_size_recipe_fits_its_card(recipe, sd15):
    head = (recipe_folder() / f"{recipe}.yaml").read_text()
    found = memory.stages(recipe, sd15)
    assert max(found.values()) < SHARE * memory.card(head) * GIB
    assert memory.line(found) in head.splitlines(), "write it anew: python benchmarks/memory.py"


def test_more_processes_need_more(sd15):
    recipe = "magicbrush-reward-conditioned"
    six = memory.stages(recipe, sd15, 6)["step"]
    (head,) = re.findall(
        rf"{re.escape(memory.HEAD)}.*step ([\d.]+)", (recipe_folder() / f"{recipe}.yaml").read_text()
    )
    assert float(head) * GIB < six < SHARE * 80 * GIB  # the head's is that of one process
