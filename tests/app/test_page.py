"""The page on the real gradio, over HTTP: an edit from the upload to its download, and what is refused."""

import base64
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib import util
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from rewardedit import cli, load_editor, load_scorer
from rewardedit.app.routes import GONE, REFUSED
from rewardedit.app.settings import AppConfig
from rewardedit.app.workbench import Workbench
from rewardedit.images import load_image, to_pil
from rewardedit.scorers.base import FunctionScorer
from rewardedit.serving.run import address_of, listen, make_server
from rewardedit.serving.settings import ServeConfig
from rewardedit.shapes import Shapes
from tests.reports.test_report_browser import BROWSER, FLAGS
from tests.serving.helpers import ROOT, encoded, picture

SAMPLES = Shapes("test", 0, ("plain",)).batch(0, 4)
TOKEN = "a-token-of-some-length"
running: list[str] = []  # the marks of requests in a scorer
together: list[int] = []  # number of requests in it, at each call


def slow(batch):
    running.append("one")
    together.append(len(running))
    time.sleep(0.3)
    running.pop()
    return batch.edited.mean((1, 2, 3))


@contextmanager
def page_of(folder: Path, **settings):
    """A client of a running page."""
    from rewardedit.app.run import make_app

    editor = load_editor("shapes/editor")
    editor = replace(editor, settings=replace(editor.settings, num_inference_steps=2))
    config = ServeConfig(port=0, max_pixels=10_000, max_body_mb=1, **settings)
    scorers = {"l1": load_scorer("l1"), "slow": FunctionScorer(slow)}
    app = make_app(Workbench("shapes/editor", editor, scorers, "cpu", AppConfig(config)), folder, "shapes")
    listener = listen(config)
    server = make_server(app, 1)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        with httpx.Client(base_url=address_of(listener), timeout=60) as client:
            while not server.started:
                time.sleep(0.02)
            yield client
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "uploads"
    folder.mkdir()
    with page_of(folder) as client:
        yield client


def upload(page, content: bytes, name: str = "photo.png") -> dict:
    """Uploads a file; returns it as requests name it."""
    answer = page.post("/gradio_api/upload", files={"files": (name, content)})
    assert answer.status_code == 200, answer.text
    return file_of(answer.json()[0], name)


def file_of(path: str, name: str = "photo.png") -> dict:
    return {"path": path, "orig_name": name, "meta": {"_type": "gradio.FileData"}}


def number_of(page, name: str) -> int:
    """The number of one of the page's functions."""
    functions = page.get("/config").json()["dependencies"]
    return next(function["id"] for function in functions if function["api_name"] == name)


def join(page, photo, instruction="make it red", *, count=2, by="l1", seed=0, session="s") -> httpx.Response:
    """Asks for an edit."""
    data = [photo, instruction, count, by, ["l1"], seed, 2, "", ""]
    body = {"data": data, "fn_index": number_of(page, "edit"), "session_hash": session}
    return page.post("/gradio_api/queue/join", json=body)


def messages(page, session="s"):
    """Messages of a request, up to its result."""
    with page.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                message = json.loads(line.removeprefix("data:"))
                yield message
                if message["msg"] == "process_completed":
                    return


def outcome(page, *args, session="s", **options) -> dict:
    """The result of an edit."""
    answer = join(page, *args, session=session, **options)
    assert answer.status_code == 200, answer.text
    return list(messages(page, session))[-1]["output"]


def test_an_upload_is_edited_and_can_be_downloaded(page):
    photo = upload(page, encoded(to_pil(SAMPLES.source[0])))
    summary, edits, changed, legend, heat, table, files = outcome(
        page, photo, SAMPLES.instruction[0], seed=3
    )["data"]
    editor = load_editor("shapes/editor")
    settings = replace(editor.settings, num_inference_steps=2)
    images = editor(SAMPLES.source[[0, 0]], [SAMPLES.instruction[0]] * 2, 3, settings=settings)
    scores = [-(image - SAMPLES.source[0]).abs().mean() for image in images]
    best = int(torch.stack(scores).argmax())

    assert summary == f"Best of 2 by l1: seed {3 + best}."
    assert edits[0]["caption"].startswith("★ best: 0.")
    assert len(edits) == len(changed) == len(heat) == len(files["value"]) == 2
    assert legend.startswith("Green: the change raised l1.")
    assert f'<tr class="best"><td>★ seed {3 + best}</td>' in table
    download = files["value"][0]
    assert download["orig_name"] == f"best-seed-{3 + best}.png"
    content = page.get("/gradio_api/file=" + download["path"]).content
    assert (load_image(io.BytesIO(content)) - images[best]).abs().max() < 2 / 255


