"""Hash that identifies a loaded vision-language model."""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rewardedit.language.vlm import Vlm

ELSEWHERE = ("_name_or_path", "transformers_version")  # configuration entries that do not define a model


def tokenizer_rules(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Rules by which a tokenizer splits texts, except padding and truncation, which change between calls."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a tokenizer written in Python
        return {"vocab": tokenizer.get_vocab()}
    rules = json.loads(backend.to_str())
    return _without(("padding", "truncation"), rules)


def _without(left_out: Collection[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in left_out}


def model_hash(vlm: Vlm) -> str:
    """SHA-256 of a model's configuration, image processing, tokenizer, generation config and chat template,
    and of the names, shapes, types and all bytes of its parameters and saved buffers.

    Models that differ in any of these, even in one bit of one weight, have different hashes. The place that a
    model was loaded from does not count, nor does the device; a merged adapter does. It takes about a second
    per GB of weights, which are copied to main memory one by one.
    """
    model = vlm.model
    config = _without(ELSEWHERE, model.config.to_dict())
    decoding = _without(ELSEWHERE, model.generation_config.to_dict())
    # The image processor's settings are part of it.
    processor = _without(ELSEWHERE, vlm.processor.to_dict())
    template = vlm.processor.chat_template or vlm.processor.tokenizer.chat_template
    known = [config, decoding, processor, template, tokenizer_rules(vlm.processor.tokenizer)]
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        values = weight.detach().cpu().contiguous().flatten()
        digest.update(memoryview(values.view(torch.uint8).numpy()))
    return digest.hexdigest()
