"""How language models answer here: greedily."""

from typing import Any

from torch import Tensor

TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def answer_greedily(model: Any, inputs: dict[str, Tensor], max_new_tokens: int) -> Tensor:
    """(b, n) The inputs' tokens and those of the answer, each of which is the likeliest.

    Of a model's own settings of generation none is followed but where an answer ends: transformers takes all
    others that a call does not name from there, such as beams and n-grams that must not come again.
    """
    from transformers import GenerationConfig

    own = model.generation_config
    model.generation_config = GenerationConfig(**{name: getattr(own, name) for name in TOKENS})
    try:
        return model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    finally:
        model.generation_config = own
