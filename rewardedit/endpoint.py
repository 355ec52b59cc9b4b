"""Chat models behind an OpenAI-compatible endpoint: a hosted API, vLLM, llama.cpp's server, Ollama."""

import json
import os
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]  # {"role": "user", "content": "…"}, or with a list of texts and images as content


class EndpointError(RuntimeError):
    """An endpoint gave no answer."""


@dataclass(frozen=True)
class Endpoint:
    """A chat model and how it is asked."""

    url: str  # such as http://localhost:8000/v1
    model: str  # its name there
    key_variable: str = "OPENAI_API_KEY"  # the environment variable that holds the key; it may be unset
    timeout: float = 120.0  # seconds for an answer
    retries: int = 4  # where the endpoint is busy or fails
    pause: float = 1.0  # seconds before the first of them; each waits twice as long as the one before
    at_once: int = 8  # chats that are under way together

    def answer(self, chats: Sequence[Sequence[Message]], max_tokens: int = 300) -> list[str]:
        """The model's answers to chats, at temperature 0, in their order.

        Raises:
            EndpointError: where one gets no answer after all retries.
        """
        if not chats:
            return []
        with ThreadPoolExecutor(min(self.at_once, len(chats))) as pool:
            return list(pool.map(lambda chat: self._answer(chat, max_tokens), chats))

    def _answer(self, chat: Sequence[Message], max_tokens: int) -> str:
        body = {"model": self.model, "messages": list(chat), "max_tokens": max_tokens, "temperature": 0.0}
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions",
            json.dumps(body).encode(),
            {
                "Content-Type": "application/json",
                "Authorization": f"Bearer {os.environ.get(self.key_variable) or 'none'}",
            },
        )
        for attempt in range(self.retries + 1):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    return json.load(response)["choices"][0]["message"]["content"] or ""
            except (OSError, KeyError, ValueError) as error:  # an HTTPError is an OSError
                status = getattr(error, "code", None)
                # What the endpoint refuses it will refuse again, but for "too many requests".
                if attempt == self.retries or (status is not None and status < 500 and status != 429):
                    raise EndpointError(f"{self.url}, model {self.model!r}: {error}") from error
                time.sleep(self.pause * 2**attempt)
        raise AssertionError("the loop returns or raises")
