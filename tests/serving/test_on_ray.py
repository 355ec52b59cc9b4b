"""`rewardedit serve --engine ray` on a Ray of this machine: the same application, its replicas, its end."""

import importlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from rewardedit.serving.on_ray import run_on_ray_serve
from rewardedit.serving.run import listen
from rewardedit.serving.scorer_set import ScorerSet
from rewardedit.serving.settings import ServeConfig
from tests.serving.helpers import L1, OWN, ROOT, SLOW, STRICT, ServerProcess, direct, edit, item

pytestmark = pytest.mark.slow
LACKING = "ray[serve] is not installed"
OPTIONS = ("--engine", "ray")
TOKEN = "a-token-of-some-length"


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


@pytest.fixture
def cluster():
    """A Ray whose Serve runs already; its address and the port of its Serve."""
    ray = importlib.import_module("ray")
    serve = importlib.import_module("ray.serve")
    with listen(ServeConfig(port=0)) as listener:
        port = listener.getsockname()[1]
    running = ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield running.address_info["address"], port
    serve.shutdown()
    ray.shutdown()


def test_a_serve_that_runs_already_is_shared_or_refused(cluster):
    address, port = cluster
    serve = importlib.import_module("ray.serve")
    scorers = ScorerSet(L1)
    elsewhere = f"expected --host 127.0.0.1 --port {port}, .* got 127.0.0.1 and 8008"
    with pytest.raises(ValueError, match=elsewhere):
        run_on_ray_serve(scorers, ServeConfig())
    with pytest.raises(ValueError, match="is shared: expected a token; got none; set REWARDEDIT_TOKEN"):
        run_on_ray_serve(scorers, ServeConfig(port=port))

    @serve.deployment(ray_actor_options={"num_cpus": 0})
    class Other:
        def __call__(self):
            return "other"

    for name, prefix in (("other", "/"), ("rewardedit", "/x")):
        serve.run(Other.bind(), name=name, route_prefix=prefix)
        with pytest.raises(ValueError, match=f"whose / is free; {name} is there"):
            run_on_ray_serve(scorers, ServeConfig(port=port, token=TOKEN))
        assert list(serve.status().applications) == [name]  # it stays
        serve.delete(name)

    own = {"RAY_ADDRESS": address, "REWARDEDIT_TOKEN": TOKEN}
    with ServerProcess("--scorer", "l1", "--port", str(port), *OPTIONS, **own) as server:
        assert server.address == f"http://127.0.0.1:{port}"
        assert httpx.get(f"{server.address}/v1/scorers").status_code == 401
        answer = httpx.get(f"{server.address}/v1/scorers", headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200
        server.process.terminate()
        assert server.process.wait(120) == 0
    assert not serve.status().applications
    assert serve.status().proxies  # what this command did not start goes on
