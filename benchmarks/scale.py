"""Effect of the number of rows, workers and processes on a stage: python benchmarks/scale.py [PART …]

rows: relabelling 10,000 and 200,000 rows of the shapes world by l1: peak memory, and rows per second after
the first shard; medians of three alternating runs.
workers: scoring photographs at a side of 256 pixels: share of time that the scorer waits for rows, with and
without processes that read ahead; one thread scores.
processes: the same photographs read and scored by one process and by two, each with one thread and no
workers, measured from when all are ready until the stage is complete.

Needs two idle cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import skimage.data
import torch
from command_line import WRITE, CommandLine
from PIL import Image
from record import RESULTS

from rewardedit import load_scorer
from rewardedit.data import open_rows, read_batches
from rewardedit.data.datasets import DataConfig
from rewardedit.processes import processes
from rewardedit.scoring import score_batch, score_shards

NUMBERS = (10_000, 200_000)
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "cat", "rocket")  # in scikit-image
SIDE = 256
BATCH = 16
PARTS = ("rows", "workers", "processes")


def relabel(rows: int) -> dict[str, float]:
    """Peak GiB of a relabelling, and its rows per second after the first shard."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["relabel", "data.name=shapes", f"data.limit={rows}", "relabel.scorer=l1", "--out", folder]
        seen: list[tuple[float, int]] = []
        over = threading.Event()

        def watch() -> None:
            shards = Path(folder) / "relabelled"
            while not over.wait(0.05):
                count = len(list(shards.glob("scores-*.parquet"))) if shards.is_dir() else 0
                if count and (not seen or count > seen[-1][1]):
                    seen.append((time.monotonic(), count))

        watcher = threading.Thread(target=watch)
        watcher.start()
        command = [sys.executable, "-c", "import sys; from rewardedit.cli import main; sys.exit(main())"]
        process = subprocess.Popen([*command, *words])
        _, status, usage = os.wait4(process.pid, 0)
        over.set()
        watcher.join()
        if status:
            raise RuntimeError(f"rewardedit {' '.join(words)}: status {os.waitstatus_to_exitcode(status)}")
    (began, first), (ended, last) = seen[0], seen[-1]
    shard = 16 * 64  # rows: see `row_shards`
    return {
        "peak_gib": usage.ru_maxrss / 2**20,
        "rows_per_s": (min(last * shard, rows) - first * shard) / (ended - began),
    }


def middle(runs: list[dict[str, float]]) -> dict[str, float]:
    """Median of each figure."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def photographs(folder: Path, rows: int) -> DataConfig:
    """A table of JPEG files with a side of 512 pixels, cut from real photographs at different places."""
    generator = torch.Generator().manual_seed(0)
    images = [Image.fromarray(getattr(skimage.data, name)()) for name in PHOTOGRAPHS]
    records = []
    for i in range(rows):
        image = images[i % len(images)]
        share = 0.6 + 0.4 * float(torch.rand((), generator=generator))
        box = tuple(round(share * side) for side in image.size)
        image.crop((0, 0, *box)).resize((512, 512)).save(folder / f"{i}.jpg", quality=92)
        record = {"source": f"{i}.jpg", "target": f"{(i * 7 + 3) % rows}.jpg", "instruction": "make it new"}
        records.append(json.dumps(record) + "\n")
    (folder / "rows.jsonl").write_text("".join(records))
    return DataConfig("table", str(folder), size=SIDE)


def waiting(data: DataConfig, workers: int) -> dict[str, float]:
    """Share of time that the scorer waits for rows, and rows per second."""
    torch.set_num_threads(1)
    scorer = {"ssim": load_scorer("ssim")}
    rows = open_rows(data)
    waited = 0.0
    began = asked = time.monotonic()
    for batch in read_batches(rows, SIDE, data.resize, BATCH, fields=(), workers=workers):
        waited += time.monotonic() - asked
        assert batch.pixels is not None
        score_batch(batch.pixels, scorer)
        asked = time.monotonic()
    whole = asked - began
    return {"waiting": waited / whole, "rows_per_s": len(rows) / whole}


def stage_seconds(folder: Path, data: DataConfig) -> float:
    """Seconds that this process and the others take to score all rows."""
    torch.set_num_threads(1)
    rows = open_rows(data)
    scorer = {"l1": load_scorer("l1")}
    processes().wait_for_everyone()
    began = time.monotonic()
    score_shards(folder, {}, rows, lambda: scorer, SIDE, batch=4, workers=lambda rows: 0)
    return time.monotonic() - began


def launched(count: int, data: DataConfig) -> float:
    """Seconds of the slowest of `count` processes."""
    with tempfile.TemporaryDirectory() as folder:
        shared_env = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "ACCELERATE_USE_CPU": "true"}
        shared_env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "OMP_NUM_THREADS": "1"}
        started = []
        for rank in range(count):
            env = {**os.environ, **shared_env, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            words = [sys.executable, __file__, "--stage", f"{folder}/stage", "--photographs", data.path]
            started.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True))
        return max(float(process.communicate()[0].splitlines()[-1]) for process in started)


def measure(parts: list[str], rows: int) -> dict[str, Any]:
    """Figures of these parts."""
    figures: dict[str, Any] = {"n": max(NUMBERS)}
    if "rows" in parts:
        # Alternately, since a machine's speed varies over minutes; the smaller number of rows takes seconds.
        runs = [{number: relabel(number) for number in NUMBERS} for _ in range(3)]
        by_rows = {str(number): middle([run[number] for run in runs]) for number in NUMBERS}
        figures |= {key: {n: f[key] for n, f in by_rows.items()} for key in ("peak_gib", "rows_per_s")}
    with tempfile.TemporaryDirectory() as folder:
        if set(parts) & {"workers", "processes"}:
            data = photographs(Path(folder), rows)
        if "workers" in parts:
            threads = torch.get_num_threads()
            figures["workers"] = {str(number): waiting(data, number) for number in (0, 1)}
            torch.set_num_threads(threads)
        if "processes" in parts:
            seconds = {str(count): launched(count, data) for count in (1, 2)}
            figures["processes"] = {"seconds": seconds, "two_vs_one": seconds["2"] / seconds["1"]}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="What rows, workers and processes change of a stage.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without one")
    parser.add_argument("--photographs", help="a folder that this program made")
    parser.add_argument("--stage", help="score them into this folder, as one of several processes")
    parser.add_argument("--rows", type=int, default=640, help="photographs")
    parser.add_argument("--write", action="store_true", help=WRITE)
    args = parser.parse_args()
    if args.stage:
        print(stage_seconds(Path(args.stage), DataConfig("table", args.photographs, size=SIDE)))
        return
    parts = args.parts or list(PARTS)
    before = RESULTS / "scale.json"
    kept = json.loads(before.read_text()) if before.is_file() else {}
    figures = {key: kept[key] for key in ("peak_gib", "rows_per_s", "workers", "processes") if key in kept}
    words = [word for word in sys.argv[1:] if word != "--write"]
    CommandLine(Path(__file__), words, args.write).keep("scale", figures | measure(parts, args.rows))


if __name__ == "__main__":
    main()
