"""Modern editors on their stock pipelines at tiny size: rollouts are the pipelines' to the bit, guidance follows a
mask or is refused, and only the target is noised.
"""

from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from rewardedit.diffusion.families import Conditioning, family_of
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


@pytest.fixture(params=EDITORS)
def pipe(request, made):
    if request.param not in made:
        made[request.param] = EDITORS[request.param]()
    return made[request.param]


def image(b: int = 1) -> torch.Tensor:
    pixels = torch.randint(256, (b, 3, 64, 64), generator=torch.Generator().manual_seed(3))
    return pixels.float() / 255


def conditioning(pipe: Any, prompts: list[str] = [PROMPT]) -> Conditioning:
    family = family_of(pipe)
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


@pytest.mark.parametrize("guidance", [None, 3.0])
def test_rollouts_are_the_stock_pipeline_to_the_bit(pipe, guidance):
    family = family_of(pipe)
    if guidance and pipe.config.get("is_distilled"):
        with pytest.raises(ValueError, match=r"guidance_scale: FLUX.2 klein \(distilled\) .*klein-base"):
            family.require_guidance(guidance, conditioning(pipe))
        return
    config = RolloutConfig(STEPS, grad_steps=0, guidance_scale=guidance)
    latents = rollout(
        family,
        pipe.transformer,
        FlowMatchEulerDiscreteScheduler.from_config(pipe.scheduler.config),
        noise_like(pipe),
        conditioning(pipe),
        config,
    )
    expected = family.to_latents(stock(pipe, guidance), 64, 64, pipe.vae_scale_factor)
    assert torch.equal(latents, expected)
    assert latents.abs().max() > 0
