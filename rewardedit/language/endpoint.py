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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rewardedit.language.answers import Answer, AnswerError, one_line, read_completion
from rewardedit.language.endpoint_http import opener_for, read_whole, seconds_to_wait
from rewardedit.language.endpoint_settings import Destination, destination
from rewardedit.untrusted import CONTENT_ERRORS

Message = dict[str, Any]  # {"role": "user", "content": "…"}, or with a list of texts and images as content
FAILURES = (*CONTENT_ERRORS, http.client.HTTPException)  # what a request may end in
LONGEST = 400  # characters of a refusal, or of an answer that is none, that an error quotes
# Statuses that say that every chat will be refused: a wrong key or name of a model, no credit.
REFUSES_ALL = (401, 402, 403, 404)
BUSY = (408, 409, 425, 429)  # statuses of refusals that may pass, as those of failures (500 and more) may
UNREADABLE = 200  # the status of an answer that is none of a chat model's
FIRST = 8  # chats: where so many are refused alike and none was answered, all would be
# Settings that some models refuse, with the one that is sent in its place, if any.
REFUSABLE = {"max_tokens": "max_completion_tokens", "temperature": None, "seed": None}
UNSUPPORTED = re.compile(
    r"unsupported|not support|unknown|unrecogni[sz]ed|unexpected|not permitted|not allowed|not accepted"
    r"|deprecated|only the default",
    re.IGNORECASE,
)
# In refusals that are about one row's content and say nothing of the next.
OF_CONTENT = re.compile(
    r"content.?(filter|management|policy)|safety|moderation|responsible.?ai", re.IGNORECASE
)
_LOCK = threading.Lock()


