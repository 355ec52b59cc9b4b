"""`rewardedit serve` as a process: many clients, dying workers, hostile requests, and its end."""

import os
import signal
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serving.helpers import L1, SLOW, STRICT, ServerProcess, client_of, direct, edit, item, server_of
from tests.serving.test_guards import HEAD, exchange

pytestmark = pytest.mark.slow
REQUESTS = 2000
THREADS = 16


def bomb() -> bytes:
    """A PNG file of a few kB that says it has 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 10**6)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_workers_die_and_nothing_is_lost_or_mixed():
    edits = [edit(i, width=16 + 8 * (i % 3)) for i in range(60)]
    items = [item(fields) for fields in edits]
    expected = [direct(STRICT, fields) for fields in edits]
    done: list[int] = []
    killed: list[float] = []
    with ServerProcess("--scorer", STRICT, "--replicas", "2") as server:
        limits = httpx.Limits(max_connections=THREADS)
        with httpx.Client(base_url=server.address, timeout=120, limits=limits) as client:

            def ask(number: int) -> float:
                answer = client.post("/v1/score", json=items[number % len(items)])
                assert answer.status_code == 200, answer.text
                (found,) = answer.json()["results"]
                assert found["id"] == str(number % len(items))
                done.append(number)
                return found["scores"][STRICT]["score"]

            def kill() -> None:
                for share in (0.2, 0.5, 0.7):
                    while len(done) < share * REQUESTS:
                        time.sleep(0.01)
                    os.kill(server.workers()[0], signal.SIGKILL)
                    killed.append(share)

            killer = threading.Thread(target=kill)
            killer.start()
            with ThreadPoolExecutor(THREADS) as pool:
                scores = list(pool.map(ask, range(REQUESTS)))
            killer.join()
            assert len(killed) == 3
            for number, score in enumerate(scores):
                assert score == pytest.approx(expected[number % len(items)], abs=1e-6)

            killing = client.post("/v1/score", json={"items": [items[0], {**items[1], "instruction": "die"}]})
            first, second = [result["scores"][STRICT] for result in killing.json()["results"]]
            assert first["score"] == pytest.approx(expected[0], abs=1e-6)
            assert second["reason"] == "3 processes have died while they scored this edit"
            assert b"rewardedit_worker_restarts_total" in client.get("/metrics").content
    assert server.process.returncode == 0


def test_hostile_requests_are_refused_in_bounded_memory():
    token = "a-token-of-some-length"
    with ServerProcess("--scorer", "l1", REWARDEDIT_TOKEN=token) as server:
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=server.address, timeout=60, headers=headers) as client:
            good = item(edit(1))
            assert client.post("/v1/score", json=good).status_code == 200
            before = server.memory()
            peak = [before]
            over = threading.Event()

            def watch() -> None:
                while not over.wait(0.02):
                    peak.append(server.memory())

            watcher = threading.Thread(target=watch)
            watcher.start()
            gigabyte = (b"x" * 2**20 for _ in range(1024))
            assert client.post("/v1/score", content=gigabyte).status_code == 413
            files = {"source": bomb(), "edited": bomb()}
            answer = client.post("/v1/score", files=files, data={"instruction": "x"})
            assert answer.status_code == 400
            assert "the bytes are not an image that can be read" in answer.json()["error"]
            assert client.post("/v1/score", json={"items": [good] * 10_000}).status_code == 413
            assert client.get("/v1/scorers", headers={"Authorization": "Bearer no"}).status_code == 401

            slow = [threading.Thread(target=exchange, args=(server.address, b"POST /v1")) for _ in range(50)]
            for thread in slow:
                thread.start()
            assert client.post("/v1/score", json=good).status_code == 200
            for thread in slow:
                thread.join(40)  # their connections are closed
                assert not thread.is_alive()
            over.set()
            watcher.join()
            assert max(peak) - before < 400 * 2**20
            assert client.post("/v1/score", json=good).status_code == 200


def test_sigterm_finishes_what_was_accepted():
    with ServerProcess("--scorer", SLOW, "--batch-size", "1") as server:
        with ThreadPoolExecutor(8) as pool:
            calls = [
                pool.submit(httpx.post, f"{server.address}/v1/score", json=item(edit(i)), timeout=60)
                for i in range(8)
            ]
            while "rewardedit_batch_edits_count" not in (text := httpx.get(f"{server.address}/metrics").text):
                time.sleep(0.02)
            while "queue_edits 7" not in text and "queue_edits 6" not in text:
                text = httpx.get(f"{server.address}/metrics").text
            server.process.send_signal(signal.SIGTERM)
            assert [call.result().status_code for call in calls] == [200] * 8
        assert server.process.wait(30) == 0


def test_a_scorer_that_cannot_be_loaded_ends_the_server(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "import rewardedit\n\n\nclass Own(rewardedit.Scorer):\n"
        "    def __init__(self):\n        raise ValueError('no weights')\n"
    )
    server = ServerProcess("--scorer", f"{file}:Own")
    assert server.process.wait(120) == 2
    server.reader.join()
    assert server.lines[-1] == "rewardedit: no weights\n"


def test_schemathesis_finds_no_server_error():
    import schemathesis
    from hypothesis import HealthCheck, given, settings

    with server_of(L1) as address:
        schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
        n = 0
        for operation in schema.get_all_operations():
            made = operation.ok()

            @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
            @given(case=made.as_strategy())
            def check(case) -> None:
                assert case.call().status_code < 500

            check()
            n += 1
        assert n == 9


def test_the_head_of_a_request_must_arrive_in_time(monkeypatch):
    monkeypatch.setattr("rewardedit.serving.run.HEAD_SECONDS", 0.5)
    with server_of(L1) as address:
        began = time.monotonic()
        assert exchange(address, HEAD) == b""
        assert time.monotonic() - began < 10
    with client_of(L1) as client:
        assert client.get("/health").status_code == 200
