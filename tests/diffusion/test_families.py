"""Modern editors on their stock pipelines at tiny size: rollouts are the pipelines' to the bit, guidance
follows a mask or is refused, and only the target is noised.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import FluxKontextPipeline
from peft import LoraConfig

from rewardedit import EditBatch, SamplingConfig, best_of_n, load_scorer, mask_guidance, two_round_edit
from rewardedit.diffusion.editors import as_editor
from rewardedit.diffusion.families import Conditioning, family_of
from rewardedit.diffusion.reward_guidance import reward_guidance
from rewardedit.diffusion.rollout import RolloutConfig, rollout
from rewardedit.images import to_pil
from tests.editors import (
    small_qwen_area,
    tiny_distilled_klein,
    tiny_klein,
    tiny_kontext,
    tiny_qwen,
    tiny_qwen_plus,
)

EDITORS = {
    "kontext": tiny_kontext,
    "klein": tiny_klein,
    "distilled": tiny_distilled_klein,
    "qwen": tiny_qwen,
    "plus": tiny_qwen_plus,
}
PROMPT = "make the circle red"
STEPS = 3


@pytest.fixture(autouse=True)
def small_area(monkeypatch):
    small_qwen_area(monkeypatch)


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return {}


REPEATS = ("distilled", "plus")  # of an architecture that is tested already


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.slow) if name in REPEATS else name for name in EDITORS]
)
def pipe(request, made):
    if request.param not in made:
        made[request.param] = EDITORS[request.param]()
    return made[request.param]


def image(b: int = 1) -> torch.Tensor:
    pixels = torch.randint(256, (b, 3, 64, 64), generator=torch.Generator().manual_seed(3))
    return pixels.float() / 255


def conditioning(pipe: Any, prompts: Sequence[str] = (PROMPT,)) -> Conditioning:
    family = family_of(pipe)
    prompts = list(prompts)
    source = image(len(prompts))
    texts = family.encode_texts(pipe, prompts, source)
    empty = family.encode_texts(pipe, [" " if family.text_sees_source else ""] * len(prompts), source)
    null = {f"null_{name}": value for name, value in empty.items()}
    return Conditioning(source=family.encode_sources(pipe, source), **texts, **null)


def noise_like(pipe: Any, b: int = 1) -> torch.Tensor:
    shape = family_of(pipe).encode_images(pipe, image()).shape[1:]
    return torch.randn(b, *shape, generator=torch.Generator().manual_seed(0))


def stock(pipe: Any, guidance: float | None, **options: Any) -> torch.Tensor:
    """Latents of the stock pipeline's own call, as its scheduler steps them."""
    kind = type(pipe).__name__
    found = []
    how = {"FluxKontextPipeline": {"max_area": 64 * 64, "_auto_resize": False}}.get(kind, {})
    if guidance is not None:
        name = "true_cfg_scale" if "Qwen" in kind else "guidance_scale"
        how[name] = guidance
    if "Qwen" in kind:
        how["negative_prompt"] = " "
        how.setdefault("true_cfg_scale", 1.0)
    how.setdefault("guidance_scale", None if "Qwen" in kind else 1.0)
    pipe(
        image=image() if kind == "FluxKontextPipeline" else to_pil(image()[0]),
        prompt=PROMPT,
        height=64,
        width=64,
        num_inference_steps=STEPS,
        generator=torch.Generator().manual_seed(0),
        output_type="latent",
        callback_on_step_end=lambda pipe, i, t, values: found.append(values["latents"]) or {},
        **{**how, **options},
    )
    assert len(found) == STEPS
    return found[-1]


def rolled(pipe: Any, cond: Conditioning, noise: torch.Tensor, config: RolloutConfig) -> torch.Tensor:
    return rollout(family_of(pipe), pipe.transformer, pipe.scheduler, noise, cond, config)


def is_distilled(pipe: Any) -> bool:
    return bool(pipe.config.get("is_distilled"))


