"""Vision-language models: our tensor preprocessing beside their own processors, gradients, and answers."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from PIL import Image

from rewardedit.images import lanczos, resize, to_pil, to_tensor
from rewardedit.language.answers import text_of
from rewardedit.language.vlm import PIXELS, Vlm, load_vlm
from rewardedit.synthesis.captions import ask, caption_pairs, said
from tests.models import VLMS, save_vlm


@pytest.fixture(scope="module", params=VLMS)
def vlm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vlm:
    folder = str(tmp_path_factory.mktemp(request.param))
    save_vlm(folder, request.param)
    return load_vlm(folder)


def photograph(h: int, w: int, seed: int = 0) -> torch.Tensor:
    """(3, h, w) Smooth colours with edges, in whole levels of 255."""
    generator = torch.Generator().manual_seed(seed)
    colours = torch.rand(1, 3, 6, 6, generator=generator)
    image = torch.nn.functional.interpolate(colours, (h, w), mode="bilinear")[0]
    image[:, h // 4 : h // 2, w // 3 : w // 2] = torch.rand(3, 1, 1, generator=generator)
    return to_tensor(to_pil(image), 3)


@pytest.mark.parametrize(("h", "w"), [(64, 64), (40, 64), (64, 40), (90, 50), (24, 24), (33, 71)])
def test_images_come_out_as_the_model_s_own_processor_has_them(vlm, h, w):
    images = torch.stack([photograph(h, w, seed) for seed in range(4)])
    text = vlm.prompt([ask("one"), ask("two", image=True), ask("three", image=True)])
    official = vlm.processor(
        images=[[to_pil(image) for image in pair] for pair in images.unflatten(0, (2, 2))],
        text=[text, text],
        return_tensors="pt",
        padding=True,
        add_special_tokens=False,
    )
    ours = vlm.inputs([text, text], images.unflatten(0, (2, 2)))
    assert ours["pixel_values"].shape == official["pixel_values"].shape
    std = max(vlm.processor.image_processor.image_std)
    away = (ours["pixel_values"] - official["pixel_values"]).abs() * std
    assert away.mean() < 1 / 255
    for name in set(official) - {"pixel_values"}:
        assert torch.equal(ours[name], official[name]), name


def test_a_gradient_reaches_every_pixel_s_neighbourhood(vlm):
    images = torch.stack([photograph(64, 64, seed) for seed in range(2)])[None].requires_grad_()
    text = vlm.prompt([ask("what?", image=True), ask("and now?", image=True)])
    logits = vlm.model(**vlm.inputs([text], images)).logits
    logits[0, -1].square().sum().backward()
    assert images.grad is not None
    assert images.grad.isfinite().all()
    blocks = images.grad[0].abs().sum(1).unfold(1, 8, 8).unfold(2, 8, 8).sum((3, 4))
    assert (blocks > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_images_of_half_precision_are_read_as_they_are(vlm, dtype):
    images = photograph(40, 50)[None, None].to(dtype)
    text = vlm.prompt([ask("what?", image=True)])
    found, exact = (vlm.inputs([text], part)["pixel_values"] for part in (images, images.float()))
    assert torch.equal(found, exact)


def test_a_row_does_not_depend_on_its_neighbours(vlm):
    images = torch.stack([photograph(64, 64, seed) for seed in range(3)])[:, None]
    texts = [vlm.prompt([ask("short" * (i + 1), image=True)]) for i in range(3)]
    together = [text_of(answer) for answer in vlm.answer(texts, images, max_new_tokens=5)]
    alone = [
        text_of(vlm.answer([text], image[None], max_new_tokens=5)[0])
        for text, image in zip(texts, images, strict=True)
    ]
    assert together == alone


def test_two_turns_give_two_captions(vlm):
    pairs = caption_pairs(
        vlm, torch.stack([photograph(64, 64, s) for s in range(2)]), ["add a hat", "remove it"], 4
    )
    assert len(pairs) == 2
    assert all(text_of(answer) for pair in pairs for answer in pair)
    chat = [ask("a", image=True), said("b"), ask("c")]
    assert vlm.prompt(chat).endswith("assistant:")


def test_a_model_of_another_kind_is_refused(tmp_path):
    from transformers import CLIPConfig

    CLIPConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is a clip; expected one of llava_next, idefics3, qwen2_5_vl"):
        load_vlm(str(tmp_path))
    with pytest.raises(ValueError, match="nowhere' cannot be loaded"):
        load_vlm(str(tmp_path / "nowhere"))
    assert set(PIXELS) == set(VLMS)


@pytest.mark.parametrize(("old", "new"), [((64, 48), (32, 24)), ((20, 30), (55, 41)), ((64, 64), (63, 10))])
def test_lanczos_is_pil_s(old, new):
    image = photograph(*old)
    expected = to_tensor(to_pil(image).resize(new[::-1], Image.Resampling.LANCZOS), 3)
    away = (resize(image[None], new, "lanczos")[0] - expected).abs()
    assert away.mean() < 0.4 / 255
    assert away.max() < 3 / 255
    torch.testing.assert_close(lanczos(old[0], new[0]).sum(1), torch.ones(new[0], dtype=torch.float64))


def test_two_threads_answer_as_one_does_and_leave_the_model_as_it_is(vlm, monkeypatch):
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "red red red"}]}]
    images = torch.rand(1, 1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    texts = [vlm.prompt(chat)]
    own = vlm.model.generation_config
    alone = text_of(vlm.answer(texts, images, 8)[0])
    begun = threading.Barrier(2, timeout=60)
    real = type(vlm.model).generate

    def together(model, *args, **options):
        begun.wait()  # both have set what they want
        try:
            return real(model, *args, **options)
        finally:
            begun.wait()  # and neither has put anything back

    monkeypatch.setattr(type(vlm.model), "generate", together)
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda n: text_of(vlm.answer(texts, images, n)[0]), (8, 8)))
    assert said == [alone, alone]
    assert vlm.model.generation_config is own


@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": True, "temperature": 50.0, "repetition_penalty": 3.0},
        {"num_beams": 4},
        {"no_repeat_ngram_size": 1},
        {"suppress_tokens": list(range(9, 60))},
    ],
)
def test_an_answer_is_the_likeliest_whatever_the_model_s_own_settings_are(vlm, settings):
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "red red red"}]}]
    images = torch.rand(1, 1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    own = vlm.model.generation_config
    plain = text_of(vlm.answer([vlm.prompt(chat)], images, 8)[0])
    before = copy.deepcopy(own)
    own.update(**settings)
    try:
        assert text_of(vlm.answer([vlm.prompt(chat)], images, 8)[0]) == plain
        assert vlm.model.generation_config is own
    finally:
        vlm.model.generation_config = before
