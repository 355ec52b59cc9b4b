"""Servers in this process and in others, and edits to send to them."""

import base64
import io
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
from fastapi.testclient import TestClient
from PIL import Image

from rewardedit.batch import EditSample, collate
from rewardedit.scorers import load_scorer
from rewardedit.serving.app import make_app
from rewardedit.serving.run import PatientProtocol, listen
from rewardedit.serving.scorer_set import ScorerSet
from rewardedit.serving.settings import ServeConfig

OWN = Path(__file__).with_name("own_scorers.py")
ROOT = Path(__file__).parents[2]
STRICT = f"{OWN}:strict"
SLOW = f"{OWN}:slow"
L1 = {"l1": "l1"}


def picture(seed: int, width: int = 24, height: int = 16, channels: int = 3) -> Image.Image:
    """An image of its own."""
    shape = (height, width, channels) if channels > 1 else (height, width)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def base64_of(image: Image.Image, kind: str = "PNG") -> str:
    return base64.b64encode(encoded(image, kind)).decode()


def edit(seed: int, width: int = 24, height: int = 16, **fields: Any) -> dict[str, Any]:
    """The fields of an edit, with PIL images."""
    images = {"source": picture(2 * seed, width, height), "edited": picture(2 * seed + 1, width, height)}
    return {"id": str(seed), **images, "instruction": f"make it {seed}", **fields}


def item(fields: dict[str, Any]) -> dict[str, Any]:
    """The edit as an item of a request."""
    return {name: base64_of(v) if isinstance(v, Image.Image) else v for name, v in fields.items()}


def direct(spec: Any, fields: dict[str, Any]) -> float:
    """The score of an edit by a direct call."""
    return float(load_scorer(spec)(collate([EditSample(**fields)])).score[0])


def wait_until_ready(client: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while client.get("/health").status_code != 200:
        assert time.monotonic() < end, "not ready in time"
        time.sleep(0.02)


@contextmanager
def client_of(specs: dict[str, Any], **settings: Any) -> Iterator[TestClient]:
    """A client of an application in this process."""
    app = make_app(ScorerSet(specs), ServeConfig(**settings))
    with TestClient(app, base_url="http://localhost") as client:
        wait_until_ready(client)
        yield client


@contextmanager
def server_of(specs: dict[str, Any], **settings: Any) -> Iterator[str]:
    """The address of a server in a thread of this process."""
    config = ServeConfig(port=0, **settings)
    listener = listen(config)
    app = make_app(ScorerSet(specs), config)
    options = {"http": PatientProtocol, "ws": "none", "log_level": "warning"}
    server = uvicorn.Server(uvicorn.Config(app, **options))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    address = "http://{}:{}".format(*listener.getsockname())
    headers = {"Authorization": f"Bearer {config.token}"}
    with httpx.Client(base_url=address, headers=headers) as client:
        try:
            wait_until_ready(client)
            yield address
        finally:
            server.should_exit = True
            thread.join()


class ServerProcess:
    """`rewardedit serve` in a process of its own."""

    def __init__(self, *words: str, **environment: str) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        command = [sys.executable, "-m", "rewardedit", "serve", "--port", "0", *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT)
        self.lines: list[str] = []
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if line == "ready\n":
                self.ready.set()

    @property
    def address(self) -> str:
        found = re.search(r" for (http://\S+)", "".join(self.lines))  # Ray names its own address before
        assert found, self.lines
        return found[1]

    def __enter__(self) -> "ServerProcess":
        assert self.ready.wait(300), self.lines
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(60)

    def workers(self) -> list[int]:
        """Process ids of the workers."""
        children = []
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():  # each lists those that it started
            children += map(int, (thread / "children").read_text().split())
        return [pid for pid in children if "spawn_main" in _command(pid)]

    def memory(self) -> int:
        """Bytes of memory that the server process uses."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return 1024 * int(found[1])


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