@pytest.mark.parametrize("guidance", [None, 3.0])
def test_rollouts_are_the_stock_pipeline_to_the_bit(pipe, guidance):
    if guidance and is_distilled(pipe):
        pytest.skip("has no guidance")
    config = RolloutConfig(STEPS, grad_steps=0, guidance_scale=guidance)
    latents = rolled(pipe, conditioning(pipe), noise_like(pipe), config)
    expected = family_of(pipe).to_latents(stock(pipe, guidance), 64, 64, pipe.vae_scale_factor)
    assert torch.equal(latents, expected)
    assert torch.equal(family_of(pipe).from_latents(latents), stock(pipe, guidance))


def test_decoded_rollouts_are_the_stock_images(pipe):
    editor = as_editor(pipe)
    image_of_editor = editor(image(), PROMPT, 0, settings=SamplingConfig(STEPS, 3.0))
    guidance = None if is_distilled(pipe) else 3.0
    config = RolloutConfig(STEPS, grad_steps=0, guidance_scale=guidance)
    with torch.no_grad():
        decoded = editor.family.decode(pipe.vae, rolled(pipe, conditioning(pipe), noise_like(pipe), config))
    assert image_of_editor.shape == (1, 3, 64, 64)
    assert (decoded - image_of_editor).abs().max() < 1e-4


def test_a_checkpointed_decoder_has_the_same_gradient(pipe):
    """To the bit."""
    family = family_of(pipe)
    found = []
    calls = []
    hook = pipe.vae.decoder.up_blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    for enabled in (False, True):
        family.checkpoint_decoder(pipe.vae, enabled)
        latents = noise_like(pipe).requires_grad_()
        decoded = family.decode(pipe.vae, latents)
        decoded.sum().backward()
        found.append((decoded.detach(), latents.grad))
    family.checkpoint_decoder(pipe.vae, False)
    hook.remove()
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert len(calls) == 3, "the second time it is computed again"


def test_a_decoder_has_a_gradient_where_pixels_saturate(pipe):
    family = family_of(pipe)
    weight = pipe.vae.decoder.conv_out.weight
    plain = weight.detach().clone()
    weight.data.mul_(1e4)
    latents = noise_like(pipe).requires_grad_()
    decoded = family.decode(pipe.vae, latents)
    outside = (decoded == 0) | (decoded == 1)
    decoded.masked_fill(~outside, 0.0).sum().backward()
    weight.data.copy_(plain)
    assert outside.any()
    assert latents.grad is not None
    assert latents.grad.abs().sum() > 0


def test_rows_of_a_batch_are_those_alone(pipe):
    editor = as_editor(pipe)
    prompts = [PROMPT, "remove the star and the blue square"]
    settings = SamplingConfig(2, 3.0)
    both = editor(image(2), prompts, [4, 5], settings=settings)
    for row in range(2):
        alone = editor(image(2)[row], prompts[row], [4 + row], settings=settings)
        assert (both[row] - alone[0]).abs().max() < 1e-4
    config = RolloutConfig(2, grad_steps=0)
    cond = conditioning(pipe, prompts)
    noise = torch.cat([noise_like(pipe), -noise_like(pipe)])
    latents = rolled(pipe, cond, noise, config)
    for row in range(2):
        rows = slice(row, row + 1)
        torch.testing.assert_close(
            latents[rows], rolled(pipe, cond.take(rows), noise[rows], config), rtol=1e-3, atol=1e-4
        )


def test_a_mask_of_ones_is_the_stock_pipeline_to_the_bit(pipe):
    ones = torch.ones(1, 1, 64, 64)
    if is_distilled(pipe):
        with (
            pytest.raises(ValueError, match=r"take FLUX\.2-klein-base, or choose"),
            mask_guidance(pipe, ones),
        ):
            pass
        return
    kontext = {"true_cfg_scale": 4.0, "negative_prompt": "blue square"}
    options = kontext if isinstance(pipe, FluxKontextPipeline) else {}
    plain = stock(pipe, 3.0, **options)
    with mask_guidance(pipe, ones):
        assert torch.equal(stock(pipe, 3.0, **options), plain)
    with mask_guidance(pipe, torch.zeros(1, 1, 64, 64)):
        assert not torch.equal(stock(pipe, 3.0, **options), plain)
    with (
        pytest.raises(ValueError, match="needs classifier-free guidance: call"),
        mask_guidance(pipe, ones),
    ):
        stock(pipe, None)


