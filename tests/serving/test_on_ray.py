"""`rewardedit serve --engine ray` on a Ray of this machine: the same application, its replicas, its end."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serving.helpers import OWN, ROOT, SLOW, STRICT, ServerProcess, direct, edit, item

pytestmark = pytest.mark.slow
LACKING = "ray[serve] is not installed"
OPTIONS = ("--engine", "ray")


@pytest.fixture(autouse=True)
def ray_serve(monkeypatch):
    pytest.importorskip("ray.serve", reason=LACKING, exc_type=ImportError)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)  # a Ray of its own


def test_scores_are_those_of_a_direct_call():
    edits = [edit(i, width=16 + 8 * (i % 3)) for i in range(12)]
    items = [item(fields) for fields in edits]
    expected = [direct(STRICT, fields) for fields in edits]
    with (
        ServerProcess("--scorer", STRICT, SLOW, "--replicas", "2", *OPTIONS) as server,
        httpx.Client(base_url=server.address, timeout=120) as client,
    ):

        def ask(number: int) -> float:
            body = {"items": [items[number % len(items)]], "scorers": [STRICT]}
            answer = client.post("/v1/score", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["results"][0]["scores"][STRICT]["score"]

        with ThreadPoolExecutor(8) as pool:
            scores = list(pool.map(ask, range(48)))
        assert scores == pytest.approx(expected * 4, abs=1e-6)
        assert client.get("/health").json()["status"] == "ok"
        assert client.post("/v1/score", content=b"{").status_code == 400
        assert client.get("/v1/scorers", headers={"Host": "evil.example"}).status_code == 403

        # what was accepted before SIGTERM is answered
        answers = []
        last = threading.Thread(
            target=lambda: answers.append(client.post("/v1/score", json={"items": items[:1]}))
        )
        last.start()
        last.join(0.1)
        server.process.terminate()
        last.join()
        assert answers[0].status_code == 200
        assert server.process.wait(120) == 0


def test_a_scorer_that_cannot_be_loaded_is_named():
    command = [sys.executable, "-m", "rewardedit", "serve", "--port", "0", "--scorer", f"{OWN}:Unloadable"]
    done = subprocess.run([*command, *OPTIONS], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "rewardedit: ValueError: there are no such weights" in done.stderr
