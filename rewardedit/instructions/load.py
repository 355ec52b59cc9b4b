"""Parsers of instructions by name."""

from pathlib import Path

from rewardedit import devices
from rewardedit.addresses import ADDRESS
from rewardedit.endpoint import Endpoint
from rewardedit.instructions.grammar import parse_all
from rewardedit.instructions.llm import LlmParser, load_chat_model
from rewardedit.instructions.parsed import Parser


def load_parser(name: str = "grammar", cache: str | None = None) -> Parser:
    """A parser by name.

    Args:
        name: "grammar", the rules, which need no model; "URL#MODEL", a model behind an OpenAI-compatible
            endpoint, e.g. "http://localhost:8000/v1#gemma"; else the hub name or folder of a causal LM, such
            as BPM's "princeton-nlp/gemma-2-9b-it-SimPO", or "NAME#FILE" with a GGUF file in it. It runs where
            all models do, in bfloat16 on a GPU.
        cache: a JSONL file that keeps what a model answered.

    Raises:
        ValueError: where there is no such model, or an endpoint without the name of a model.
    """
    if name == "grammar":
        return parse_all
    kept = None if cache is None else Path(cache)
    if ADDRESS.match(name):
        url, _, model = name.partition("#")
        endpoint = Endpoint(url, model)  # which refuses an address with a key, before an error may quote it
        if not model:
            raise ValueError(f"parser {name!r}: expected URL#MODEL, an endpoint and the name of its model")
        return LlmParser(endpoint.answer, name, kept)
    model, _, gguf_file = name.partition("#")
    answer = load_chat_model(
        model,
        gguf_file=gguf_file or None,
        device=devices.default_device(),
        dtype=devices.language_dtype(),
    )
    return LlmParser(answer, name, kept)