def test_masks_in_rollouts_are_those_of_mask_guidance(pipe):
    half = torch.zeros(1, 1, 64, 64)
    half[..., :32] = 1
    noise = noise_like(pipe)
    config = RolloutConfig(STEPS, grad_steps=0, guidance_scale=None if is_distilled(pipe) else 3.0)
    cond = conditioning(pipe)
    ones = replace(cond, mask=torch.ones(1, 1, *noise.shape[-2:]))
    if is_distilled(pipe) or isinstance(pipe, FluxKontextPipeline):
        with pytest.raises(ValueError, match=r"mask: .* leave the mask out"):
            rolled(pipe, ones, noise, config)
        return
    assert torch.equal(rolled(pipe, ones, noise, config), rolled(pipe, cond, noise, config))
    masked = replace(cond, mask=torch.nn.functional.interpolate(half, noise.shape[-2:], mode="area"))
    with mask_guidance(pipe, half):
        expected = family_of(pipe).to_latents(stock(pipe, 3.0), 64, 64, pipe.vae_scale_factor)
    assert torch.equal(rolled(pipe, masked, noise, config), expected)


def test_guidance_of_a_distilled_model_is_refused(made):
    pipe = made.setdefault("distilled", tiny_distilled_klein())
    with pytest.raises(ValueError, match=r"guidance_scale: FLUX.2 klein \(distilled\) .*klein-base"):
        rolled(pipe, conditioning(pipe), noise_like(pipe), RolloutConfig(STEPS, guidance_scale=2.0))
    with pytest.raises(ValueError, match=r"mask guidance: FLUX.2 klein .*, or choose the best of N by"):
        family_of(pipe).mask_hook(pipe, torch.ones(1, 1, 64, 64), (0.0, 1.0))


def test_only_the_target_is_noised_and_predicted(pipe):
    """Tokens of the source reach the denoiser as they were encoded, at every step."""
    family = family_of(pipe)
    cond = conditioning(pipe)
    sources = []
    n = family.from_latents(noise_like(pipe)).shape[1]

    def look(module, args, kwargs):
        sources.append(kwargs["hidden_states"][:, n:])

    handle = pipe.transformer.register_forward_pre_hook(look, with_kwargs=True)
    scheduler = family.training_scheduler(pipe.scheduler)
    family.loss(pipe.transformer, scheduler, noise_like(pipe), noise_like(pipe), torch.tensor([700]), cond)
    rolled(pipe, cond, noise_like(pipe), RolloutConfig(STEPS, grad_steps=1))
    handle.remove()
    assert len(sources) == 1 + STEPS
    assert all(torch.equal(tokens, family.from_latents(cond.source)) for tokens in sources)


def test_references_first_change_the_order_alone(pipe):
    """As in families whose sequence begins with the references: the target's slice is the last."""
    family = copy.copy(family_of(pipe))
    family.target_first = False
    orders = []

    def call(denoiser, tokens, *_):
        orders.append(tokens)
        return tokens

    family.call = call
    x_t = noise_like(pipe)
    assert torch.equal(family.predict(pipe.transformer, x_t, torch.tensor(500.0), conditioning(pipe)), x_t)
    n = family.from_latents(x_t).shape[1]
    assert torch.equal(orders[0][:, -n:], family.from_latents(x_t))


def test_the_loss_is_flow_matching_by_hand(pipe):
    """σ = (t + 1) / 1000 is .7 at t = 699; the velocity's target is noise − clean latents."""
    family = family_of(pipe)
    cond = conditioning(pipe)
    clean = noise_like(pipe) * 0.5
    noise = noise_like(pipe).flip(-1)
    scheduler = family.training_scheduler(pipe.scheduler)
    loss = family.loss(pipe.transformer, scheduler, clean, noise, torch.tensor([699]), cond)
    x_t = 0.3 * clean + 0.7 * noise
    velocity = family.predict(pipe.transformer, x_t, torch.tensor([700.0]), cond)
    torch.testing.assert_close(loss, (velocity - (noise - clean)).square().mean()[None])
    with pytest.raises(ValueError, match=r"min_snr: .* leave train\.min_snr out"):
        family.loss(pipe.transformer, scheduler, clean, noise, torch.tensor([1]), cond, min_snr=5.0)


