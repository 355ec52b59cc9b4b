"""A LoRA on the language model of a vision-language model."""

from typing import Any, Literal

import torch
from torch import nn

Embeddings = Literal["all", "token"]  # embeddings that are trained besides the LoRA


def wrap_lora(model: Any, token: int, rank: int, embeddings: Embeddings) -> Any:
    """Wraps the model by PEFT, with a LoRA on the queries and values of the language model only: vision
    towers use the same names. It modifies the model's own modules, which can be called as before.

    Args:
        token: id of the token whose embeddings are trained, alone or with all others.
    """
    from peft import LoraConfig, get_peft_model

    more: dict[str, Any] = {"modules_to_save": ["embed_tokens", "lm_head"]}
    if embeddings == "token":
        more = {"trainable_token_indices": {"embed_tokens": [token], "lm_head": [token]}}
    lora = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.05, target_modules=language_layers(model), **more
    )
    return get_peft_model(model, lora)


def linear_layers(model: Any) -> list[str]:
    """Names of all linear layers in the language model of a vision-language model."""
    return [name for name, module in _decoder_modules(model).items() if isinstance(module, nn.Linear)]


def language_layers(model: Any) -> list[str]:
    """Names of the layers that compute queries and values in the language model of a vision-language
    model.
    """
    return [name for name in _decoder_modules(model) if name.endswith(("q_proj", "v_proj"))]


def _decoder_modules(model: Any) -> dict[str, nn.Module]:
    """Modules of the language model, by their names in the whole model."""
    inner = set(map(id, model.model.get_decoder().modules()))
    modules = {}
    for name, module in model.named_modules():
        if id(module) in inner:
            modules[name] = module
    return modules


def compute_features_without_gradient(model: Any) -> None:
    """Makes a model encode images without a gradient, unless weights that encode them are trained.

    With gradient checkpointing, TRL and transformers let all input embeddings require a gradient, those of
    the vision tower too: each step would keep the activations of a frozen tower and go back through it.
    """
    inner = model.model
    language = {id(parameter) for parameter in inner.get_decoder().parameters()}
    encoding = [parameter for parameter in inner.parameters() if id(parameter) not in language]
    if not any(parameter.requires_grad for parameter in encoding):
        inner.get_image_features = torch.no_grad()(inner.get_image_features)
