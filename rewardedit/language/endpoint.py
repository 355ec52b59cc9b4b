"""Chat models behind an OpenAI-compatible endpoint: a hosted API, vLLM, llama.cpp's server, Ollama."""

import http.client
import json
import math
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rewardedit.language.answers import Answer, AnswerError, one_line, read_completion
from rewardedit.language.endpoint_http import opener_for, read_whole, seconds_to_wait
from rewardedit.language.endpoint_settings import Destination, destination
from rewardedit.language.first_token import FIRST_TOKENS, TOP, FirstToken, NoLogprobs, read_first_token
from rewardedit.untrusted import CONTENT_ERRORS

Message = dict[str, Any]  # {"role": "user", "content": "…"}, or with a list of texts and images as content
FAILURES = (*CONTENT_ERRORS, http.client.HTTPException)  # errors that a request may raise
LONGEST = 400  # characters of a refusal or an unreadable answer that an error quotes
# Statuses which mean that every chat will be refused: a wrong key or model name, no credit.
REFUSES_ALL = (401, 402, 403, 404)
BUSY = (408, 409, 425, 429)  # statuses of refusals that may be temporary, like failures (500 and above)
UNREADABLE = 200  # the status of a response that is no chat completion
MAX_FIRST_REFUSALS = 8  # after so many chats refused alike and none answered, all are taken to be refused
# Settings that some models refuse, each with the setting to send instead, if any.
REFUSABLE = {"max_tokens": "max_completion_tokens", "temperature": None, "seed": None}
UNSUPPORTED = re.compile(
    r"unsupported|not support|unknown|unrecogni[sz]ed|unexpected|not permitted|not allowed|not accepted"
    r"|deprecated|only the default",
    re.IGNORECASE,
)
# Words of refusals that concern one row's content and say nothing about the next row.
OF_CONTENT = re.compile(
    r"content.?(filter|management|policy)|safety|moderation|responsible.?ai", re.IGNORECASE
)
_LOCK = threading.Lock()


