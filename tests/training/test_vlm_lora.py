"""LoRAs of vision-language models: gradients of the frozen tower under gradient checkpointing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from rewardedit.language.vlm import Vlm, load_vlm
from rewardedit.training.vlm_lora import compute_features_without_gradient, linear_layers
from tests.models import VLMS, save_vlm


def adapted(folder: str, layers: Any = None) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model under a LoRA, as TRL sets it up for gradient checkpointing, and inputs of it."""
    vlm = load_vlm(folder)
    torch.manual_seed(0)
    targets = layers or linear_layers(vlm.model)
    lora = LoraConfig(r=2, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM")
    model = get_peft_model(vlm.model, lora)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model, inputs_of(vlm)


def inputs_of(vlm: Vlm) -> dict[str, torch.Tensor]:
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "recolour it"}]}]
    return vlm.inputs([vlm.prompt(chat)], torch.rand(1, 1, 3, 64, 64))


def gradients(model: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights' gradients in a step."""
    model.train()
    model.enable_input_require_grads()
    model(**inputs).logits.square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}


def features_with_gradient(model: Any, inputs: dict[str, torch.Tensor]) -> list[bool]:
    """True for each pass through the language model whose images carry a gradient."""
    inner = model.get_base_model().model
    own = inner.get_image_features
    found = []

    def watched(*args: Any, **options: Any) -> Any:
        features = own(*args, **options)
        parts = features.pooler_output
        found.extend(part.requires_grad for part in ([parts] if torch.is_tensor(parts) else parts))
        return features

    inner.get_image_features = watched
    model(**inputs)
    inner.get_image_features = own
    return found


@pytest.mark.parametrize("kind", VLMS)
def test_a_frozen_tower_gets_no_gradient(kind, tmp_path: Path):
    save_vlm(str(tmp_path), kind)
    model, inputs = adapted(str(tmp_path))
    before = gradients(model, inputs)
    assert any(features_with_gradient(model, inputs)), "as TRL and transformers leave it"

    model, _ = adapted(str(tmp_path))
    compute_features_without_gradient(model.get_base_model())
    after = gradients(model, inputs)
    assert not any(features_with_gradient(model, inputs))
    assert after.keys() == before.keys()
    assert all(bool(gradient.any()) for gradient in before.values())
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_a_lora_on_the_tower_keeps_its_gradient(tmp_path: Path):
    save_vlm(str(tmp_path), "idefics3")
    model, inputs = adapted(str(tmp_path), ["q_proj"])
    compute_features_without_gradient(model.get_base_model())
    found = gradients(model, inputs)
    assert any("vision" in name for name in found)
    assert all(features_with_gradient(model, inputs))
