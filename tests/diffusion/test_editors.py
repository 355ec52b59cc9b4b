"""Editors: what they are asked with, and that no row depends on its neighbours."""

import shutil

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from peft import LoraConfig

from rewardedit import RewardPrompt, SamplingConfig, best_of_n, load_editor, load_scorer, two_round_edit
from rewardedit.diffusion.editors import Editor, as_editor
from rewardedit.diffusion.saving import save_editor
from rewardedit.diffusion.text_to_image import load_text_to_image, save_text_to_image
from rewardedit.images import load_image, to_pil
from rewardedit.models import resolve_model
from rewardedit.reward_prompt import RewardScale
from tests.editors import tiny_kontext
from tests.models import tiny_pipeline


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
        SamplingConfig(**settings)
    assert SamplingConfig(1, 1.0, 0.9).image_guidance_scale == 0.9  # without guidance it says nothing


def test_choosing_and_two_rounds_ask_a_conditioned_editor_for_the_score_that_is_meant(tiny_editor):
    base = load_editor(tiny_editor)
    editor = Editor(base.pipe, SamplingConfig(2), RewardPrompt.adiee(scale=RewardScale((0.0, 0.5, 1.0))))
    source = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    worst, best = (editor(source, ["make it red"], [0], target_score=score) for score in (0.0, 10.0))
    assert not torch.equal(worst, best)
    chosen = best_of_n(editor, load_scorer("l1"), source[0], "make it red", n=1, target_score=0.0)
    assert torch.equal(chosen.images, worst)
    assert torch.equal(two_round_edit(editor, source, ["make it red"], target_score=0.0).first, worst)


def test_a_text_to_image_model_that_is_saved_stays_as_it_is(tmp_path):
    pipe = load_text_to_image("shapes/text-to-image")
    save_text_to_image(pipe, tmp_path / "saved", "shapes/editor")
    assert pipe.unet.dtype == torch.float32
    again = load_text_to_image(str(tmp_path / "saved"), dtype=torch.float16)
    for now, was in zip(again.unet.parameters(), pipe.unet.parameters(), strict=True):
        assert torch.equal(now, was.half())


def edit_once(pipe) -> np.ndarray:
    image = to_pil(torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0)))
    return pipe("make it red", image=image, num_inference_steps=1, output_type="np").images


def test_stock_diffusers_loads_the_packaged_editor_without_a_dtype():
    pipe = DiffusionPipeline.from_pretrained(resolve_model("shapes/editor"))
    assert edit_once(pipe).shape == (1, 32, 32, 3)


def test_an_editor_that_is_saved_in_half_precision_is_loaded_whole_by_stock_diffusers(tmp_path):
    save_editor(Editor(tiny_pipeline().to(torch.float16), SamplingConfig(1)), tmp_path / "half")
    pipe = DiffusionPipeline.from_pretrained(tmp_path / "half")
    assert {pipe.text_encoder.dtype, pipe.unet.dtype, pipe.vae.dtype} == {torch.float32}
    assert edit_once(pipe).shape == (1, 32, 32, 3)


def test_images_are_taken_in_every_form(tiny_editor, tmp_path):
    editor = load_editor(tiny_editor)
    editor.settings = SamplingConfig(1)
    photo = to_pil(torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0)))
    photo.save(tmp_path / "photo.png")
    tensor = load_image(tmp_path / "photo.png")
    wanted = editor(tensor[None], ["make it red"], [0])
    path = tmp_path / "photo.png"
    for image in (photo, np.asarray(photo), tensor, path, str(path), [photo], np.asarray(photo)[None] / 255):
        torch.testing.assert_close(editor(image, "make it red"), wanted, rtol=0, atol=1e-5)
    assert len(editor([photo, tensor], ["make it red"] * 2, 3)) == 2
    chosen = best_of_n(editor, load_scorer("l1"), path, "make it red", n=2)
    torch.testing.assert_close(chosen.images[:1], wanted, rtol=0, atol=1e-3)
    with pytest.raises(ValueError, match=r"image: expected floating-point values in .* divide by 255"):
        editor(tensor.mul(255).byte(), "make it red")
    with pytest.raises(ValueError, match="expected images of one size"):
        editor([photo, photo.resize((16, 32))], ["make it red"] * 2)
    with pytest.raises(ValueError, match="no such file"):
        editor("nowhere.png", "make it red")