class EndpointError(AnswerError):
    """An endpoint gave no answer; `status` is the HTTP status of its response, None without a response.

    Args:
        said: the endpoint's full message.
        of_all: all other chats would be refused alike.
    """

    def __init__(self, message: str, status: int | None = None, said: str = "", of_all: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.said = said
        self.refuses_all = of_all or status in REFUSES_ALL

    @property
    def may_pass(self) -> bool:
        """True if the endpoint was not reached, failed or was busy: it may answer this chat later."""
        return self.status is None or self.status >= 500 or self.status in BUSY

    @property
    def ends_all(self) -> bool:
        """True if other chats need not be sent now: they would get no answer either."""
        return self.may_pass or self.refuses_all


@dataclass
class Usage:
    """Calls, failures and tokens of an endpoint so far, on which its bill depends."""

    calls: int = 0  # requests that were sent, retries among them
    failures: int = 0  # calls that got no answer
    prompt_tokens: int = 0  # as the endpoint counts them; 0 if it does not
    completion_tokens: int = 0

    def add(self, other: "Usage") -> None:
        """Adds the counts of another."""
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
        """Waits so long, or until it is set; returns True if it is set."""
        return self._set.wait(seconds)


@dataclass
class _Manner:
    """Behaviour of an endpoint observed so far."""

    refused: tuple[str, ...] = ()  # settings of `REFUSABLE` that it does not take
    has_answered: bool = False
    statuses: list[int | None] = field(default_factory=list)  # statuses of refusals before its first answer


@dataclass(frozen=True)
class _Form:
    """Form of the answers that are wanted."""

    max_tokens: int
    read: Callable[[bytes, int], tuple[Any, int, int]]  # a response to an answer and its numbers of tokens
    settings: dict[str, Any] = field(default_factory=dict)  # further settings of the requests


_METERS: list[dict[str, Usage]] = []  # counts of the open `metered` blocks, the innermost last


@contextmanager
def metered() -> Iterator[dict[str, Usage]]:
    """Counts the usage of all endpoints within the block, by "URL#MODEL".

    Of nested blocks only the innermost counts, so that nothing is counted twice.
    """
    used: dict[str, Usage] = {}
    _METERS.append(used)
    try:
        yield used
    finally:
        _METERS.pop()


@dataclass(frozen=True)
class Endpoint:
    """A chat model at an endpoint, and the settings of its requests.

    The key comes from the environment and appears in no error, log or `repr`. It is sent by the rules of
    `rewardedit.language.endpoint_settings`; `destination` names the host beforehand. Redirects are refused.

    Settings that a model refuses (`REFUSABLE`) are left out from then on, and the chat is sent again. If an
    endpoint is busy, retries wait for the time that it requests, up to `longest_wait`.

    Raises:
        ValueError: if the address is not an HTTP one, or holds a user or a query, in which keys may be sent;
            if `key_variable` is no variable's name in capitals or names another service's secret; if its key
            would go over plain http to a host that is not private; if a number is out of range.
    """

    url: str  # such as http://localhost:8000/v1
    model: str  # name of the model at the endpoint
    key_variable: str | None = (
        None  # environment variable of the key; None: OPENAI_API_KEY for OpenAI, or none
    )
    timeout: float = 120.0  # seconds for a whole answer, and as many each to connect and to send the chat
    retries: int = 4  # further attempts if the endpoint is busy or fails
    pause: float = 1.0  # seconds before the first retry; each further one waits twice as long
    at_once: int = 8  # chats that are sent concurrently
    seed: int | None = None  # sent along if given; servers differ in how they use it
    longest_wait: float = 120.0  # most seconds before a retry, whatever the endpoint requests
    usage: Usage = field(default_factory=Usage, init=False, compare=False, repr=False)
    _manner: _Manner = field(default_factory=_Manner, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        destination(self.url, self.key_variable)
        for name, least in (("retries", 0), ("at_once", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}: expected a whole number of at least {least}; got {value}")
        for name in ("timeout", "pause", "longest_wait"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and name == "timeout"):
                raise ValueError(f"{name}: expected a number of seconds; got {value}")

    @property
    def destination(self) -> Destination:
        """The endpoint's host, and the key that is sent there."""
        return destination(self.url, self.key_variable)

    def answer(self, chats: Sequence[Sequence[Message]], max_tokens: int = 300) -> list[Answer]:
        """Returns the model's answers to chats, at temperature 0, in order; an error in place of each answer
        that is missing after all retries, or unusable. After an error that may pass later, chats that are not
        yet sent are skipped and get the same error.

        Raises:
            EndpointError: if the endpoint refuses the key, has no credit or does not know the model; if it
                never answered and has refused all chats, or the first `FIRST` of them, alike, as it then
                refuses every chat; if the key cannot be sent in a header.
        """
        return self._answers(chats, _Form(max_tokens, read_completion))

    def first_tokens(
        self, chats: Sequence[Sequence[Message]], token_ids: Sequence[int] | None = None
    ) -> list[FirstToken | AnswerError]:
        """Returns the probabilities of the candidates for each answer's first token, otherwise as `answer`.

        Args:
            token_ids: the tokens whose probabilities are wanted, on servers that know `logprob_token_ids`
                (vLLM); None, and on other servers: the `TOP` most probable ones.

        Raises:
            EndpointError: as `answer`; if the endpoint returns no logprobs.
        """
        settings: dict[str, Any] = {"logprobs": True, "top_logprobs": TOP}
        if token_ids is not None:
            settings["logprob_token_ids"] = list(token_ids)
        answers = self._answers(chats, _Form(FIRST_TOKENS, read_first_token, settings))
        for answer in answers:
            if isinstance(answer, NoLogprobs):
                raise EndpointError(f"{self.url}, model {self.model!r}: {answer}", UNREADABLE, of_all=True)
        return answers

    def _answers(self, chats: Sequence[Sequence[Message]], form: _Form) -> list[Any]:
        if not chats:
            return []
        key = self._key()
        stop = _Stop()

        def ask(chat: Sequence[Message]) -> Any:
            if stop.error is not None:
                return stop.error
            answer = self._ask(chat, form, key, stop)
            if isinstance(answer, EndpointError) and answer.ends_all:
                stop.set(answer)
            return answer

        with ThreadPoolExecutor(min(self.at_once, len(chats))) as pool:
            answers = list(pool.map(ask, chats))
        for answer in answers:
            if isinstance(answer, EndpointError) and answer.refuses_all:
                raise answer

        refusals = [answer for answer in answers if isinstance(answer, EndpointError) and _is_general(answer)]
        is_first = not self._manner.has_answered and len(refusals) == len(answers) > 1
        if is_first and len({refusal.status for refusal in refusals}) == 1:
            raise _of_all(refusals[0])
        return answers

    def _key(self) -> str | None:
        """Returns the key to send, or None."""
        where = self.destination
        if not where.sends_key:
            return None
        key = os.environ[str(where.key_variable)].strip()
        if not (key.isascii() and key.isprintable() and " " not in key):
            message = f"{where.key_variable}: expected a key of plain characters without spaces"
            raise EndpointError(message, REFUSES_ALL[0])  # as for a refused key: no chat is at fault
        return key

    def _ask(self, chat: Sequence[Message], form: _Form, key: str | None, stop: "_Stop") -> Any:
        opener = opener_for(urllib.parse.urlsplit(self.url).hostname or "")
        attempt = 0
        while True:
            refused = self._manner.refused
            try:
                request = self._request(chat, form, key, refused)
                with opener.open(request, timeout=self.timeout) as response:
                    answer, *tokens = form.read(read_whole(response), form.max_tokens)
                self._count(Usage(1, 0, *tokens))
                self._manner.has_answered = True
                return answer
            except FAILURES as error:
                self._count(Usage(1, 1))
                failure = self._failure(error, key)
                requested_wait = 0.0
                if isinstance(error, urllib.error.HTTPError):
                    requested_wait = seconds_to_wait(dict(error.headers.items()), time.time())
            if failure.status in (400, 422) and self._adapts(failure.said, refused):
                continue
            # A refusal is final, except while the endpoint is busy.
            is_final = not failure.may_pass and failure.status != UNREADABLE
            wait = min(max(self.pause * 2**attempt, requested_wait), self.longest_wait)
            if is_final or attempt == self.retries or stop.within(wait):
                return _of_all(failure) if self._refuses_all(failure) else failure
            attempt += 1

    def _request(
        self, chat: Sequence[Message], form: _Form, key: str | None, refused: Sequence[str]
    ) -> urllib.request.Request:
        settings: dict[str, Any] = {"max_tokens": form.max_tokens, "temperature": 0.0, **form.settings}
        if self.seed is not None:
            settings["seed"] = self.seed
        for name in refused:
            value = settings.pop(name, None)
            if REFUSABLE[name] is not None:
                settings[REFUSABLE[name]] = value
        body = {"model": self.model, "messages": list(chat), **settings}
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        address = f"{self.url.rstrip('/')}/chat/completions"
        return urllib.request.Request(address, json.dumps(body).encode(), headers)

    def _failure(self, error: Exception, key: str | None) -> EndpointError:
        """The error of a request, with the key removed from its message."""
        is_of_network = isinstance(error, OSError | http.client.HTTPException)
        status = getattr(error, "code", None if is_of_network else UNREADABLE)
        reason = reason_of(error)
        if key is not None:  # before the message is cut, or a part of the key might remain
            reason = reason.replace(key, "***")
        message = f"{self.url}, model {self.model!r}: {reason[:LONGEST]}"
        if status in (401, 403) and key is None:
            name = self.destination.key_variable
            remedy = f"set {name}" if name else "name the environment variable that holds it as key_variable"
            message += f"; no key was sent: {remedy}"
        return EndpointError(message, status, reason)

    def _adapts(self, said: str, refused: Sequence[str]) -> bool:
        """True if a refused chat is to be sent again with other settings.

        Args:
            refused: the settings that were left out of the refused request.
        """
        with _LOCK:
            if self._manner.refused != refused:  # another chat has already adapted the settings
                return True
            named = {}
            for name in REFUSABLE:
                match = re.search(rf"\b{name}\b", said)
                if match is not None and name not in refused:
                    named[name] = match.start()
            if self.seed is None:
                named.pop("seed", None)
            if not named or not UNSUPPORTED.search(said):
                return False
            name = min(named, key=named.__getitem__)
            self._manner.refused = (*refused, name)

        if REFUSABLE[name] is None:
            warnings.warn(
                f"endpoint {self.url}, model {self.model!r}, refuses {name} and is asked without it; its "
                "answers may differ from run to run",
                stacklevel=2,
            )
        return True

    def _refuses_all(self, failure: EndpointError) -> bool:
        """True if no chat has been answered and the first ones were all refused alike."""
        if not _is_general(failure) or self._manner.has_answered:
            return False
        with _LOCK:
            self._manner.statuses.append(failure.status)
            return len(self._manner.statuses) >= MAX_FIRST_REFUSALS and len(set(self._manner.statuses)) == 1

    def _count(self, call: Usage) -> None:
        with _LOCK:
            self.usage.add(call)
            for used in _METERS[-1:]:
                used.setdefault(f"{self.url}#{self.model}", Usage()).add(call)


def reason_of(error: Exception) -> str:
    """The message of an error, with the beginning of the endpoint's response, which gives its reason."""
    said = ""
    if isinstance(error, urllib.error.HTTPError):
        with suppress(*FAILURES):  # raised if the response breaks off
            said = error.read(10 * LONGEST).decode(errors="replace")
    return one_line(f"{error}: {said}").removesuffix(":") if said else one_line(str(error))


def _is_general(failure: EndpointError) -> bool:
    """True for a refusal that does not concern the content of one chat."""
    return not failure.may_pass and not OF_CONTENT.search(failure.said)


def _of_all(failure: EndpointError) -> EndpointError:
    """The same error, marked as one with which the endpoint refuses all chats."""
    return EndpointError(f"{failure}; it answers no chat", failure.status, failure.said, of_all=True)