def test_without_its_lora_a_model_is_the_base(pipe):
    family = family_of(pipe)
    cond = conditioning(pipe)
    config = RolloutConfig(2)
    plain = rolled(pipe, cond, noise_like(pipe), config)
    transformer = copy.deepcopy(pipe.transformer).requires_grad_(False)
    transformer.add_adapter(
        LoraConfig(r=2, target_modules=list(family.lora_targets), init_lora_weights=False)
    )

    def adapted() -> torch.Tensor:
        return rollout(family, transformer, pipe.scheduler, noise_like(pipe), cond, config)

    latents = adapted()
    assert not torch.equal(latents, plain)
    latents.square().mean().backward()
    for name, weight in transformer.named_parameters():
        assert (weight.grad is not None) == ("lora" in name), name
    transformer.disable_adapters()
    assert torch.equal(adapted(), plain)


def test_the_predicted_clean_latents_are_scored(pipe):
    cond = conditioning(pipe)
    late = RolloutConfig(4, stop=3, scored="pred_x0")
    before = rolled(pipe, cond, noise_like(pipe), RolloutConfig(4, stop=2, grad_steps=0))
    scheduler = family_of(pipe).training_scheduler(pipe.scheduler)
    family_of(pipe).set_timesteps(scheduler, 4, before)
    t = scheduler.timesteps[2]
    with torch.no_grad():
        velocity = family_of(pipe).predict(pipe.transformer, before, t, cond)
    torch.testing.assert_close(
        rolled(pipe, cond, noise_like(pipe), late).detach(), before - scheduler.sigmas[2] * velocity
    )


def test_a_reward_guides_and_a_scale_of_zero_does_not(pipe):
    editor = as_editor(pipe)
    settings = SamplingConfig(STEPS, 3.0)
    scorer = load_scorer("l1")
    encoded = editor.encode(image(), PROMPT)
    plain = editor.sample(encoded, [0], settings=settings).images
    with reward_guidance(pipe, scorer, image(), [PROMPT], scale=0.0):
        assert torch.equal(editor.sample(encoded, [0], settings=settings).images, plain)
    with reward_guidance(pipe, scorer, image(), [PROMPT], scale=0.1):
        guided = editor.sample(encoded, [0], settings=settings).images
    before, after = (scorer(EditBatch(image(), [PROMPT], edited)).score[0] for edited in (plain, guided))
    assert after > before


def test_the_best_of_three(pipe):
    found = best_of_n(pipe, load_scorer("l1"), image(), PROMPT, 3, settings=SamplingConfig(2, 3.0))
    assert found.images.shape == (3, 3, 64, 64)
    assert found.scores.score.argmax() == found.ranking[0]


def test_two_rounds_follow_a_mask_in_each_row(pipe):
    if is_distilled(pipe):
        pytest.skip("has no guidance")
    options: dict[str, Any] = {"settings": SamplingConfig(2, 3.0)}
    if isinstance(pipe, FluxKontextPipeline):
        options |= {"true_cfg_scale": 4.0, "negative_prompt": [" ", " "]}
    masks = torch.stack([torch.ones(1, 64, 64), torch.zeros(1, 64, 64)])
    rounds = two_round_edit(pipe, image(2), [PROMPT] * 2, mask=lambda *_: masks, **options)
    assert rounds.first is not None
    assert torch.equal(rounds.edited[0], rounds.first[0])
    assert not torch.equal(rounds.edited[1], rounds.first[1])


def test_an_edit_has_the_size_that_is_asked_for(pipe):
    edited = as_editor(pipe)(image(1), [PROMPT], settings=SamplingConfig(1, 1.0), height=96, width=128)
    assert edited.shape[-2:] == (96, 128)


def test_klein_refuses_sources_that_its_pipeline_scales_down(made):
    klein = made.setdefault("klein", tiny_klein())
    with pytest.raises(ValueError, match=r"data\.size: expected at most 1,048,576 pixels.*1040 × 1040"):
        family_of(klein).encode_sources(klein, torch.zeros(1, 3, 1040, 1040))
