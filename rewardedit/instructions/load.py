"""Parsers of instructions by name."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rewardedit import devices
from rewardedit.instructions.grammar.grammar import parse_all
from rewardedit.instructions.llm import LlmParser, load_chat_model
from rewardedit.instructions.parsed import Parser
from rewardedit.language.endpoint import Endpoint
from rewardedit.language.endpoint_settings import ADDRESS

# Options that go to a model of each kind.
LOCAL_OPTIONS = ("max_new_tokens", "prompts")
ENDPOINT_OPTIONS = (*LOCAL_OPTIONS, "key_variable", "timeout", "retries", "longest_wait")


def load_parser(
    name: str = "grammar", cache: str | None = None, options: Mapping[str, Any] | None = None
) -> Parser:
    """Loads a parser by name.

    Args:
        name: "grammar", the rules, which need no model; "URL#MODEL", a model behind an OpenAI-compatible
            endpoint, e.g. "http://localhost:8000/v1#gemma"; else the hub name or folder of a causal LM, such
            as BPM's "princeton-nlp/gemma-2-9b-it-SimPO", or "NAME#FILE" with a GGUF file in it. It runs on
            the default device, in bfloat16 on a GPU.
        cache: a JSONL file that keeps the instructions that a model parsed.
        options: of a model: max_new_tokens of an answer, prompts ("ours", or "paper", as BPM has them); and
            of `Endpoint`: key_variable, timeout, retries, longest_wait.

    Raises:
        ValueError: if there is no such model, an endpoint without the name of a model, or an option that
            does not fit.
    """
    given = dict(options or {})
    is_endpoint = bool(ADDRESS.match(name))
    allowed = () if name == "grammar" else ENDPOINT_OPTIONS if is_endpoint else LOCAL_OPTIONS
    for option in given:
        if option not in allowed:
            raise ValueError(f"parser_options: expected {', '.join(allowed) or 'none'}; got {option}")

    if name == "grammar":
        return parse_all
    kept = None if cache is None else Path(cache)
    prompts = str(given.pop("prompts", "ours"))
    if is_endpoint:
        url, _, model = name.partition("#")
        max_tokens = given.pop("max_new_tokens", 300)
        endpoint = Endpoint(
            url, model, **given
        )  # refuses an address with a key, before an error may quote it
        if not model:
            raise ValueError(f"parser {name!r}: expected URL#MODEL, an endpoint and the name of its model")
        return LlmParser(partial(endpoint.answer, max_tokens=max_tokens), name, kept, prompts=prompts)

    model, _, gguf_file = name.partition("#")
    answer = load_chat_model(
        model,
        gguf_file=gguf_file or None,
        device=devices.default_device(),
        dtype=devices.llm_dtype(),
        **given,
    )
    return LlmParser(answer, name, kept, prompts=prompts)
