"""Chat models behind an OpenAI-compatible endpoint: a hosted API, vLLM, llama.cpp's server, Ollama."""

import http.client
import io
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from rewardedit.addresses import require_address, require_variable

Message = dict[str, Any]  # {"role": "user", "content": "…"}, or with a list of texts and images as content
# What a request may end in. An HTTPError is an OSError; a broken answer is an HTTPException or a ValueError.
FAILURES = (OSError, http.client.HTTPException, ValueError)
LONGEST = 400  # characters of a refusal, or of an answer that is none, that an error quotes
# Statuses that say that every chat will be refused: a wrong key or name of a model, no credit.
REFUSES_ALL = (401, 402, 403, 404)
BUSY = (408, 409, 425, 429)  # statuses of refusals that may pass, as those of failures (500 and more) may
UNREADABLE = 200  # the status of an answer that is none of a chat model's
_COUNTING = threading.Lock()


class _InTime(io.RawIOBase):
    """What a socket receives until a moment, in whatever pieces it comes.

    The socket's own timeout begins anew with each piece, and a server that sends a byte now and then never
    reaches it.
    """

    def __init__(self, sock: socket.socket, file: BinaryIO) -> None:
        """
        Args:
            file: the socket's own, which lets go of it when it is closed.
        """
        self.sock = sock
        self.file = file
        self.seconds = sock.gettimeout() or 0.0
        self.end = time.monotonic() + self.seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.end - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            return self.sock.recv_into(buffer)
        except TimeoutError:
            raise TimeoutError(f"no whole answer within {self.seconds:g} s") from None

    def close(self) -> None:
        self.file.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer whose head and body have to be there within the connection's timeout."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_InTime(sock, self.fp))


class _Connection(http.client.HTTPConnection):
    response_class = _Response


class _SecureConnection(http.client.HTTPSConnection):
    response_class = _Response


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, req)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the key would be sent along, perhaps to another host."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None


OPENER = urllib.request.build_opener(_Http, _Https, _NoRedirect)


class EndpointError(RuntimeError):
    """An endpoint gave no answer; `status` is the HTTP status of what it sent, None where nothing came."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def may_pass(self) -> bool:
        """True where the endpoint was not reached, failed or was busy: it may answer this chat later."""
        return self.status is None or self.status >= 500 or self.status in BUSY

    @property
    def ends_all(self) -> bool:
        """True where other chats need not be asked now: they would have no answer either."""
        return self.may_pass or self.status in REFUSES_ALL


@dataclass
class Usage:
    """What an endpoint was asked for so far: what a bill is made of."""

    calls: int = 0  # requests that were sent, retries among them
    failures: int = 0  # those of them that got no answer
    prompt_tokens: int = 0  # as the endpoint counts them; 0 where it does not
    completion_tokens: int = 0

    def add(self, other: "Usage") -> None:
        """Counts what another has counted too."""
        self.calls += other.calls
        self.failures += other.failures
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens


class _Stop:
    """Tells the chats of one call that another's error ends them all."""

    def __init__(self) -> None:
        self.error: EndpointError | None = None
        self._set = threading.Event()

    def set(self, error: EndpointError) -> None:
        self.error = error
        self._set.set()

    def within(self, seconds: float) -> bool:
        """Waits so long, or until it is set, and says whether it is."""
        return self._set.wait(seconds)


_METERS: list[dict[str, Usage]] = []  # of the blocks that are under way, the innermost last


@contextmanager
def metered() -> Iterator[dict[str, Usage]]:
    """Counts what all endpoints are asked for within the block, by "URL#MODEL".

    Where blocks lie in each other the inner one alone counts, so that nothing is counted twice.
    """
    used: dict[str, Usage] = {}
    _METERS.append(used)
    try:
        yield used
    finally:
        _METERS.pop()


