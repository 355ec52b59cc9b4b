"""What tells one loaded vision-language model from another."""

import hashlib
import json
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rewardedit.language.vlm import Vlm

ELSEWHERE = ("_name_or_path", "transformers_version")  # of a configuration: not what the model is


def tokenizer_rules(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """How a tokenizer makes tokens of a text, all but padding, which changes from call to call."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # one that is written in Python
        return {"vocab": tokenizer.get_vocab()}
    rules = json.loads(backend.to_str())
    return {key: value for key, value in rules.items() if key not in ("padding", "truncation")}


def model_hash(vlm: Vlm) -> str:
    """SHA-256 of what a model is: its configuration, image processing, tokenizer, way to decode and chat
    template, and of all parameters and saved buffers the names, shapes, types and all bytes.

    Models that differ in any of these, be it a bit of one weight, have different hashes. Where a model was
    loaded from does not count, nor the device; an adapter that was merged does. It takes about a second for
    each GB of weights, which come to main memory one by one.
    """
    model = vlm.model
    config = {key: v for key, v in model.config.to_dict().items() if key not in ELSEWHERE}
    decoding = {key: v for key, v in model.generation_config.to_dict().items() if key not in ELSEWHERE}
    # That of images is part of it.
    processor = {key: v for key, v in vlm.processor.to_dict().items() if key not in ELSEWHERE}
    template = vlm.processor.chat_template or vlm.processor.tokenizer.chat_template
    known = [config, decoding, processor, template, tokenizer_rules(vlm.processor.tokenizer)]
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        values = weight.detach().cpu().contiguous().flatten()
        digest.update(memoryview(values.view(torch.uint8).numpy()))
    return digest.hexdigest()