class EndpointError(AnswerError):
    """An endpoint gave no answer; `status` is the HTTP status of what it sent, None where nothing came.

    Args:
        said: the endpoint's own words, whole.
        of_all: all other chats would be refused alike.
    """

    def __init__(self, message: str, status: int | None = None, said: str = "", of_all: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.said = said
        self.refuses_all = of_all or status in REFUSES_ALL

    @property
    def may_pass(self) -> bool:
        """True where the endpoint was not reached, failed or was busy: it may answer this chat later."""
        return self.status is None or self.status >= 500 or self.status in BUSY

    @property
    def ends_all(self) -> bool:
        """True where other chats need not be asked now: they would have no answer either."""
        return self.may_pass or self.refuses_all


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


@dataclass
class _Manner:
    """What an endpoint has shown of itself so far."""

    refused: tuple[str, ...] = ()  # settings of `REFUSABLE` that it does not take
    has_answered: bool = False
    statuses: list[int | None] = field(default_factory=list)  # of refusals before its first answer


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

    The key comes from the environment and stands in no error, log or `repr`. It is sent by the rules of
    `rewardedit.language.endpoint_settings`; `destination` tells beforehand where to. No redirect is followed.

    Settings that a model refuses (`REFUSABLE`) are left out from then on, and the chat is sent again. Where
    an endpoint is busy, the time that it asks to wait is waited for, up to `longest_wait`.

    Raises:
        ValueError: where the address is none of HTTP, or holds a user or a query, in which keys are sent;
            where `key_variable` is no variable's name in capitals or names another service's secret; where
            its key would go over plain http to a host that is not private; where a number is out of range.
    """

    url: str  # such as http://localhost:8000/v1
    model: str  # its name there
    key_variable: str | None = (
        None  # environment variable of the key; None: OPENAI_API_KEY for OpenAI, or none
    )
    timeout: float = 120.0  # seconds for a whole answer; as many before it to connect, and to send the chat
    retries: int = 4  # where the endpoint is busy or fails
    pause: float = 1.0  # seconds before the first of them; each waits twice as long as the one before
    at_once: int = 8  # chats that are under way together
    seed: int | None = None  # sent along where given; servers differ in what they make of it
    longest_wait: float = 120.0  # seconds before a retry, at most, whatever the endpoint asks for
    usage: Usage = field(default_factory=Usage, init=False, compare=False, repr=False)
    _manner: _Manner = field(default_factory=_Manner, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        destination(self.url, self.key_variable)
        for name, least in (("retries", 0), ("at_once", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}: expected a whole number from {least} on; got {value}")
        for name in ("timeout", "pause", "longest_wait"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and name == "timeout"):
                raise ValueError(f"{name}: expected a number of seconds; got {value}")

    @property
    def destination(self) -> Destination:
        """Its host, and the key that is sent there."""
        return destination(self.url, self.key_variable)

    def answer(self, chats: Sequence[Sequence[Message]], max_tokens: int = 300) -> list[Answer]:
        """The model's answers to chats, at temperature 0, in their order; the error in the place of each that
        could not be had after all retries, or is not to be read. Where one has an error that may pass, those
        that are not under way are not asked any more, and have it too.

        Raises:
            EndpointError: where the endpoint refuses the key, has no credit or does not know the model, or
                has refused all chats alike, the first `FIRST` of them, and never answered one, as it then
                refuses every chat; where the key is not one that can be sent.
        """
        if not chats:
            return []
        key = self._key()
        stop = _Stop()

        def ask(chat: Sequence[Message]) -> Answer:
            if stop.error is not None:
                return stop.error
            answer = self._ask(chat, max_tokens, key, stop)
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
        """The key that is sent, or None."""
        where = self.destination
        if not where.sends_key:
            return None
        key = os.environ[str(where.key_variable)].strip()
        if not (key.isascii() and key.isprintable() and " " not in key):
            message = f"{where.key_variable}: expected a key of plain characters without spaces"
            raise EndpointError(message, REFUSES_ALL[0])  # as an endpoint would say: no chat is at fault
        return key

    def _ask(self, chat: Sequence[Message], max_tokens: int, key: str | None, stop: "_Stop") -> Answer:
        opener = opener_for(urllib.parse.urlsplit(self.url).hostname or "")
        attempt = 0
        while True:
            refused = self._manner.refused
            try:
                request = self._request(chat, max_tokens, key, refused)
                with opener.open(request, timeout=self.timeout) as response:
                    answer, *tokens = read_completion(read_whole(response), max_tokens)
                self._count(Usage(1, 0, *tokens))
                self._manner.has_answered = True
                return answer
            except FAILURES as error:
                self._count(Usage(1, 1))
                failure = self._failure(error, key)
                asked = 0.0
                if isinstance(error, urllib.error.HTTPError):
                    asked = seconds_to_wait(dict(error.headers.items()), time.time())
            if failure.status in (400, 422) and self._adapts(failure.said, refused):
                continue
            # What the endpoint refuses it will refuse again, but where it was busy.
            is_final = not failure.may_pass and failure.status != UNREADABLE
            wait = min(max(self.pause * 2**attempt, asked), self.longest_wait)
            if is_final or attempt == self.retries or stop.within(wait):
                return _of_all(failure) if self._refuses_all(failure) else failure
            attempt += 1

    def _request(
        self, chat: Sequence[Message], max_tokens: int, key: str | None, refused: Sequence[str]
    ) -> urllib.request.Request:
        settings: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0.0}
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
        """An error of a request, told without its key."""
        is_of_network = isinstance(error, OSError | http.client.HTTPException)
        status = getattr(error, "code", None if is_of_network else UNREADABLE)
        reason = reason_of(error)
        if key is not None:  # before it is cut, or a part of the key might stay
            reason = reason.replace(key, "***")
        message = f"{self.url}, model {self.model!r}: {reason[:LONGEST]}"
        if status in (401, 403) and key is None:
            name = self.destination.key_variable
            remedy = f"set {name}" if name else "name the environment variable that holds it as key_variable"
            message += f"; no key was sent: {remedy}"
        return EndpointError(message, status, reason)

    def _adapts(self, said: str, refused: Sequence[str]) -> bool:
        """True where a chat that was refused is to be sent again, with other settings.

        Args:
            refused: the settings that were left out of what was sent.
        """
        with _LOCK:
            if self._manner.refused != refused:  # another chat was refused before
                return True
            places = {name: re.search(rf"\b{name}\b", said) for name in REFUSABLE if name not in refused}
            named = {name: match.start() for name, match in places.items() if match is not None}
            if self.seed is None:
                named.pop("seed", None)
            if not named or not UNSUPPORTED.search(said):
                return False
            name = min(named, key=lambda one: named[one])
            self._manner.refused = (*refused, name)
        if REFUSABLE[name] is None:
            warnings.warn(
                f"endpoint {self.url}, model {self.model!r}, refuses {name} and is asked without it; its "
                "answers may differ from one run to the next",
                stacklevel=2,
            )
        return True

    def _refuses_all(self, failure: EndpointError) -> bool:
        """True where no chat has been answered and the first ones were all refused alike."""
        if not _is_general(failure) or self._manner.has_answered:
            return False
        with _LOCK:
            self._manner.statuses.append(failure.status)
            return len(self._manner.statuses) >= FIRST and len(set(self._manner.statuses)) == 1

    def _count(self, call: Usage) -> None:
        with _LOCK:
            self.usage.add(call)
            for used in _METERS[-1:]:
                used.setdefault(f"{self.url}#{self.model}", Usage()).add(call)


def reason_of(error: Exception) -> str:
    """What an error says, with the beginning of the answer in which the endpoint says why it refuses."""
    said = ""
    if isinstance(error, urllib.error.HTTPError):
        with suppress(*FAILURES):  # of an answer that breaks off
            said = error.read(10 * LONGEST).decode(errors="replace")
    return one_line(f"{error}: {said}").removesuffix(":") if said else one_line(str(error))


def _is_general(failure: EndpointError) -> bool:
    """True for a refusal that is not about what one chat holds."""
    return not failure.may_pass and not OF_CONTENT.search(failure.said)


def _of_all(failure: EndpointError) -> EndpointError:
    """The error of an endpoint that refuses all chats as it did this one."""
    return EndpointError(f"{failure}; it answers no chat", failure.status, failure.said, of_all=True)