@pytest.mark.parametrize(("make", "multiple"), [(tiny_pipeline, 2), (tiny_kontext, 4)])
def test_a_photograph_is_brought_to_sizes_that_are_edited(make, multiple, tmp_path):
    editor = load_editor(make())
    photo = torch.rand(3, 61, 67, generator=torch.Generator().manual_seed(0))
    message = rf"sides that are multiples of {multiple}, .* got \(61, 67\); edit editor.resize\(source\)"
    with pytest.raises(ValueError, match=message):
        editor(photo, "make it red")
    to_pil(photo).save(tmp_path / "photo.png")
    least = (multiple, multiple)
    for image, size, sides in ((photo, None, (60, 68)), (photo[None], 32, (32, 36)), (photo, 1, least)):
        assert editor.resize(image, size).shape == (1, 3, *sides)
    resized = editor.resize(tmp_path / "photo.png", 32)
    assert editor(resized, "make it red", settings=SamplingConfig(1)).shape == (1, 3, 32, 36)
    assert torch.equal(editor.resize(resized, 32), resized), "what fits stays as it is"
    with pytest.raises(ValueError, match="size: expected at least 1; got 0"):
        editor.resize(photo, 0)


def test_where_an_editor_is_and_in_what_type_follows_the_device(tiny_editor, monkeypatch):
    assert load_editor(tiny_editor).pipe.unet.dtype == torch.float32
    assert load_editor(tiny_editor, dtype="bfloat16").pipe.vae.dtype == torch.bfloat16
    monkeypatch.setattr("rewardedit.devices.default_device", lambda: "meta")  # a device that is no CPU
    assert load_editor(tiny_editor, device="cpu").pipe.unet.dtype == torch.float32
    pipe = tiny_pipeline()
    assert load_editor(pipe).pipe is pipe
    editor = as_editor(pipe)
    assert load_editor(editor) is editor
    with pytest.raises(ValueError, match="graphs, quantize do not apply to a loaded pipeline"):
        load_editor(pipe, device="cpu")


def test_a_base_whose_lora_is_gone_is_not_loaded_alone(tiny_editor, tmp_path):
    pipe = tiny_pipeline()
    pipe.unet.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"]))
    save_editor(Editor(pipe, SamplingConfig(3)), tmp_path / "run", base=tiny_editor)
    (tmp_path / "run" / "pytorch_lora_weights.safetensors").unlink()
    with pytest.raises(ValueError, match=r"names the base .* but there is no pytorch_lora_weights"):
        load_editor(str(tmp_path / "run"))


def test_a_lora_is_laid_over_the_base_that_is_named(tiny_editor, tmp_path):
    pipe = tiny_pipeline()
    pipe.unet.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    save_editor(Editor(pipe, SamplingConfig(3)), tmp_path / "whole", base=tiny_editor)
    lora = tmp_path / "lora"
    lora.mkdir()
    weights = tmp_path / "whole" / "pytorch_lora_weights.safetensors"
    shutil.copy(weights, lora)
    with pytest.raises(ValueError, match="a LoRA, which does not name its base; give both: --model BASE --l"):
        load_editor(str(lora))
    named = lora / "watercolour.safetensors"
    wanted = load_editor(str(tmp_path / "whole"))
    source = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    asked = (source, "make it red")
    image = wanted(*asked)
    for name in (lora, weights, tmp_path / "whole", named):
        if name == named:
            (lora / weights.name).rename(named)
        found = load_editor(tiny_editor, lora=str(lora if name == named else name))
        assert torch.equal(found(*asked, settings=SamplingConfig(3)), image)
    assert not torch.equal(load_editor(tiny_editor)(*asked, settings=SamplingConfig(3)), image)
    assert found.settings == SamplingConfig(), "the LoRA has none of its own"
    for other, message in (
        (tmp_path / "nowhere", "expected pytorch_lora_weights.safetensors or one .safetensors file; got no"),
        (resolve_model("shapes/clip"), "does not fit|holds no weights"),
    ):
        with pytest.raises(ValueError, match=message):
            load_editor(tiny_editor, lora=str(other))
