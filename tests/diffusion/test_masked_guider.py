"""A guider of modular pipelines that follows the instruction inside a mask only."""

from typing import Any

import pytest
import torch
from diffusers import ClassifierFreeGuidance
from diffusers.modular_pipelines.flux2.modular_blocks_flux2_klein_base import Flux2KleinBaseAutoBlocks
from diffusers.modular_pipelines.qwenimage.modular_blocks_qwenimage_edit import QwenImageEditAutoBlocks

from rewardedit.diffusion.masked_guider import MaskedGuidance
from rewardedit.images import to_pil
from tests.editors import small_qwen_area, tiny_klein, tiny_qwen

ONES = torch.ones(1, 1, 64, 64)
SIZE = {"klein": ((16, 16), 1), "qwen": ((16, 16), 2)}  # of the target in tokens, and a token's side


@pytest.fixture(autouse=True)
def small_area(monkeypatch):
    small_qwen_area(monkeypatch)


@pytest.fixture(params=SIZE)
def modular(request) -> Any:
    """A modular pipeline of the parts of a stock one, called with a guider."""
    stock = {"klein": tiny_klein, "qwen": tiny_qwen}[request.param]()
    blocks = {"klein": Flux2KleinBaseAutoBlocks, "qwen": QwenImageEditAutoBlocks}[request.param]()
    pipe = blocks.init_pipeline()
    pixels = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(3))

    def edit(guider: ClassifierFreeGuidance) -> torch.Tensor:
        pipe.update_components(guider=guider, **stock.components)
        pipe.set_progress_bar_config(disable=True)
        return pipe(
            image=to_pil(pixels),
            prompt="make it red",
            height=64,
            width=64,
            num_inference_steps=2,
            generator=torch.Generator().manual_seed(0),
            output_type="pt",
            output="images",
        )

    edit.size = SIZE[request.param]
    return edit


def test_a_mask_of_ones_is_plain_guidance_to_the_bit(modular):
    plain = modular(ClassifierFreeGuidance(guidance_scale=3.0))
    assert torch.equal(modular(MaskedGuidance.of(ONES, *modular.size, guidance_scale=3.0)), plain)
    zeros = MaskedGuidance.of(torch.zeros_like(ONES), *modular.size, guidance_scale=3.0)
    assert not torch.equal(modular(zeros), plain)


def test_copies_keep_the_mask_and_saved_ones_lose_it(tmp_path):
    guider = MaskedGuidance.of(ONES, (4, 4), 1, guidance_scale=3.0)
    other = guider.new(guidance_scale=5.0)
    assert other.guidance_scale == 5.0
    assert other.mask is guider.mask
    assert (other.size, other.patch) == ((4, 4), 1)
    guider.save_pretrained(tmp_path)
    loaded = MaskedGuidance.from_pretrained(tmp_path)
    assert loaded.guidance_scale == 3.0
    with pytest.raises(ValueError, match=r"expected a mask; got none.*set guider\.mask"):
        loaded.forward(torch.ones(1, 16, 4), torch.zeros(1, 16, 4))


def test_tokens_of_the_source_are_left_alone():
    mask = torch.zeros(1, 1, 2, 2)
    mask[..., 0, :] = 1
    guider = MaskedGuidance.of(mask, (2, 2), 1, guidance_scale=2.0)
    guider.target = 4
    found = guider.forward(torch.ones(1, 6, 3), torch.zeros(1, 6, 3))
    assert found.pred[0, :, 0].tolist() == [2, 2, 0, 0, 2, 2]
    image = guider.forward(torch.ones(1, 3, 4, 4), torch.zeros(1, 3, 4, 4)).pred
    assert image[0, 0, :, 0].tolist() == [2, 2, 0, 0]


def test_the_mask_holds_outside_the_guided_steps(modular):
    late = {"guidance_scale": 3.0, "start": 0.5}
    plain = modular(ClassifierFreeGuidance(**late))
    assert torch.equal(modular(MaskedGuidance.of(ONES, *modular.size, **late)), plain)

    mask = torch.cat([ONES[..., :32], torch.zeros_like(ONES[..., 32:])], 3)
    guider = MaskedGuidance.of(mask, (1, 2), 1, **late)
    for step, guided in ((0, 1), (1, 3)):
        guider.set_state(step, 2, torch.tensor(0))
        assert guider.num_conditions == 2
        found = guider.forward(torch.ones(1, 2, 1), torch.zeros(1, 2, 1))
        assert found.pred.flatten().tolist() == [guided, 0]


def test_another_size_than_the_target_s_is_refused(modular):
    (rows, columns), patch = modular.size
    for wrong in (rows - 1, rows + 1):
        guider = MaskedGuidance.of(ONES, (wrong, columns), patch, guidance_scale=3.0)
        message = rf"size: expected rows × columns = {rows * columns} tokens; got {wrong} × {columns} = "
        with pytest.raises(ValueError, match=message):
            modular(guider)


def test_what_it_lacks_is_named():
    with pytest.raises(ValueError, match=r"got one alone; set enabled=True"):
        MaskedGuidance.of(ONES, enabled=False).forward(torch.ones(1, 16, 4))
    with pytest.raises(ValueError, match=r"the target, 16 tokens; got none; set guider\.size"):
        MaskedGuidance.of(ONES).forward(torch.ones(1, 16, 4), torch.ones(1, 16, 4))
