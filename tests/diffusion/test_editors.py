"""Editors: what they are asked with, and that no row depends on its neighbours."""

import pytest
import torch

from rewardedit import EditConfig, RewardPrompt, best_of_n, load_editor, load_scorer, two_round_edit
from rewardedit.diffusion.editors import Editor
from rewardedit.diffusion.text_to_image import load_text_to_image, save_text_to_image
from rewardedit.reward_prompt import RewardScale


def test_a_value_a_hair_below_0_changes_no_other_row(tiny_editor):
    editor = load_editor(tiny_editor)
    source = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain = editor.encode(source, ["make it red"] * 3).inputs["image"]
    source[0, 0, 0, 0] = -1e-4
    found = editor.encode(source, ["make it red"] * 3).inputs["image"]
    assert torch.equal(found[1:], plain[1:])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_inference_steps": 0}, "num_inference_steps: expected at least 1; got 0"),
        ({"guidance_scale": 1.75, "image_guidance_scale": 0.9}, "image_guidance_scale: expected at least 1"),
    ],
)
def test_settings_that_a_pipeline_would_not_follow_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EditConfig(**settings)
    assert EditConfig(1, 1.0, 0.9).image_guidance_scale == 0.9  # without guidance it says nothing


def test_choosing_and_two_rounds_ask_a_conditioned_editor_for_the_score_that_is_meant(tiny_editor):
    base = load_editor(tiny_editor)
    editor = Editor(base.pipe, EditConfig(2), RewardPrompt.adiee(scale=RewardScale((0.0, 0.5, 1.0))))
    source = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    worst, best = (editor(source, ["make it red"], [0], score=score) for score in (0.0, 10.0))
    assert not torch.equal(worst, best)
    chosen = best_of_n(editor, load_scorer("l1"), source[0], "make it red", n=1, score=0.0)
    assert torch.equal(chosen.images, worst)
    assert torch.equal(two_round_edit(editor, source, ["make it red"], score=0.0).first, worst)


def test_a_text_to_image_model_that_is_saved_stays_as_it_is(tmp_path):
    pipe = load_text_to_image("shapes-text-to-image")
    save_text_to_image(pipe, tmp_path / "saved", "shapes-editor")
    assert pipe.unet.dtype == torch.float32
    again = load_text_to_image(str(tmp_path / "saved"), dtype=torch.float16)
    for now, was in zip(again.unet.parameters(), pipe.unet.parameters(), strict=True):
        assert torch.equal(now, was.half())
