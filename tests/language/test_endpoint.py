"""Timeouts and usage of endpoints, with real sockets on this machine."""

import dataclasses
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from rewardedit.language.endpoint import Endpoint, EndpointError, Usage, _Stop, metered
from rewardedit.language.endpoint_http import seconds_to_wait
from rewardedit.language.usage import add_up, format_usage, read_usage, record_usage

CHAT = [[{"role": "user", "content": "hello"}]]
CHOICES = {"choices": [{"message": {"role": "assistant", "content": "good day"}}]}
BODY = json.dumps(CHOICES | {"usage": {"prompt_tokens": 5, "completion_tokens": 2}}).encode()
HEAD = f"HTTP/1.1 200 OK\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
PAUSE = 0.05  # seconds between two bytes that drip: many are due within a timeout


def read_request(connection: socket.socket) -> bytes:
    """The body. All is read: a socket that is closed with something unread breaks what it sent."""
    with connection.makefile("rb") as file:
        lines = list(iter(file.readline, b"\r\n"))
        lengths = [line.partition(b":")[2] for line in lines if line.lower().startswith(b"content-length:")]
        return file.read(int(lengths[0]))


def silent(connection: socket.socket) -> None:
    """Never answers, and stays until the other side is gone."""
    read_request(connection)
    connection.recv(1)


