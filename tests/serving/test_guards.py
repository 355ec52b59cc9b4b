import socket
import time

import pytest

from rewardedit.cli import main
from rewardedit.serving.settings import ServeConfig
from tests.serving.helpers import L1, client_of, edit, item, server_of

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def client():
    with client_of(L1, token=TOKEN, allow_host=("scores.lab",)) as client:
        yield client


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8008", 200),
        ("127.0.0.1:8008", 200),
        ("[::1]:8008", 200),
        ("Scores.lab", 200),
        ("evil.example", 403),
        ("localhost.evil.example:8008", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_a_foreign_host_is_refused(client, host, status):
    assert client.get("/health", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        ("http://evil.example", 403),
        ("null", 403),
        ("http://localhost:9", 403),
        ("http://[", 403),
    ],
)
def test_a_foreign_origin_is_refused(client, origin, status):
    assert client.get("/health", headers={"Origin": origin}).status_code == status


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (None, 401),
        ("Bearer wrong", 401),
        (f"Bearer {TOKEN}x", 401),
        (TOKEN, 401),
        ("Basic !", 401),
    ],
)
def test_a_wrong_token_is_refused(client, value, status):
    headers = {} if value is None else {"Authorization": value}
    answer = client.get("/v1/scorers", headers=headers)
    assert answer.status_code == status
    assert status == 200 or answer.headers["www-authenticate"].startswith("Bearer")
    assert client.get("/v1/scorers", auth=("any", TOKEN)).status_code == 200


def test_health_names_scorers_with_the_token_alone(client):
    assert client.get("/health").json() == {"status": "ok"}
    answer = client.get("/health", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.json() == {"status": "ok", "rewards": {"l1": ["score"]}}
    for path in ("/metrics", "/docs", "/openapi.json", "/rewards"):
        assert client.get(path).status_code == 401


def exchange(address: str, *parts: bytes) -> bytes:
    """Everything that a server answers to bytes that are sent to it."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
        answer = b""
        while more := connection.recv(65536):
            answer += more
        return answer


HEAD = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n"


def test_large_and_slow_bodies_are_refused_as_they_come(monkeypatch):
    monkeypatch.setattr("rewardedit.serving.guards.DRAIN_SECONDS", 0.2)
    with server_of(L1, max_body_mb=1, body_timeout=1) as address:
        assert b" 413 " in exchange(address, HEAD + b"Content-Length: 1073741824\r\n\r\n")[:20]
        chunk = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
        assert b" 413 " in exchange(address, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", chunk, chunk)[:20]
        began = time.monotonic()
        assert b" 408 " in exchange(address, HEAD + b"Content-Length: 9\r\n\r\n", b"{")[:20]
        assert time.monotonic() - began < 10


def test_requests_at_a_time_are_bounded():
    with client_of(L1, max_body_mb=2, max_held_mb=1) as client:
        answer = client.post("/v1/score", content=b" " * (2**20 + 1))
        assert (answer.status_code, answer.json()["error"]) == (
            413,
            "requests at a time: expected at most 1 MiB; send fewer items",
        )
        assert client.post("/v1/score", json=item(edit(1))).status_code == 200


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"host": "0.0.0.0"}, "host 0.0.0.0: expected a token"),
        ({"host": "0.0.0.0", "token": "short"}, "expected at least 16 characters; got 5"),
        ({"token": "höflich"}, "expected printable ASCII"),
        ({"batch_size": 0}, "batch_size: expected at least 1; got 0"),
        ({"max_items": 2000}, "max_items: expected at most max_queue, 1024; got 2000"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, error):
    with pytest.raises(ValueError, match=error):
        ServeConfig(**settings)


def test_the_command_refuses_to_start_in_the_open(monkeypatch, capsys):
    monkeypatch.delenv("REWARDEDIT_TOKEN", raising=False)
    assert main(["serve", "--scorer", "l1", "--host", "0.0.0.0"]) == 2
    assert "openssl rand -hex 32" in capsys.readouterr().err
    assert main(["serve", "--scorer", "l9"]) == 2
    assert "no scorer named 'l9'" in capsys.readouterr().err
