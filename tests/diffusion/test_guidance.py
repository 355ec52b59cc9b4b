"""Mask guidance on real pipelines at tiny size: exact at 0 and 1, nothing left hooked,
pairs of image and prompt kept.
"""

import re

import pytest
import torch
from diffusers import (
    AutoencoderKLQwenImage,
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxKontextPipeline,
    FluxTransformer2DModel,
    HeunDiscreteScheduler,
    QwenImageEditPipeline,
    QwenImageTransformer2DModel,
    StableDiffusionXLInstructPix2PixPipeline,
    UNet2DConditionModel,
)
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit
from PIL import Image
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from rewardedit import change_mask, mask_guidance, two_round_edit
from tests import editors
from tests.editors import flux_vae
from tests.models import text_config, tiny_pipeline

SCHEDULERS = (
    DDIMScheduler,
    EulerAncestralDiscreteScheduler,
    DPMSolverMultistepScheduler,
    HeunDiscreteScheduler,
)
PROMPTS = ["make the circle red", "remove the star"]
NEGATIVE = "blue square"


def sources(b: int = 2) -> torch.Tensor:
    return torch.rand(b, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def half(h: int = 32, w: int = 32) -> torch.Tensor:
    mask = torch.zeros(1, 1, h, w)
    mask[..., : w // 2] = 1
    return mask


def tiny_xl() -> StableDiffusionXLInstructPix2PixPipeline:
    torch.manual_seed(0)
    pipe = tiny_pipeline()
    config = text_config(pipe.tokenizer, width=16, layers=2, heads=2, projection_dim=16)
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=8,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(8, 16),
        layers_per_block=1,
        cross_attention_dim=32,
        attention_head_dim=2,
        norm_num_groups=4,
        addition_embed_type="text_time",
        addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=16 + 6 * 4,
    )
    return StableDiffusionXLInstructPix2PixPipeline(
        vae=pipe.vae,
        text_encoder=CLIPTextModel(config),
        text_encoder_2=CLIPTextModelWithProjection(config),
        tokenizer=pipe.tokenizer,
        tokenizer_2=pipe.tokenizer,
        unet=unet,
        scheduler=pipe.scheduler,
        add_watermarker=False,
    )


def ask(pipe, prompt=PROMPTS, image=None, **options) -> torch.Tensor:
    pipe.set_progress_bar_config(disable=True)
    options = {"num_inference_steps": 3, "guidance_scale": 5.0, "image_guidance_scale": 1.5, **options}
    image = list(sources(len(prompt)) if image is None else image)
    generator = torch.Generator().manual_seed(0)
    return pipe(
        prompt,
        image=image,
        negative_prompt=[NEGATIVE] * len(prompt),
        output_type="pt",
        generator=generator,
        **options,
    )[0]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("make", [tiny_pipeline, tiny_xl])
def test_ones_are_the_stock_pipeline_and_zeros_the_negative_prompt(make, scheduler):
    pipe = make()
    pipe.scheduler = scheduler.from_config(pipe.scheduler.config)
    stock = ask(pipe)
    negative = ask(pipe, [NEGATIVE] * 2)
    with mask_guidance(pipe, torch.ones(1, 1, 32, 32)):
        assert torch.equal(ask(pipe), stock)
    with mask_guidance(pipe, torch.zeros(2, 1, 16, 16)):
        assert torch.equal(ask(pipe), negative)
    assert not torch.equal(stock, negative)
    assert not pipe.unet._forward_hooks


def test_two_prompts_with_two_pictures_each():
    pipe = tiny_pipeline()
    stock = ask(pipe, num_images_per_prompt=2)
    with mask_guidance(pipe, torch.ones(2, 1, 32, 32)):
        assert torch.equal(ask(pipe, num_images_per_prompt=2), stock)


def test_masks_follow_the_sources_where_stock_pipelines_mix_pairs_up():
    """Stock: prompts p0 p0 p1 p1, sources i0 i1 i0 i1. Masks must lie on the sources' rows."""
    pipe = tiny_pipeline()
    options = {"num_images_per_prompt": 2, "output_type": "latent"}
    pipe.set_progress_bar_config(disable=True)
    common = {"num_inference_steps": 2, "guidance_scale": 5.0, "image_guidance_scale": 1.5}
    noise = torch.randn(4, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    image = sources(2)
    mixed = pipe(PROMPTS, image=list(image), latents=noise, **common, **options)[0]
    masks = torch.cat([torch.ones(1, 1, 32, 32), torch.zeros(1, 1, 32, 32)])
    with mask_guidance(pipe, masks):
        guided = pipe(PROMPTS, image=list(image), latents=noise, **common, **options)[0]
    changed = [not torch.equal(a, b) for a, b in zip(mixed, guided, strict=True)]
    assert changed == [False, True, False, True]
    # Sources repeated by the caller, as our own functions do, keep every pair together.
    paired = [
        pipe([p], image=[i], latents=noise[k : k + 1], output_type="latent", **common)[0]
        for k, (p, i) in enumerate((PROMPTS[k // 2], image[k // 2]) for k in range(4))
    ]
    repeated = pipe(
        [p for p in PROMPTS for _ in range(2)],
        image=list(image.repeat_interleave(2, dim=0)),
        latents=noise,
        output_type="latent",
        **common,
    )[0]
    assert (repeated - torch.cat(paired)).abs().max() < 1e-4
    assert (mixed[1] - paired[1]).abs().max() > 1e-2


def test_less_moves_outside_the_mask():
    pipe = tiny_pipeline()
    stock = ask(pipe)
    negative = ask(pipe, [NEGATIVE] * 2)
    with mask_guidance(pipe, half()):
        guided = ask(pipe)
    moved = {
        name: (image - negative).abs().mean(1) > 2 / 255
        for name, image in (("stock", stock), ("guided", guided))
    }
    outside = slice(24, 32)  # away from the rim, which the UNet's and VAE's receptive fields blur
    assert moved["guided"][..., outside].sum() < 0.7 * moved["stock"][..., outside].sum()
    assert (guided - stock)[..., :8].abs().mean() < (guided - stock)[..., outside].abs().mean()


def test_dilate_feather_and_a_range_of_steps():
    pipe = tiny_pipeline()
    stock = ask(pipe, num_inference_steps=4)
    results = []
    for options in ({}, {"dilate": 4}, {"feather": 3.0}, {"between": (0.5, 1.0)}):
        with mask_guidance(pipe, half(), **options):
            results.append(ask(pipe, num_inference_steps=4))
    distances = [(r - stock).abs().mean() for r in results]
    assert distances[3] < distances[0]  # fewer steps are masked
    assert all(not torch.equal(results[0], r) for r in results[1:])
    with mask_guidance(pipe, half()):
        short = ask(pipe, num_inference_steps=3)
    with mask_guidance(pipe, half(), between=(0, 0.999)):  # all of three steps: the last begins at two thirds
        assert torch.equal(ask(pipe, num_inference_steps=3), short)
    with mask_guidance(
        pipe, half(), between=(0, 2 / 3)
    ):  # the last, which begins where this ends, is left out
        assert not torch.equal(ask(pipe, num_inference_steps=3), short)
    with mask_guidance(pipe, half(), dilate=32):
        assert torch.equal(ask(pipe, num_inference_steps=4), stock)


@pytest.mark.parametrize("in_place", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_compiled_unets(in_place):
    pipe = tiny_pipeline()
    unet = pipe.unet
    eager = ask(pipe)
    if in_place:
        unet.compile(backend="eager")
    else:
        pipe.unet = torch.compile(unet, backend="eager")
    stock = ask(pipe)
    assert (stock - eager).abs().max() < 1e-4
    with mask_guidance(pipe, torch.ones(1, 1, 32, 32)):
        assert torch.equal(ask(pipe), stock)
    with mask_guidance(pipe, half()):
        assert not torch.equal(ask(pipe), stock)
    assert torch.equal(ask(pipe), stock)


def test_lora():
    from peft import LoraConfig

    pipe = tiny_pipeline()
    pipe.unet.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    stock = ask(pipe)
    with mask_guidance(pipe, torch.ones(1, 1, 32, 32)):
        assert torch.equal(ask(pipe), stock)


def test_nothing_stays_hooked_after_an_error():
    pipe = tiny_pipeline()
    stock = ask(pipe)
    with pytest.raises(KeyError), mask_guidance(pipe, half()):
        raise KeyError
    with (
        pytest.raises(ValueError, match="3 rows do not fit 2 sources"),
        mask_guidance(pipe, torch.ones(3, 1, 32, 32)),
    ):
        ask(pipe)
    assert not pipe.unet._forward_hooks
    assert torch.equal(ask(pipe), stock)


def test_a_call_without_guidance_is_refused_also_after_one_with_it():
    pipe = tiny_pipeline()
    with mask_guidance(pipe, half()):
        ask(pipe, ["make it red"] * 3)
        with pytest.raises(ValueError, match="classifier-free guidance"):
            ask(pipe, ["make it red"] * 9, guidance_scale=1.0)  # as many rows as the guided call had


def test_bad_input():
    pipe = tiny_pipeline()
    for mask, message in (
        (torch.full((1, 1, 8, 8), 2.0), "values in"),
        (torch.full((1, 1, 8, 8), float("nan")), "values in"),
    ):
        with pytest.raises(ValueError, match=message), mask_guidance(pipe, mask):
            pass
    with (
        pytest.raises(ValueError, match="mask: expected the proportions"),
        mask_guidance(pipe, torch.ones(1, 1, 32, 64)),
    ):
        ask(pipe)
    with pytest.raises(ValueError, match="classifier-free guidance"), mask_guidance(pipe, half()):
        ask(pipe, guidance_scale=1.0)
    with pytest.raises(ValueError, match="between"), mask_guidance(pipe, half(), between=(0.5, 0.5)):
        pass
    with pytest.raises(ValueError, match="not one of"), mask_guidance(object(), half()):
        pass


def tiny_kontext() -> FluxKontextPipeline:
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=8,
        pooled_projection_dim=8,
        axes_dims_rope=(4, 4, 8),
    )
    vae = flux_vae()
    return FluxKontextPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
        transformer=transformer,
    )


def ask_kontext(pipe, negative=True, swap=False, rows=2, **changed):
    pipe.set_progress_bar_config(disable=True)
    g = torch.Generator().manual_seed(5)
    embeds = torch.randn(2, rows, 6, 8, generator=g)
    pooled = torch.randn(2, rows, 8, generator=g)
    positive = 1 if swap else 0
    options = {
        "prompt_embeds": embeds[positive],
        "pooled_prompt_embeds": pooled[positive],
        "true_cfg_scale": 4.0,
    }
    if negative:
        options |= {"negative_prompt_embeds": embeds[1], "negative_pooled_prompt_embeds": pooled[1]}
    options |= {"image": sources(rows), "height": 32, "width": 32, "max_area": 32 * 32}
    return pipe(
        _auto_resize=False,
        num_inference_steps=3,
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
        **options | changed,
    )[0]


def tiny_qwen() -> QwenImageEditPipeline:
    torch.manual_seed(0)
    transformer = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=8,
        axes_dims_rope=(8, 4, 4),
    )
    vae = AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    return QwenImageEditPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        processor=None,
        transformer=transformer,
    )


def ask_qwen(pipe, negative=True, swap=False, rows=1, **changed):
    pipe.set_progress_bar_config(disable=True)
    embeds = torch.randn(2, rows, 6, 8, generator=torch.Generator().manual_seed(5))
    mask = torch.ones(rows, 6, dtype=torch.long)
    options = {"prompt_embeds": embeds[1 if swap else 0], "prompt_embeds_mask": mask, "true_cfg_scale": 4.0}
    if negative:
        options |= {"negative_prompt_embeds": embeds[1], "negative_prompt_embeds_mask": mask}
    picture = Image.fromarray((sources(1)[0] * 255).byte().permute(1, 2, 0).numpy())
    options |= {"image": picture, "height": 32, "width": 32}
    return pipe(
        num_inference_steps=3,
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
        **options | changed,
    )[0]


@pytest.fixture
def small_qwen(monkeypatch):
    """Qwen-Image-Edit works at a fixed area of 1024²; here at 32 × 64, in sides of 32 pixels:
    32 × 32 for a square.
    """
    dimensions = pipeline_qwenimage_edit.calculate_dimensions
    monkeypatch.setattr(
        pipeline_qwenimage_edit, "calculate_dimensions", lambda area, ratio: dimensions(32 * 64, ratio)
    )


@pytest.mark.parametrize(("make", "call"), [(tiny_kontext, ask_kontext), (tiny_qwen, ask_qwen)])
def test_pipelines_with_one_call_a_branch(make, call, small_qwen):
    pipe = make()
    stock = call(pipe)
    negative = call(pipe, swap=True)
    with mask_guidance(pipe, torch.ones(1, 1, 32, 32)):
        assert torch.equal(call(pipe), stock)
    with mask_guidance(pipe, torch.zeros(1, 1, 32, 32)):
        assert torch.equal(call(pipe), negative)
    with mask_guidance(pipe, half()):
        guided = call(pipe)
    assert (guided - stock)[..., :8].abs().mean() < (guided - stock)[..., 24:].abs().mean()
    assert (guided - negative)[..., 24:].abs().mean() < (stock - negative)[..., 24:].abs().mean()
    parts = []
    for between in ((0, 0.5), (0.5, 1)):
        with mask_guidance(pipe, torch.zeros(1, 1, 32, 32), between=between):
            parts.append(call(pipe))
    for part in parts:
        assert not torch.equal(part, stock)
        assert not torch.equal(part, negative)
    assert not torch.equal(*parts)
    with pytest.raises(ValueError, match="negative_prompt"), mask_guidance(pipe, half()):
        call(pipe, negative=False)
    assert not pipe.transformer._forward_hooks
    assert torch.equal(call(pipe), stock)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (editors.tiny_kontext, {}, "two_round_edit(editor, source, instruction, true_cfg_scale=2.0, negat"),
        (editors.tiny_kontext, {"true_cfg_scale": 2.0}, "a negative_prompt"),
        (editors.tiny_klein, {"guidance_scale": 1.0}, "guidance_scale above 1"),
        (editors.tiny_distilled_klein, {}, "FLUX.2-klein-base"),
        (editors.tiny_qwen, {"true_cfg_scale": 1.0}, "true_cfg_scale above 1"),
        (tiny_pipeline, {"guidance_scale": 1.0}, "guidance_scale above 1 and image_guidance_scale of"),
    ],
)
def test_two_rounds_are_refused_before_the_first(make, options, message):
    pipe = make()
    denoiser = pipe.unet if hasattr(pipe, "unet") else pipe.transformer
    denoiser.register_forward_pre_hook(lambda *_: pytest.fail("an edit was made"))
    with pytest.raises(ValueError, match=re.escape(message)):
        two_round_edit(pipe, torch.rand(1, 3, 64, 64), ["make it red"], **options)