def at_once(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(HEAD + BODY)


def in_chunks(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for part in (BODY[:7], BODY[7:], b""):
        connection.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")


def dripping_body(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(HEAD)
    drip(connection, BODY)


def dripping_head(connection: socket.socket) -> None:
    read_request(connection)
    drip(connection, HEAD + BODY)


def dripping_refusal(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(HEAD.replace(b"200 OK", b"500 Broken"))
    drip(connection, BODY)


def drip(connection: socket.socket, content: bytes) -> None:
    """All of it, if the other side waits for that: seconds after the timeout."""
    for byte in content:
        connection.sendall(bytes([byte]))
        time.sleep(PAUSE)


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Called with what is to become of the first connections, gives the address; the last serves all later
    ones.
    """
    listening = socket.create_server(("127.0.0.1", 0))

    def start(*answers: Callable[[socket.socket], None]) -> str:
        def one(connection: socket.socket, answer: Callable[[socket.socket], None]) -> None:
            with connection, suppress(OSError):  # the other side hung up
                answer(connection)

        def accept() -> None:
            left = list(answers)
            with suppress(OSError):  # it is closed
                while True:
                    connection, _ = listening.accept()
                    answer = left.pop(0) if len(left) > 1 else left[0]
                    threading.Thread(target=one, args=(connection, answer), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}/v1"

    yield start
    with suppress(OSError):
        listening.shutdown(socket.SHUT_RDWR)  # so that it accepts no more
    listening.close()


@pytest.mark.parametrize("answer", [silent, dripping_head, dripping_body])
def test_an_answer_that_is_not_whole_in_time_is_an_error(serve, answer):
    endpoint = Endpoint(serve(answer), "m", timeout=0.3, retries=1, pause=0.001)
    (failed,) = endpoint.answer(CHAT)
    assert isinstance(failed, EndpointError), "it waited for the whole answer"
    assert str(failed).endswith("model 'm': no whole answer within 0.3 s")
    assert failed.may_pass
    assert dataclasses.astuple(endpoint.usage) == (2, 2, 0, 0)


@pytest.mark.parametrize("answer", [silent, dripping_body])
def test_an_endpoint_that_was_late_is_asked_again(serve, answer):
    endpoint = Endpoint(serve(answer, at_once), "m", timeout=1, retries=1, pause=0.001)
    assert endpoint.answer(CHAT) == ["good day"]
    assert dataclasses.astuple(endpoint.usage) == (2, 1, 5, 2)


def test_a_refusal_that_drips_is_not_waited_for(serve):
    (failed,) = Endpoint(serve(dripping_refusal), "m", timeout=0.3, retries=0).answer(CHAT)
    assert isinstance(failed, EndpointError)
    assert failed.status == 500
    assert "good day" not in str(failed)


def answering(status: str, header: str = "X: y", body: bytes = b"{}") -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        read_request(connection)
        head = f"HTTP/1.1 {status}\r\n{header}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)

    return answer


@pytest.mark.parametrize("status", ["401 No", "402 Payment Required", "403 No", "404 No"])
def test_what_refuses_every_chat_is_an_error_and_the_others_are_not_asked(serve, status):
    endpoint = Endpoint(serve(answering(status)), "m", timeout=10, at_once=1)
    with pytest.raises(EndpointError, match=status[:3]) as refused:
        endpoint.answer(CHAT * 5)
    assert not refused.value.may_pass
    assert endpoint.usage.calls == 1


@pytest.mark.parametrize("status", ["408 Slow", "409 Conflict", "425 Early", "429 Busy", "503 Down"])
def test_an_endpoint_that_was_busy_is_asked_again(serve, status):
    endpoint = Endpoint(serve(answering(status), at_once), "m", timeout=10, retries=1, pause=0.001)
    assert endpoint.answer(CHAT) == ["good day"]
    assert endpoint.usage == Usage(2, 1, 5, 2)
    assert EndpointError("", int(status[:3])).may_pass


NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "20"}, 20),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"Retry-After": "Fri, 15 Jan 2027 08:01:30 GMT"}, 90),
        ({"Retry-After": "Fri, 15 Jan 2027 10:01:30 +0200"}, 90),
        ({"Retry-After": "Fri, 15 Jan 2027 07:00:00 GMT"}, 0),
        ({"Retry-After": "20", "x-ratelimit-reset-requests": "6m0s"}, 20),
        ({"retry-after-ms": "250", "Retry-After": "20"}, 0.25),
        ({"x-ratelimit-reset-requests": "6m0s"}, 360),
        ({"X-RateLimit-Reset-Tokens": "20ms"}, 0.02),
        ({"x-ratelimit-reset": "1h2m3.5s"}, 3723.5),
        ({"x-ratelimit-reset": str(int(NOW) + 45)}, 45),
        ({"x-ratelimit-reset": str(1000 * (int(NOW) + 45))}, 45),
        ({"ratelimit-reset": "7"}, 7),
        ({"x-ratelimit-reset": "2027-01-15T08:00:05Z"}, 5),
        (
            {
                "x-ratelimit-remaining-requests": "59",
                "x-ratelimit-reset-requests": "50s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "4s",
            },
            4,
        ),
        ({"x-ratelimit-reset-requests": "50s", "x-ratelimit-reset-tokens": "4s"}, 50),
        ({}, 0),
        ({"Retry-After": "soon"}, 0),
        ({"Retry-After": "nan"}, 0),
        ({"Retry-After": "-5"}, 0),
        ({"Retry-After": "inf"}, 0),
        ({"Retry-After": "9" * 5000}, 0),
        ({"Retry-After": "Fri, 99 Jan 999999 08:00:00 GMT"}, 0),
        ({"Retry-After": ""}, 0),
        ({"x-ratelimit-reset": "s"}, 0),
    ],
)
def test_the_time_that_a_busy_endpoint_asks_to_wait_is_read(headers, seconds):
    assert seconds_to_wait(headers, NOW) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("status", "header", "waits"),
    [
        ("429 Busy", "Retry-After: 20", [20, 20]),
        ("503 Down", "Retry-After: 20", [20, 20]),
        ("429 Busy", "x-ratelimit-reset-requests: 40s", [40, 40]),
        ("429 Busy", "Retry-After: 86400", [60, 60]),
        ("429 Busy", "Retry-After: 1", [1.5, 3]),
    ],
)
def test_a_busy_endpoint_is_waited_for_as_long_as_it_asks_up_to_the_longest_wait(
    serve, monkeypatch, status, header, waits
):
    pauses = []
    monkeypatch.setattr(_Stop, "within", lambda self, seconds: pauses.append(seconds))
    busy = answering(status, header)
    endpoint = Endpoint(serve(busy, busy, at_once), "m", timeout=10, retries=2, pause=1.5, longest_wait=60)
    assert endpoint.answer(CHAT) == ["good day"]
    assert pauses == waits


def refusing(*names: str, status: str = "400 Bad") -> Callable[[socket.socket], None]:
    """Refuses settings of these names, the first that is there, and else says which settings it was sent."""

    def answer(connection: socket.socket) -> None:
        body = json.loads(read_request(connection))
        settings = sorted(name for name in body if name not in ("model", "messages"))
        refused = [name for name in names if name in body]
        if refused:
            head, said = (
                status,
                {"error": {"message": f"Unsupported parameter: '{refused[0]}' is not supported"}},
            )
        else:
            head, said = "200 OK", {"choices": [{"message": {"content": " ".join(settings)}}]}
        content = json.dumps(said).encode()
        connection.sendall(f"HTTP/1.1 {head}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)

    return answer


@pytest.mark.parametrize(
    ("refused", "sent"),
    [
        ([], "max_tokens seed temperature"),
        (["max_tokens"], "max_completion_tokens seed temperature"),
        (["temperature"], "max_tokens seed"),
        (["seed"], "max_tokens temperature"),
        (["max_tokens", "temperature", "seed"], "max_completion_tokens"),
    ],
)
@pytest.mark.parametrize("status", ["400 Bad", "422 Unprocessable"])
@pytest.mark.filterwarnings("ignore:endpoint .* refuses (temperature|seed)")
def test_settings_that_a_model_refuses_are_left_out_from_then_on(serve, refused, sent, status):
    endpoint = Endpoint(
        serve(refusing(*refused, status=status)), "m", timeout=10, seed=0, retries=0, at_once=1
    )
    assert endpoint.answer(CHAT) == [sent]
    assert endpoint.usage.failures == len(refused)
    assert endpoint.answer(CHAT * 3) == [sent] * 3
    assert endpoint.usage.failures == len(refused), "it is known once"
    together = Endpoint(endpoint.url, "m", timeout=10, seed=0, retries=0)
    assert together.answer(CHAT * 16) == [sent] * 16


def test_an_answer_that_is_not_greedy_any_more_is_said(serve):
    endpoint = Endpoint(serve(refusing("temperature")), "m", timeout=10)
    with pytest.warns(
        UserWarning, match=r"model 'm', refuses temperature and is asked without it; its answers"
    ):
        endpoint.answer(CHAT)


@pytest.mark.parametrize(
    "said",
    [
        "max_tokens is too large: 300; the context holds 256",
        "temperature must be a number",
        "this model does not support images",
    ],
)
def test_other_refusals_change_no_setting(serve, said):
    endpoint = Endpoint(serve(answering("400 Bad", body=said.encode()), refusing()), "m", timeout=10)
    (refused,) = endpoint.answer(CHAT)
    assert isinstance(refused, EndpointError)
    assert endpoint.answer(CHAT) == ["max_tokens temperature"]


@pytest.mark.parametrize(
    "status", ["400 Bad", "405 Method", "413 Large", "422 Unprocessable", "307 Elsewhere"]
)
def test_what_refuses_the_first_chats_alike_ends_the_run_with_one_message(serve, status):
    endpoint = Endpoint(serve(answering(status)), "m", timeout=10, at_once=2)
    with pytest.raises(EndpointError, match=f"{status[:3]}.*; it answers no chat") as refused:
        endpoint.answer(CHAT * 200)
    assert not refused.value.may_pass
    assert endpoint.usage.calls < 12
    few = Endpoint(endpoint.url, "m", timeout=10)
    with pytest.raises(EndpointError, match="it answers no chat"):
        few.answer(CHAT * 2)


@pytest.mark.parametrize("first", ["an answer", "content"])
def test_refusals_of_rows_do_not_end_a_run(serve, first):
    """After an earlier answer, or if the endpoint says that the content is at fault."""
    said = b"blocked by our content filter" if first == "content" else b"no"
    begin = [at_once] if first == "an answer" else []
    endpoint = Endpoint(serve(*begin, answering("400 Bad", body=said)), "m", timeout=10, at_once=1)
    answers = endpoint.answer(CHAT * 20)
    assert [answer for answer in answers if isinstance(answer, str)] == ["good day"] * len(begin)
    assert endpoint.usage.calls == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retries": -1}, "retries: expected a whole number of at least 0; got -1"),
        ({"at_once": 0}, "at_once: expected a whole number of at least 1; got 0"),
        ({"timeout": 0}, "timeout: expected a number of seconds; got 0"),
        ({"longest_wait": float("nan")}, "longest_wait: expected a number of seconds; got nan"),
        ({"longest_wait": float("inf")}, "longest_wait: expected a number of seconds; got inf"),
        ({"pause": -1.0}, "pause: expected a number of seconds; got -1.0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Endpoint("http://localhost:1/v1", "m", **options)


def test_an_endpoint_that_is_down_is_not_asked_for_every_chat(serve):
    endpoint = Endpoint(
        serve(at_once, answering("503 Down")), "m", timeout=10, retries=2, pause=0.001, at_once=1
    )
    answers = endpoint.answer(CHAT * 9)
    assert answers[0] == "good day"
    assert all(isinstance(answer, EndpointError) and answer.status == 503 for answer in answers[1:])
    assert endpoint.usage.calls == 1 + 3
    # Nor is a long pause waited for, once another chat's tries are over.
    stop = _Stop()
    stop.set(answers[1])
    began = time.monotonic()
    assert stop.within(60)
    assert time.monotonic() - began < 30


def test_what_one_chat_is_refused_the_others_are_asked_for(serve):
    endpoint = Endpoint(serve(answering("400 Bad"), at_once), "m", timeout=10, at_once=1)
    refused, *others = endpoint.answer(CHAT * 3)
    assert refused.status == 400
    assert others == ["good day"] * 2


def test_an_answer_in_chunks_is_put_together(serve):
    assert Endpoint(serve(in_chunks), "m", timeout=10).answer(CHAT) == ["good day"]


def test_a_call_counts_once_in_the_innermost_block(serve):
    url = serve(at_once)
    first = Endpoint(url, "m", timeout=10)
    other = Endpoint(url, "n", timeout=10)
    with metered() as outer:
        first.answer(CHAT)
        with metered() as inner:
            first.answer(CHAT * 3)
        other.answer(CHAT)
    first.answer(CHAT)
    assert inner == {f"{url}#m": Usage(3, 0, 15, 6)}
    assert outer == {f"{url}#m": Usage(1, 0, 5, 2), f"{url}#n": Usage(1, 0, 5, 2)}
    assert first.usage == Usage(5, 0, 25, 10)


def test_what_was_asked_is_kept_in_a_file_also_where_it_ends_in_an_error(serve, tmp_path):
    url = serve(at_once)
    file = tmp_path / "usage.json"

    def interrupted() -> None:
        with record_usage(file):
            Endpoint(url, "m", timeout=10).answer(CHAT)
            raise ValueError("something else, later")

    with pytest.raises(ValueError, match="later"):
        interrupted()
    with record_usage(file):
        Endpoint(url, "m", timeout=10).answer(CHAT * 2)
    assert read_usage([file, tmp_path / "nowhere.json"]) == {f"{url}#m": Usage(3, 0, 15, 6)}
    with record_usage(tmp_path / "none.json"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["usage.json"]


def test_the_line_of_an_endpoint_that_counts_no_tokens_has_its_calls():
    part = {"http://here/v1#m": Usage(2, 1)}
    assert format_usage(add_up([part, part])) == (
        "endpoint http://here/v1#m: 4 calls, 2 of them failed; it counts no tokens"
    )
    assert format_usage({"http://here/v1#m": Usage(2, 0, 30, 4)}) == (
        "endpoint http://here/v1#m: 2 calls, 0 of them failed; 30 prompt and 4 completion tokens"
    )
    assert part == {"http://here/v1#m": Usage(2, 1)}, "what is added up stays as it was"
