"""Greedy decoding that reports which answers were cut off."""

import copy
from typing import Any

import torch
from torch import Tensor

TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def answer_greedily(
    model: Any, inputs: dict[str, Tensor], max_new_tokens: int, repetition_penalty: float = 1.0
) -> tuple[Tensor, list[bool]]:
    """Tokens of the greedily decoded answers (b, n), and for each answer True if it was cut off: it has
    `max_new_tokens` tokens and none of them ends it.

    Ignores the model's generation config except for its special tokens: transformers would take every setting
    that the call does not name from it, such as beam search or a ban on repeated n-grams. The model itself
    is not changed, as other threads may be using it: a copy that shares its weights has the settings.
    """
    from transformers import GenerationConfig

    tokens = {name: getattr(model.generation_config, name) for name in TOKENS}
    greedy = copy.copy(model)
    greedy.generation_config = GenerationConfig(**tokens)
    limits = {"max_new_tokens": max_new_tokens, "repetition_penalty": repetition_penalty}
    made = greedy.generate(**inputs, **limits, do_sample=False)
    answers = made[:, inputs["input_ids"].shape[1] :]
    if answers.shape[1] < max_new_tokens:
        return answers, [False] * len(answers)
    ends = tokens["eos_token_id"]
    ids = torch.tensor([] if ends is None else ends, dtype=torch.long, device=answers.device)
    return answers, (~torch.isin(answers, ids.flatten()).any(1)).tolist()