def test_a_mask_of_other_proportions_is_refused_by_tokens():
    pipe = tiny_kontext()
    with (
        pytest.raises(ValueError, match="mask: expected the proportions of the latents, 8×8; got 32×64"),
        mask_guidance(pipe, torch.ones(1, 1, 32, 64)),
    ):
        ask_kontext(pipe)


def test_a_mask_of_the_source_fits_where_qwen_rounds_its_sides(monkeypatch):
    """For 228 × 200 pixels it chooses 9 × 7 times 32: 18 × 14 tokens, of 4 pixels here."""
    dimensions = pipeline_qwenimage_edit.calculate_dimensions

    def small(area: int, ratio: float) -> tuple[int, int, None]:
        width, height, _ = dimensions(256 * 256, ratio)
        return width // 4, height // 4, None

    monkeypatch.setattr(pipeline_qwenimage_edit, "calculate_dimensions", small)
    pipe = tiny_qwen()
    source = Image.new("RGB", (228, 200), "red")
    options = {"image": source, "height": None, "width": None}
    with mask_guidance(pipe, torch.zeros(1, 1, 200, 228)):
        guided = ask_qwen(pipe, **options)
    assert guided.shape[-2:] == (56, 72)
    assert torch.equal(guided, ask_qwen(pipe, swap=True, **options))
    with (
        pytest.raises(ValueError, match="mask: expected the proportions of the latents, 14×18; got 200×400"),
        mask_guidance(pipe, torch.zeros(1, 1, 200, 400)),
    ):
        ask_qwen(pipe, **options)


