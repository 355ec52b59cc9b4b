"""Throughput of `rewardedit serve` beside direct calls: python benchmarks/serving.py [--write]

A scorer is called directly in full batches, and then served to clients that send one edit each and wait for
its score, in threads of another process. Images are random, PNG; models have random weights of full size.
"""

import base64
import io
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import read_command_line
from PIL import Image

from rewardedit import devices
from rewardedit.batch import EditSample, collate_pixels
from rewardedit.batch.collating import PixelSample
from rewardedit.cli import quiet
from rewardedit.images import view_pixels
from rewardedit.scorers import load_scorer
from rewardedit.scoring import score_batch

CLIENTS = 16
SIZE = 224
ROUNDS = 8  # full batches, and requests of each client


def images(seed: int, size: int) -> tuple[Image.Image, Image.Image]:
    """Source and edit: a few random colours in blocks, which PNG compresses as it does photographs."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(2):
        blocks = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        noise = generator.integers(0, 16, (size, size, 3), dtype=np.uint8)
        large = np.asarray(Image.fromarray(blocks).resize((size, size)))
        made.append(Image.fromarray(np.minimum(large, 239) + noise))
    return made[0], made[1]


def item(seed: int, size: int) -> dict[str, str]:
    """The fields of a request."""
    fields = {"instruction": f"make it {seed}"}
    for name, image in zip(("source", "edited"), images(seed, size), strict=True):
        file = io.BytesIO()
        image.save(file, "PNG", compress_level=1)
        fields[name] = base64.b64encode(file.getvalue()).decode()
    return fields


def direct_rate(spec: Any, size: int, batch: int, rounds: int) -> float:
    """Edits per second of the scorer, called in full batches of decoded images."""
    scorer = {"direct": load_scorer(spec).to(devices.default_device())}
    samples = []
    for seed in range(batch):
        source, edited = images(seed, size)
        sample = EditSample(str(seed), source, f"make it {seed}", edited)
        pixels = {"source": view_pixels(source, 3), "edited": view_pixels(edited, 3)}
        samples.append(PixelSample(**(vars(sample) | pixels)))
    score_batch(collate_pixels(samples), scorer)
    began = time.perf_counter()
    for _ in range(rounds):
        score_batch(collate_pixels(samples), scorer)
    return rounds * batch / (time.perf_counter() - began)


def ask(address: str, size: int, clients: int, rounds: int, results: Any) -> None:
    """Sends requests from threads of this process; puts the seconds of all, and the seconds of each."""
    import requests

    items = [item(seed, size) for seed in range(clients)]
    seconds: list[float] = []
    start = threading.Barrier(clients + 1)

    def work(number: int) -> None:
        with requests.Session() as session:
            for turn in range(rounds + 1):
                if turn == 1:
                    start.wait()  # the first request warms up
                began = time.perf_counter()
                answer = session.post(f"{address}/v1/score", json=items[number], timeout=600)
                answer.raise_for_status()
                if turn:
                    seconds.append(time.perf_counter() - began)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    results.put((time.perf_counter() - began, seconds))


def served_rate(spec: Any, size: int, clients: int, rounds: int) -> dict[str, float]:
    """Edits per second and seconds to an answer of a server in this process, asked by another."""
    import uvicorn

    from rewardedit.serving.app import make_app
    from rewardedit.serving.run import PatientProtocol, listen
    from rewardedit.serving.scorer_set import ScorerSet
    from rewardedit.serving.settings import ServeConfig

    config = ServeConfig(port=0, batch_size=clients)
    listener = listen(config)
    ready = threading.Event()
    app = make_app(ScorerSet({"served": spec}), config, on_ready=ready.set)
    server = uvicorn.Server(uvicorn.Config(app, http=PatientProtocol, ws="none", log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    ready.wait()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=ask, args=(address, size, clients, rounds, results))
    process.start()
    total, seconds = results.get()
    process.join()
    server.should_exit = True
    thread.join()
    return {
        "edits_per_second": clients * rounds / total,
        "median_ms": 1000 * statistics.median(seconds),
        "p95_ms": 1000 * statistics.quantiles(seconds, n=20)[-1],
    }


def measure(spec: Any, size: int = SIZE, clients: int = CLIENTS, rounds: int = ROUNDS) -> dict[str, float]:
    """Rates of both, and their ratio."""
    direct = direct_rate(spec, size, clients, rounds)
    served = served_rate(spec, size, clients, rounds)
    ratio = served["edits_per_second"] / direct
    return {
        "direct_edits_per_second": direct,
        **served,
        "ratio": ratio,
        "pixels": size,
        "n": clients * rounds,
    }


def save_dino(folder: Path) -> None:
    """A DINOv2 of full size with random weights."""
    from transformers import BitImageProcessorPil, Dinov2Config, Dinov2Model

    Dinov2Model(Dinov2Config(image_size=518)).save_pretrained(folder)
    side = {"height": 224, "width": 224}
    BitImageProcessorPil(size={"shortest_edge": 256}, crop_size=side).save_pretrained(folder)


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        save_dino(Path(folder))
        figures = measure({"dino_i": {"checkpoint": folder}})
    print(figures)
    line.keep("serving", {"clients": CLIENTS, "scorers": {"dino_i": figures}, "n": figures["n"]})
