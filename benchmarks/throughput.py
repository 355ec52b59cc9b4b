"""Cost of scores, and of samples of the shapes world: python benchmarks/throughput.py

Milliseconds per edit, one by one and in batches of 64 (16 for the large models); and for 8 candidates per
source, with the source side prepared once, and again for every candidate. Small models at 64 pixels; LPIPS
(AlexNet) and DINOv2 (base) at their own size, with random weights, which cost the same as trained ones.
The world's samples are counted in samples per second.
"""

import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from command_line import read_command_line
from transformers import BitImageProcessorPil, Dinov2Config, Dinov2Model

from rewardedit import EditBatch, devices, load_scorer
from rewardedit.cli import quiet
from rewardedit.data.worlds import world
from rewardedit.scorers import Scorer
from rewardedit.scorers.load import BUILT_IN
from rewardedit.shapes import Shapes

BATCH = 64
CANDIDATES = 8
ROUNDS = 5
HEAVY = {"batch": 16, "rounds": 1}  # for the large models


def milliseconds(work: Callable[[], object], edits: int, rounds: int) -> float:
    """Median of several rounds, per edit, after one round to warm up."""
    times = []
    for _ in range(rounds + 1):
        began = now()
        work()
        times.append(now() - began)
    return 1000 * sorted(times[1:])[rounds // 2] / edits


def now() -> float:
    """Time after the GPU, if any, has finished all its work."""
    if devices.default_device() == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.no_grad()
def measure(
    scorer: Scorer, size: int, batch: int = BATCH, rounds: int = ROUNDS, device: str = "cpu"
) -> dict[str, float]:
    """Milliseconds per edit in the four modes; scorer and images are on `device`."""
    samples = Shapes("val").batch(0, batch)
    grow = torch.nn.Upsample((size, size))
    fields = {"target": grow(samples.target), "source_caption": samples.source_caption}
    whole = EditBatch(
        grow(samples.source),
        samples.instruction,
        grow(samples.target),
        target_caption=samples.target_caption,
        **fields,
    ).to(device)
    alone = [whole[i : i + 1] for i in range(min(batch, 16))]
    sources = batch // CANDIDATES
    index = [i for i in range(sources) for _ in range(CANDIDATES)]
    many = EditBatch(
        whole.source[index],
        [whole.instruction[i] for i in index],
        whole.edited[: len(index)],
        target=whole.edited[: len(index)],
        source_caption=[samples.source_caption[i] for i in index],
        target_caption=[samples.target_caption[i] for i in index],
    )

    def prepared() -> None:
        scorer(many, scorer.prepare(whole.source[:sources], whole.instruction[:sources]).take(index))

    return {
        "one by one": milliseconds(lambda: [scorer(edit) for edit in alone], len(alone), rounds),
        "batched": milliseconds(lambda: scorer(whole), batch, rounds),
        f"{CANDIDATES} candidates": milliseconds(lambda: scorer(many), len(index), rounds),
        f"{CANDIDATES} candidates, prepared": milliseconds(prepared, len(index), rounds),
    }


def scorers(folder: Path, only: tuple[str, ...] = ()) -> dict[str, tuple[Scorer, int]]:
    """Every built-in scorer (or some of them), and the image size for its measurement."""
    from tests.scorers.golden.make_golden import write_random_weights

    write_random_weights(folder / "lpips", "alex")
    Dinov2Model(Dinov2Config(image_size=518)).save_pretrained(folder / "dino")
    side = {"height": 224, "width": 224}
    BitImageProcessorPil(size={"shortest_edge": 256}, crop_size=side).save_pretrained(folder / "dino")
    heavy = {
        "lpips": ({"weights": str(folder / "lpips")}, 224),
        "dino_i": ({"checkpoint": str(folder / "dino")}, 224),
    }
    small = world("shapes").scorers
    setups = {name: heavy.get(name, (small.get(name, {}), 64)) for name in BUILT_IN}
    wanted = only or tuple(setups)
    return {
        name: (load_scorer(name, **options), size)
        for name, (options, size) in setups.items()
        if name in wanted
    }


def samples_a_second(samples: int = 2800, rounds: int = ROUNDS) -> float:
    """Samples of the shapes world that are made and drawn per second, the median over rounds
    of different samples.
    """
    firsts = itertools.count(0, samples)
    return 1000 / milliseconds(lambda: Shapes().batch(next(firsts), samples), samples, rounds)


if __name__ == "__main__":
    import sys

    line = read_command_line(__doc__)
    quiet()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    with tempfile.TemporaryDirectory() as folder:
        costs = {}
        for name, (scorer, size) in scorers(Path(folder)).items():
            how = HEAVY if size > 64 else {"batch": BATCH, "rounds": ROUNDS}
            costs[name] = {"pixels": size, "batch": how["batch"], **measure(scorer, size, **how)}
            print(name, costs[name])
    rate = samples_a_second()
    print(f"shapes world: {rate:.0f} samples a second")
    line.keep("throughput", {"milliseconds_per_edit": costs, "samples_per_second": rate})