def test_errors_are_said_in_words(page):
    noise = Image.fromarray(np.zeros((200, 200, 3), np.uint8))
    small = encoded(picture(1))
    faults = [
        (None, "x", "image: expected one; got none; upload it first"),
        (upload(page, small), " ", "instruction: expected a text; got none; write what is to change"),
        (upload(page, b"no image"), "x", "image: the bytes are not an image that can be read"),
        (
            upload(page, encoded(picture(1), "GIF"), "a.gif"),
            "x",
            "image: expected PNG, JPEG or WebP; got GIF",
        ),
        (upload(page, b"<svg/>", "a.svg"), "x", "image: the bytes are not an image that can be read"),
        (upload(page, encoded(noise)), "x", "expected at most 10000 pixels; got 200 x 200; make it smaller"),
    ]
    for photo, instruction, message in faults:
        found = outcome(page, photo, instruction)
        assert message in found["error"]


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "https://example.com/a.png", "{}/../secret.png", "{}", "file:///etc/passwd", "", 7, None],
)
def test_nothing_but_uploads_is_read(path, page):
    uploads = Path(upload(page, encoded(picture(1)))["path"]).parents[1]
    (uploads.parent / "secret.png").write_bytes(encoded(picture(2)))
    named = path.format(uploads) if isinstance(path, str) else path
    assert join(page, file_of(named)).status_code == 422
    assert join(page, None, [{"deep": file_of(named)}]).status_code == 422
    body = {"data": [file_of(named)], "fn_index": number_of(page, "load_example"), "session_hash": "s"}
    for route in ("run/predict", "run/predict/", "queue/join", "queue/join/"):
        assert page.post(f"/gradio_api/{route}", json=body).status_code == 422


def test_the_page_is_told_why_files_are_refused(page):
    photo = upload(page, encoded(picture(1)))
    Path(photo["path"]).unlink()  # as gradio does after an hour
    reasons = {GONE: join(page, photo), REFUSED: join(page, [photo, file_of("/etc/passwd")])}
    for reason, answer in reasons.items():
        assert answer.status_code == 422
        assert answer.json() == {"error": reason, "detail": reason}


def test_an_address_in_data_is_not_read(page):
    content = base64.b64encode(encoded(picture(1))).decode()
    photo = upload(page, encoded(picture(1))) | {"url": f"data:image/png;base64,{content}"}
    assert "data" in outcome(page, photo)  # the upload is read, and not its address


@pytest.mark.parametrize(
    "route",
    [
        "/gradio_api/file=http://example.com/a.png",
        "/gradio_api/file=/etc/passwd",
        f"/gradio_api/file={ROOT}/pyproject.toml",
        "/gradio_api/proxy=http://example.com/a.png",
        "/gradio_api/vibe-code",
        "/gradio_api/runs",
        "/docs",
        "/monitoring",
    ],
)
def test_other_routes_are_closed(route, page):
    assert page.get(route).status_code in (403, 404)


def test_foreign_pages_and_large_uploads_are_refused(page):
    assert page.get("/", headers={"Host": "evil.example"}).status_code == 403
    assert page.post("/gradio_api/upload", headers={"Origin": "http://evil.example"}).status_code == 403
    assert page.post("/gradio_api/upload", content=b"0" * (2**20 + 1)).status_code == 413
    body = {"data": ["x" * 2**20], "fn_index": 0}
    assert page.post("/gradio_api/queue/join", content=json.dumps(body)[: 2**20]).status_code == 422
    assert page.post("/gradio_api/run/edit", json={"data": []}).status_code == 404  # past the queue
    body = {"data": [None], "fn_index": number_of(page, "edit")}
    assert page.post("/gradio_api/run/predict", json=body).status_code == 404


