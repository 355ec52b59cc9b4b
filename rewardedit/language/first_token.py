"""Probabilities of an answer's first token, from the logprobs of a chat completion."""

import math
from collections.abc import Mapping
from typing import Any

from rewardedit.language.answers import AnswerError, Completion
from rewardedit.untrusted import CONTENT_ERRORS

TOP = 20  # most candidates of a token that endpoints return
FIRST_TOKENS = 3  # tokens that are asked for: some models write a blank before a digit
BLANKS = " \t\r\n\u00a0\u2581\u0120\u010a"  # also as tokenizers write blanks in tokens

FirstToken = dict[str, float]  # probabilities by the token's text without blanks


class NoLogprobs(AnswerError):
    """The endpoint answered without logprobs."""


def read_first_token(content: bytes, max_new_tokens: int) -> tuple[FirstToken | AnswerError, int, int]:
    """Probabilities of the candidates for the first token that is not blank, or why there are none, and the
    numbers of prompt and answer tokens.

    Tokens that differ by blanks alone, such as "7" and " 7", count together.

    Raises:
        ValueError: if it is no chat completion, or its logprobs are not those of one.
    """
    completion = Completion.parse(content)
    if completion.refused is not None:
        return completion.refused, *completion.tokens
    logprobs = completion.choice.get("logprobs")
    positions = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not positions:
        return NoLogprobs("the endpoint returned no logprobs"), *completion.tokens

    try:
        for position in positions[:FIRST_TOKENS]:
            if position["token"].strip(BLANKS):
                return _probabilities(position), *completion.tokens
    except CONTENT_ERRORS as error:
        raise ValueError(f"expected logprobs of a chat completion; got {positions!r}") from error
    error = AnswerError(f"the answer begins with {len(positions)} blank tokens", completion.text)
    return error, *completion.tokens


def _probabilities(position: Mapping[str, Any]) -> FirstToken:
    """The probabilities of a position's candidates, which hold the chosen token or not."""
    by_token: dict[str, float] = {}
    for candidate in [position, *(position.get("top_logprobs") or [])]:
        logprob = float(candidate["logprob"])
        if not logprob <= 1e-3:
            raise ValueError(f"logprob: expected at most 0; got {logprob}")
        by_token[candidate["token"]] = math.exp(min(logprob, 0.0))

    by_text: FirstToken = {}
    for token, probability in by_token.items():
        text = token.strip(BLANKS)
        by_text[text] = by_text.get(text, 0.0) + probability
    return by_text