def test_kontext_makes_squares_unless_a_size_is_given():
    pipe = tiny_kontext()
    source = torch.rand(1, 3, 48, 64, generator=torch.Generator().manual_seed(3))
    mask = torch.zeros(1, 1, 48, 64)
    remedy = "got 48×64; .* call the pipeline with height= and width= of the source's proportions"
    with pytest.raises(ValueError, match=remedy), mask_guidance(pipe, mask):
        ask_kontext(pipe, rows=1, image=source, height=None, width=None)
    options = {"rows": 1, "image": source, "height": 48, "width": 64, "max_area": 48 * 64}
    with mask_guidance(pipe, mask):
        guided = ask_kontext(pipe, **options)
    assert torch.equal(guided, ask_kontext(pipe, swap=True, **options))


def test_two_rounds_share_noise_and_encodings():
    pipe = tiny_pipeline()
    pipe.set_progress_bar_config(disable=True)
    calls = {"vae": 0, "text": 0}
    encode = pipe.vae.encode
    read = pipe.text_encoder.forward
    pipe.vae.encode = lambda *a, **k: calls.update(vae=calls["vae"] + 1) or encode(*a, **k)
    pipe.text_encoder.forward = lambda *a, **k: calls.update(text=calls["text"] + 1) or read(*a, **k)
    rounds = two_round_edit(pipe, sources(2), PROMPTS, seed=3, num_inference_steps=3)
    assert calls == {"vae": 1, "text": 2}  # instructions, and the empty text
    assert rounds.first is not None
    assert torch.equal(rounds.mask, change_mask(sources(2), rounds.first))
    whole = two_round_edit(
        pipe, sources(2), PROMPTS, seed=3, mask=lambda s, e: torch.ones(2, 1, 32, 32), num_inference_steps=3
    )
    assert torch.equal(whole.edited, rounds.first)
    own = two_round_edit(
        pipe, sources(2), PROMPTS, seed=3, mask=torch.ones(1, 1, 32, 32), num_inference_steps=3
    )
    assert own.first is None
    assert torch.equal(own.edited, rounds.first)