def test_the_page_loads_nothing_from_elsewhere(page):
    answer = page.get("/")
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert "fonts.googleapis.com" not in page.get("/theme.css").text
    assert "It knows only drawn shapes of 64 × 64 pixels" in answer.text
    assert page.get("/config").json()["analytics_enabled"] is False


@pytest.mark.slow
def test_a_second_user_waits(page):
    photo = upload(page, encoded(picture(1)))
    together.clear()
    for user in ("a", "b"):
        assert join(page, photo, count=1, by="slow", session=user).status_code == 200
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda user: list(messages(page, user)), ("a", "b"))
    assert first[-1]["success"]
    assert second[-1]["success"]
    assert set(together) == {1}
    assert any(message.get("rank") is not None for message in second if message["msg"] == "estimation")


def test_an_example_fills_the_fields(page):
    body = {"data": [1], "fn_index": number_of(page, "load_example"), "session_hash": "s"}
    photo, instruction = page.post("/gradio_api/run/predict", json=body).json()["data"]
    assert instruction["value"] == SAMPLES.instruction[1]
    content = page.get("/gradio_api/file=" + photo["value"]["path"]).content
    assert (load_image(io.BytesIO(content)) - SAMPLES.source[1]).abs().max() < 1 / 255


@pytest.mark.slow
def test_browsers_ask_for_the_token(tmp_path):
    with page_of(tmp_path, token=TOKEN) as page:
        refused = page.get("/")
        assert refused.status_code == 401
        assert "Basic" in refused.headers["www-authenticate"]
        assert page.get("/gradio_api/info").status_code == 401
        assert page.get("/", auth=("any", TOKEN)).status_code == 200


def test_a_missing_package_is_named(monkeypatch, capsys):
    plain = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *a: None if name == "gradio" else plain(name, *a))
    assert cli.main(["app", "--world", "shapes"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("rewardedit: app needs gradio: pip install ")
    assert "'gradio<7,>=6.0'" in error


def test_what_became_of_graphs_is_printed_at_the_end(monkeypatch, capsys):
    def one_edit(workbench, world):
        workbench.editor(SAMPLES.source[:1], SAMPLES.instruction[:1])

    monkeypatch.setattr("rewardedit.app.run.run_app", one_edit)
    words = ["app", "--world", "shapes", "--scorer", "l1", "--steps", "1", "--graphs"]
    assert cli.main(words) == 0
    assert "graphs: not recorded (no GPU)\n" in capsys.readouterr().out


def test_other_machines_need_a_token(monkeypatch, capsys):
    monkeypatch.delenv("REWARDEDIT_TOKEN", raising=False)
    assert cli.main(["app", "--world", "shapes", "--host", "0.0.0.0"]) == 2
    assert "expected a token, as other machines can reach it" in capsys.readouterr().err


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """`rewardedit app` in a process, and its address."""
    folder = tmp_path_factory.mktemp("tmp")
    command = [sys.executable, "-m", "rewardedit", "app", "--world", "shapes", "--scorer", "l1"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    with subprocess.Popen(
        [*command, "--port", "0"], stderr=subprocess.PIPE, text=True, env=env, cwd=folder
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr)
        address = next(line for line in lines if line.startswith("page: ")).split()[1]
        yield process, address, folder
        process.kill()


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")
def test_a_browser_shows_the_page(process, tmp_path):
    _, address, _ = process
    flags = [*FLAGS, "--virtual-time-budget=15000", f"--user-data-dir={tmp_path}", "--dump-dom"]
    done = subprocess.run([BROWSER, *flags, address], check=True, timeout=120, capture_output=True, text=True)
    for text in ("Instruction", "Candidates", "Changed area", "Examples"):
        assert text in done.stdout


@pytest.mark.slow
def test_the_command_ends_and_leaves_nothing(process):
    running, address, folder = process
    assert httpx.get(address).status_code == 200
    (uploads,) = folder.glob("rewardedit-app-*")
    assert len(list(uploads.glob("example-*.png"))) == 4
    with httpx.stream("GET", f"{address}/gradio_api/heartbeat/s") as stream:  # an open page
        next(stream.iter_raw())
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
    assert not uploads.exists()