@dataclass(frozen=True)
class Endpoint:
    """A chat model and how it is asked.

    The key comes from the environment and stands in no error, log or `repr`.

    Raises:
        ValueError: where the address is none of HTTP, or holds a user or a query, in which keys are sent;
            where `key_variable` is no variable's name in capitals.
    """

    url: str  # such as http://localhost:8000/v1
    model: str  # its name there
    key_variable: str = "OPENAI_API_KEY"  # the environment variable that holds the key; it may be unset
    timeout: float = 120.0  # seconds for a whole answer; as many before it to connect, and to send the chat
    retries: int = 4  # where the endpoint is busy or fails
    pause: float = 1.0  # seconds before the first of them; each waits twice as long as the one before
    at_once: int = 8  # chats that are under way together
    seed: int | None = None  # sent along where given; servers differ in what they make of it
    usage: Usage = field(default_factory=Usage, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        require_address(self.url)
        require_variable(self.key_variable)

    def answer(self, chats: Sequence[Sequence[Message]], max_tokens: int = 300) -> list[str | EndpointError]:
        """The model's answers to chats, at temperature 0, in their order; the error in the place of each that
        could not be had after all retries. Where one has an error that may pass, those that are not under
        way are not asked any more, and have it too.

        Raises:
            EndpointError: where the endpoint refuses the key, has no credit or does not know the model, as it
                then refuses every chat; where the key is not one that can be sent.
        """
        if not chats:
            return []
        key = self._key()
        stop = _Stop()

        def ask(chat: Sequence[Message]) -> str | EndpointError:
            if stop.error is not None:
                return stop.error
            answer = self._ask(chat, max_tokens, key, stop)
            if isinstance(answer, EndpointError) and answer.ends_all:
                stop.set(answer)
            return answer

        with ThreadPoolExecutor(min(self.at_once, len(chats))) as pool:
            answers = list(pool.map(ask, chats))
        for answer in answers:
            if isinstance(answer, EndpointError) and answer.status in REFUSES_ALL:
                raise answer
        return answers

    def _key(self) -> str:
        key = (os.environ.get(self.key_variable) or "none").strip()
        if not (key.isascii() and key.isprintable() and " " not in key):
            message = f"{self.key_variable}: expected a key of plain characters without spaces"
            raise EndpointError(message, REFUSES_ALL[0])  # as an endpoint would say: no chat is at fault
        return key

    def _ask(self, chat: Sequence[Message], max_tokens: int, key: str, stop: "_Stop") -> str | EndpointError:
        body = {"model": self.model, "messages": list(chat), "max_tokens": max_tokens, "temperature": 0.0}
        if self.seed is not None:
            body["seed"] = self.seed
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
        )
        for attempt in range(self.retries + 1):
            try:
                with OPENER.open(request, timeout=self.timeout) as response:
                    text, prompt_tokens, completion_tokens = read_completion(response.read())
                self._count(Usage(1, 0, prompt_tokens, completion_tokens))
                return text
            except FAILURES as error:
                self._count(Usage(1, 1))
                status = getattr(error, "code", UNREADABLE if isinstance(error, ValueError) else None)
                # What the endpoint refuses it will refuse again, but where it was busy.
                refused = status is not None and 300 <= status < 500 and status not in BUSY
                if attempt == self.retries or refused or stop.within(self.pause * 2**attempt):
                    reason = reason_of(error)
                    if key != "none":  # before it is cut, or a part of the key might stay
                        reason = reason.replace(key, "***")
                    return EndpointError(f"{self.url}, model {self.model!r}: {reason[:LONGEST]}", status)
        raise AssertionError("the loop returns")

    def _count(self, call: Usage) -> None:
        with _COUNTING:
            self.usage.add(call)
            for used in _METERS[-1:]:
                used.setdefault(f"{self.url}#{self.model}", Usage()).add(call)


def reason_of(error: Exception) -> str:
    """What an error says, with the beginning of the answer in which the endpoint says why it refuses."""
    if not isinstance(error, urllib.error.HTTPError):
        return str(error)
    with suppress(OSError, http.client.HTTPException):  # of an answer that breaks off
        return f"{error}: {error.read(10 * LONGEST).decode(errors='replace').strip()}".removesuffix(": ")
    return str(error)


def read_completion(content: bytes) -> tuple[str, int, int]:
    """A chat completion's text ("" where it has none), and its tokens: of the prompt, and of the answer.

    Raises:
        ValueError: where it is no chat completion.
    """
    try:
        completion = json.loads(content)
        text = completion["choices"][0]["message"]["content"] or ""
        usage = completion.get("usage") or {}
        tokens = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
    except (LookupError, TypeError, ValueError, AttributeError):
        text = tokens = None
    if not isinstance(text, str) or tokens is None:
        said = content[: 10 * LONGEST].decode(errors="replace").strip()
        raise ValueError(f"expected a chat completion; got {said or 'nothing'}")
    return text, tokens[0], tokens[1]
