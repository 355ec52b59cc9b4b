"""What strangers' models and servers may answer, made up by Hypothesis: always a grade or an edit, or a
reason why there is none; never another exception.

100 cases of each in the suite, the same each time; 3,300 others in the slow one.
"""

import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewardedit.instructions.llm import LlmParser, parsed_edit, read_objects, read_position, read_size
from rewardedit.instructions.parsed import ParsedEdit, Unparsed
from rewardedit.language.answers import AnswerError, normalised, read_completion
from rewardedit.language.endpoint import Endpoint, EndpointError
from rewardedit.scorers.vlm_judge_graders import read_all
from rewardedit.synthesis.captions import caption_of

FEW = 100
MANY = 3300
both = pytest.mark.parametrize("cases", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])


def check(cases: int, strategy: st.SearchStrategy, property_of: Callable[[Any], None]) -> None:
    """Tries a property with so many cases."""

    @settings(
        max_examples=cases,
        deadline=None,
        derandomize=cases == FEW,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(case: Any) -> None:
        property_of(case)

    run()


PIECES = st.sampled_from(
    [
        *(
            "Grade",
            "grade",
            "Final Grade",
            "before",
            "after",
            "relation",
            "of",
            "larger",
            "smaller",
            "up",
            "lamp",
        ),
        *(
            ":",
            "\uff1a",
            "=",
            " ",
            "\u00a0",
            "\n",
            "\r\n",
            "\u2028",
            "**",
            "_",
            "`",
            "```json\n",
            "#",
            "-",
            "\u2212",
        ),
        *("7", "10", "0", "8.5", "\u0667", "\uff17", "\u00b2", "\u00bd", "/10", "out of 10", ".", "9" * 400),
        *(
            "<think>",
            "</think>",
            "[THINK]",
            "[/THINK]",
            "{",
            "}",
            "[",
            "]",
            '"',
            ",",
            '"grade"',
            "NaN",
            "null",
        ),
        *(
            '{"grade": 7}',
            '{"grade": "7/10"}',
            '{"grade": [1, 2]}',
            '{"before": "a", "after": null}',
            "\ud800",
        ),
    ]
)
TEXTS = st.one_of(
    st.lists(PIECES, max_size=12).map("".join),
    st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=8).map("".join),
    st.text(max_size=60),
    st.sampled_from(
        ["{" * 3000, "[" * 3000, '{"a":' * 3000 + "1" + "}" * 3000, "\n" * 9000 + "x", "*" * 9000]
    ),
)


def check_grades(answers: list[Any]) -> None:
    grades, reasons = read_all(answers, torch.device("cpu"))
    for grade, reason in zip(grades.tolist(), reasons, strict=True):
        assert (reason is None and 0 <= grade <= 10) or (grade != grade and str(reason).strip())
    json.dumps(reasons, ensure_ascii=False).encode()  # as they are written to files


@both
def test_answers(cases):
    def read(answer: str) -> None:
        plain = normalised(answer)
        assert not set(plain) & set("\r\u2028\uff1a")
        plain.encode()
        check_grades([answer, AnswerError.cut(5, answer)])
        assert isinstance(caption_of(answer), str)
        parts = read_objects(answer), read_size(answer), read_position(answer)
        if None not in parts:
            assert isinstance(parsed_edit(*parts), ParsedEdit)

    check(cases, TEXTS, read)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)
PARTS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"type": st.sampled_from(["text", "refusal", "thinking"]), "text": TEXTS}),
        VALUES,
    ),
    max_size=3,
)
ENDS = st.one_of(st.sampled_from(["stop", "length", "content_filter", "abort", None]), VALUES)
COMPLETIONS = st.builds(
    lambda content, end, more, usage: json.dumps(
        {
            "choices": [{"message": {"content": content, **more}, "finish_reason": end}],
            "usage": usage,
        }
    ).encode(),
    st.one_of(TEXTS, TEXTS, PARTS, VALUES),
    ENDS,
    st.one_of(st.just({}), st.fixed_dictionaries({"refusal": st.one_of(st.none(), VALUES)})),
    st.one_of(
        st.none(), VALUES, st.fixed_dictionaries({"prompt_tokens": VALUES, "completion_tokens": VALUES})
    ),
)
BODIES = st.one_of(
    COMPLETIONS,
    COMPLETIONS,
    st.builds(lambda body, at: body[: at % (len(body) + 1)], COMPLETIONS, st.integers(0, 400)),
    st.builds(
        lambda body, at, new: body[:at] + new + body[at:], COMPLETIONS, st.integers(0, 99), st.binary()
    ),
    COMPLETIONS.map(gzip.compress),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=60),
    st.sampled_from(
        [b"[" * 99_999, b'{"a":' * 99_999, b'{"choices":' + b"9" * 9999 + b"}", b"\xef\xbb\xbf{}"]
    ),
)