def test_a_mask_that_was_found_grows_by_one_place_of_the_latents():
    pipe = tiny_pipeline()
    pipe.set_progress_bar_config(disable=True)
    found = two_round_edit(pipe, sources(), PROMPTS, mask=lambda s, e: half(), num_inference_steps=2)
    grown = torch.zeros(1, 1, 32, 32)
    grown[..., : 16 + pipe.vae_scale_factor] = 1
    for mask, is_same in ((grown, True), (half(), False)):
        own = two_round_edit(pipe, sources(), PROMPTS, mask=mask, num_inference_steps=2)
        assert torch.equal(own.edited, found.edited) == is_same


@pytest.mark.parametrize("cosxl", [False, True])
def test_two_rounds_on_sdxl_with_reused_encodings(cosxl):
    pipe = tiny_xl()
    pipe.is_cosxl_edit = cosxl  # whose source latents are scaled
    assert pipe.vae.config.scaling_factor != 1
    pipe.set_progress_bar_config(disable=True)
    assert pipe.default_sample_size * pipe.vae_scale_factor != 32
    rounds = two_round_edit(pipe, sources(2), PROMPTS, num_inference_steps=2)
    stock = pipe(
        PROMPTS,
        image=sources(2),
        height=32,
        width=32,
        num_inference_steps=2,  # and the pipeline's own guidance scales
        output_type="pt",
        generator=[torch.Generator().manual_seed(s) for s in (0, 1)],
    )[0]
    assert (rounds.first - stock).abs().max() < 1e-3


@pytest.mark.parametrize(("make", "call"), [(tiny_kontext, ask_kontext), (tiny_qwen, ask_qwen)])
def test_a_failed_call_leaves_nothing_for_the_next(make, call, small_qwen):
    pipe = make()
    stock = call(pipe)
    calls = []

    def out_of_memory(*_):
        calls.append(1)
        if len(calls) == 2:  # the negative prompt's, after the positive one's prediction was put aside
            raise torch.cuda.OutOfMemoryError

    with mask_guidance(pipe, torch.ones(1, 1, 32, 32)):
        handle = pipe.transformer.register_forward_pre_hook(out_of_memory)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            call(pipe)
        handle.remove()
        assert torch.equal(call(pipe), stock)
