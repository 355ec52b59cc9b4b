"""How long an endpoint may take, and what it was asked for, by real sockets on this machine."""

import dataclasses
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from rewardedit.endpoint import Endpoint, EndpointError, Usage, _Stop, metered
from rewardedit.usage import add_up, read_usage, told, usage_kept

CHAT = [[{"role": "user", "content": "hello"}]]
CHOICES = {"choices": [{"message": {"role": "assistant", "content": "good day"}}]}
BODY = json.dumps(CHOICES | {"usage": {"prompt_tokens": 5, "completion_tokens": 2}}).encode()
HEAD = f"HTTP/1.1 200 OK\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
PAUSE = 0.05  # seconds between two bytes that drip: many are due within a timeout


def read_request(connection: socket.socket) -> None:
    """All of it: a socket that is closed with something unread breaks what it sent."""
    with connection.makefile("rb") as file:
        lines = list(iter(file.readline, b"\r\n"))
        lengths = [line.partition(b":")[2] for line in lines if line.lower().startswith(b"content-length:")]
        file.read(int(lengths[0]))


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


def answering(status: str) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}".encode())

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
        with usage_kept(file):
            Endpoint(url, "m", timeout=10).answer(CHAT)
            raise ValueError("something else, later")

    with pytest.raises(ValueError, match="later"):
        interrupted()
    with usage_kept(file):
        Endpoint(url, "m", timeout=10).answer(CHAT * 2)
    assert read_usage([file, tmp_path / "nowhere.json"]) == {f"{url}#m": Usage(3, 0, 15, 6)}
    with usage_kept(tmp_path / "none.json"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["usage.json"]


def test_the_line_of_an_endpoint_that_counts_no_tokens_has_its_calls():
    part = {"http://here/v1#m": Usage(2, 1)}
    assert told(add_up([part, part])) == (
        "endpoint http://here/v1#m: 4 calls, 2 of them failed; it counts no tokens"
    )
    assert told({"http://here/v1#m": Usage(2, 0, 30, 4)}) == (
        "endpoint http://here/v1#m: 2 calls, 0 of them failed; 30 prompt and 4 completion tokens"
    )
    assert part == {"http://here/v1#m": Usage(2, 1)}, "what is added up stays as it was"