@both
def test_completions(cases):
    def read(body: bytes) -> None:
        with suppress(ValueError):
            answer, prompt_tokens, completion_tokens = read_completion(body, 5)
            check_grades([answer])
            assert 0 <= prompt_tokens + completion_tokens < 2**50

    check(cases, BODIES, read)


class Raw:
    """A server that reads a request and sends the bytes that it is given."""

    def __init__(self) -> None:
        self.content = b""
        self.socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                connection, _ = self.socket.accept()
                with connection, suppress(OSError), connection.makefile("rb") as file:
                    lines = list(iter(file.readline, b"\r\n"))
                    (length,) = (
                        int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")
                    )
                    file.read(length)
                    connection.sendall(self.content)


@pytest.fixture
def raw() -> Iterator[Raw]:
    server = Raw()
    yield server
    with suppress(OSError):
        server.socket.shutdown(socket.SHUT_RDWR)
    server.socket.close()


LINES = st.one_of(
    st.sampled_from(
        [
            *(b"Content-Length: 7", b"Content-Length: -1", b"Content-Length: x", b"Content-Encoding: gzip"),
            *(
                b"Transfer-Encoding: chunked",
                b"Location: http://[",
                b"Location: http://127.0.0.1:1/",
                b"X" * 70_000,
            ),
            *(b"Retry-After: 0", b"Retry-After: x", b"x-ratelimit-reset-tokens: 1ms", b": ", b"\x00: \xff"),
        ]
    ),
    st.binary(max_size=20),
)
HEADS = st.one_of(
    st.sampled_from(
        [b"HTTP/1.1 %d Said" % status for status in (200, 200, 200, 204, 301, 400, 422, 429, 500, 999)]
    ),
    st.sampled_from([b"HTTP/1.1 x", b"HTTP/9 200 OK", b"", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"]),
    st.binary(max_size=20),
)
REPLIES = st.one_of(
    st.builds(
        lambda head, lines, body: b"\r\n".join([head, *lines, b"", b""]) + body,
        HEADS,
        st.lists(LINES, max_size=4),
        st.one_of(BODIES, BODIES.map(lambda body: b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))),
    ),
    BODIES.map(lambda body: b"HTTP/1.1 200 OK\r\n\r\n" + body),
)


@both
@pytest.mark.filterwarnings("ignore:endpoint .* refuses")
def test_replies_of_endpoints(cases, raw):
    url = f"http://127.0.0.1:{raw.socket.getsockname()[1]}/v1"

    def ask(reply: bytes) -> None:
        raw.content = reply
        endpoint = Endpoint(url, "m", retries=1, pause=0, longest_wait=0, timeout=20)
        with suppress(EndpointError):
            check_grades(list(endpoint.answer([[{"role": "user", "content": "?"}]])))
        with suppress(EndpointError):
            (parsed,) = LlmParser(endpoint.answer, "m")(["add a lamp"])
            assert isinstance(parsed, ParsedEdit | Unparsed)

    check(cases, REPLIES, ask)


CACHES = st.one_of(
    st.binary(max_size=60),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.builds(
        lambda key, parsed: json.dumps({"key": key, "instruction": "add a lamp", "parsed": parsed}).encode(),
        st.one_of(st.just(LlmParser(list, "m")._key("add a lamp")), VALUES),
        st.one_of(
            VALUES,
            st.fixed_dictionaries(
                {"edit_type": VALUES, "source": VALUES, "target": VALUES},
                optional={"size": VALUES, "position": VALUES, "is_global": VALUES},
            ),
            st.fixed_dictionaries({"reason": VALUES}),
        ),
    ),
)


@both
def test_caches_of_parsers(cases, tmp_path):
    def parse(lines: list[bytes]) -> None:
        cache = tmp_path / "parsed.jsonl"
        cache.write_bytes(b"\n".join(lines))
        parser = LlmParser(lambda chats: ["hm"] * len(chats), "m", cache)
        (parsed,) = parser(["add a lamp"])
        assert isinstance(parsed, ParsedEdit | Unparsed)
        texts = [
            value for value in vars(parsed).values() if value is not None and not isinstance(value, bool)
        ]
        assert all(isinstance(text, str) for text in texts)

    check(cases, st.lists(CACHES, max_size=3), parse)
