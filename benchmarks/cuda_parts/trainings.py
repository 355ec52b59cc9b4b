"""Parts that train by the recipes' own trainers: reward feedback learning, the other trainers, the
quickstart.

A measured training is left after a few updates, before any checkpoint, preview or result is written.
"""

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from cuda_parts.figures import GIB, Figures, device, now, peak_gib, reset_peak
from rewardedit.cli import load_recipe
from rewardedit.cli import main as command_line
from rewardedit.data import require_size
from rewardedit.scorers import load_scorer
from rewardedit.scorers.vifi_clip import ViFiClip
from rewardedit.trainers import vifi_clip
from rewardedit.training.loop import TrainLoop
from rewardedit.training.memory.blueprint import load_blueprint
from rewardedit.training.memory.peak import OVERHEAD
from rewardedit.training.memory.stages import refl_memory, reward_conditioned_memory
from rewardedit.training.reward import load_rewards

STEPS = 3  # updates of a training: one to warm up and two that are measured
ROWS, MICRO_BATCH = 8, 2  # rows of an update of reward feedback learning, and of one of its passes
ROLLOUT = 50  # denoising steps of its rollouts
Run = tuple[str, list[str]]  # a recipe and its settings


class Measured(Exception):
    """Leaves a training whose updates have been measured."""


@contextmanager
def stamped(steps: int) -> Iterator[list[float]]:
    """Collects the times at which a training's updates end, and leaves it after so many. The peak of
    memory is that of the updates after the first, which creates the optimizer's state.
    """
    times: list[float] = []
    update = TrainLoop.update

    def stamp(loop: TrainLoop) -> None:
        update(loop)
        times.append(now())
        if len(times) == 1:
            reset_peak()
        if len(times) == steps:
            raise Measured

    TrainLoop.update = stamp
    try:
        with suppress(Measured):
            yield times
    finally:
        TrainLoop.update = update


def train(recipe: str, words: list[str], folder: Path) -> dict[str, float]:
    """Trains by a recipe for a few updates: seconds and rows per second of an update, seconds up to the
    end of the first one, and peak GiB of the later ones.
    """
    words = [
        *words,
        f"train.max_steps={STEPS + 1}",
        "train.lr_warmup_steps=1",
        "train.tracker=none",
    ]
    module, config = load_recipe(recipe, words)
    began = now()
    with stamped(STEPS) as times:
        module.train(config, folder)
    update = statistics.median(b - a for a, b in itertools.pairwise(times))
    figures = {
        "seconds_per_update": update,
        "rows_per_second": config.train.batch_size / update,
        "seconds_to_first_update": times[0] - began,
    }
    peak = peak_gib()
    return figures if peak is None else {**figures, "peak_gib": peak}


def estimated_gib(recipe: str, words: list[str]) -> float:
    """Estimate of an update's memory before a run, without CUDA's own, which torch does not count either."""
    _, config = load_recipe(recipe, words)
    if isinstance(config, vifi_clip.Config):
        scorer = ViFiClip.from_pretrained(config.checkpoint, config.pooling, config.size)
        stages = vifi_clip.memory(config, scorer)
    else:
        editor = load_blueprint(config.base, require_size(config.data))
        if "refl" in recipe:
            scorers = load_rewards(config.reward.scorer, config.monitor.held_out)
            stages = refl_memory(config, editor, scorers)
        else:
            stages = reward_conditioned_memory(config, editor, load_scorer(config.relabel.scorer))
    return (max(stages.get(name, 0) for name in ("step", "update")) - OVERHEAD) / GIB


def compare_memory(figures: Figures, runs: dict[str, Run]) -> None:
    """Adds the estimate of each run's memory, and beside it the measured peak and their ratio."""
    for kind, (recipe, words) in runs.items():

        def compared(kind: str = kind, recipe: str = recipe, words: list[str] = words) -> dict[str, float]:
            memory = {"estimated_gib": estimated_gib(recipe, words)}
            peak = figures.values.get(kind, {}).get("peak_gib")
            if peak is None:
                return memory
            return {**memory, "peak_gib": peak, "estimated_over_peak": memory["estimated_gib"] / peak}

        figures.measure(f"{kind}, memory", compared)


def measure_runs(figures: Figures, runs: dict[str, Run], folder: Path) -> None:
    """Trains by each recipe in a folder of its own."""
    for number, (kind, (recipe, words)) in enumerate(runs.items()):
        figures.measure(kind, partial(train, recipe, words, folder / f"run-{number}"))


def save_models(folder: Path, tiny: bool) -> tuple[Path, str]:
    """Writes the editor that the runs start from, with random weights; returns its folder, and the folder or
    name of a CLIP.
    """
    from sd15 import make_pipeline, save_clip
    from torch import float16

    # Half precision on disk: half the time to write and to read it.
    make_pipeline(str(device()), narrow=tiny).to(float16).save_pretrained(folder / "base")
    return folder / "base", "shapes/clip" if tiny else str(save_clip(folder / "clip"))


def shared_settings(base: Path, size: int, tiny: bool) -> list[str]:
    """Settings of all runs that train an editor."""
    return [
        f"base={base}",
        f"data={{name: shapes, split: train, limit: {4 if tiny else 32}}}",  # in place of the recipe's own
        f"data.size={size}",
        "train.validate_every=0",
        "evaluate=null",
        *(['train.mixed_precision="no"'] if tiny else []),
    ]


def refl_runs(base: Path, clip: str, tiny: bool) -> dict[str, Run]:
    """Recipes and settings of reward feedback learning, the most wanted first."""
    rows, micro_batch, steps = (2, 1, 2) if tiny else (ROWS, MICRO_BATCH, ROLLOUT)
    settings = [
        f"train.batch_size={rows}",
        f"train.micro_batch_size={micro_batch}",
        f"reward.scorer={{vifi_clip: {{checkpoint: {clip}, pooling: temporal}}}}",
        f"reward.num_inference_steps=[{steps}]",
        "monitor.n=2",
        "monitor.num_inference_steps=2",
        "monitor.held_out={ssim: {against: target}}",
    ]
    runs = {}
    for size in (64,) if tiny else (512, 256):
        words = [*shared_settings(base, size, tiny), *settings]
        runs[f"refl, {size} px"] = ("magicbrush-refl", words)
        if not tiny:
            runs[f"refl, LoRA, {size} px"] = ("magicbrush-refl-24gb", words)
    return runs


def papers_update(tiny: bool, rounds: int) -> dict[str, float]:
    """Seconds and memory of an update of the papers' loop with as many rows, steps and pixels: each pass
    of the micro-batch rolls out by itself, encodes everything again and keeps all activations.
    """
    import refl as loops

    rows, micro_batch, steps = (2, 1, 2) if tiny else (ROWS, MICRO_BATCH, ROLLOUT)
    work = loops.full_size(micro_batch, steps, str(device()), tiny, size=512, checkpointing=False)
    loops.papers_step(work, loops.Clock(work.pipe.device))  # warms up
    reset_peak()
    clock = loops.Clock(work.pipe.device)
    for _ in range(rounds):
        loops.papers_step(work, clock)
    spent = {part: statistics.median(times) for part, times in clock.spent.items()}
    optimizer = spent.pop("optimizer")
    update = rows // micro_batch * sum(spent.values()) + optimizer
    figures = {"seconds_per_update": update, "rows_per_second": rows / update}
    peak = peak_gib()
    return figures if peak is None else {**figures, "peak_gib": peak}


def against_papers(ours: dict[str, float], papers: dict[str, float]) -> dict[str, float]:
    """Speed and memory of an update as shares of those of the papers' loop."""
    shares = {"speed": papers["seconds_per_update"] / ours["seconds_per_update"]}
    if "peak_gib" in ours and "peak_gib" in papers:
        shares["memory"] = ours["peak_gib"] / papers["peak_gib"]
    return shares


def refl(figures: Figures, tiny: bool) -> None:
    """Updates of reward feedback learning, full and LoRA, beside the papers' loop; then memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = refl_runs(*save_models(folder, tiny), tiny)
        first, *others = runs
        measure_runs(figures, {first: runs[first]}, folder / "first")
        figures.measure("papers' loop", partial(papers_update, tiny, 1 if tiny else 2))
        compared = [figures.values[kind] for kind in (first, "papers' loop")]
        if all("seconds_per_update" in kind for kind in compared):
            figures.add("refl over papers' loop", against_papers(*compared))
        measure_runs(figures, {kind: runs[kind] for kind in others}, folder / "others")
        compare_memory(figures, runs)


def trainer_runs(base: Path, clip: str, tiny: bool) -> dict[str, Run]:
    """Recipes and settings of the other trainers, the cheap ones first."""
    pairs = [
        f"checkpoint={clip}",
        "pooling=temporal",
        f"data={{name: shapes, split: train, limit: {4 if tiny else 32}}}",
        "held_out=null",
        f"train.batch_size={4 if tiny else 8}",
        *(['train.mixed_precision="no"'] if tiny else []),
    ]
    runs = {"vifi_clip": ("humanedit-vifi-clip", pairs)}
    recipe = "magicbrush-reward-conditioned"
    for size, rows in ((64, 1),) if tiny else ((256, 32), (512, 4)):
        words = [
            *shared_settings(base, size, tiny),
            f"train.batch_size={rows}",
            "train.micro_batch_size=null",
            "candidates=null",
            "relabel.scorer={clip_d: {checkpoint: shapes/clip}}",
        ]
        runs[f"reward_conditioned, LoRA, {size} px"] = (f"{recipe}-lora-24gb", words)
        if not tiny:
            runs[f"reward_conditioned, {size} px"] = (recipe, words)
    return runs


def trainers(figures: Figures, tiny: bool) -> None:
    """Updates of the other full-size recipes on random weights; then memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = trainer_runs(*save_models(folder, tiny), tiny)
        measure_runs(figures, runs, folder)
        compare_memory(figures, runs)


def quickstart(figures: Figures, tiny: bool) -> None:
    """Runs the unchanged recipe (shortened on a CPU): its seconds and the oracle's ratings."""
    short = [
        "data.limit=14",
        "train.max_steps=2",
        "train.batch_size=4",
        "train.lr_warmup_steps=1",
        "evaluate.n=7",
        "evaluate.val_n=7",
        "evaluate.num_inference_steps=[1]",
        "evaluate.guidance_scale=[1.0]",
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "quickstart"
        began = time.monotonic()
        code = command_line(["--debug", "train", "quickstart", *(short if tiny else []), "--out", str(run)])
        figures.add("seconds", round(time.monotonic() - began, 1))
        figures.failed = code != 0
        metrics = run / "metrics.json"
        if metrics.is_file():
            figures.add("oracle", json.loads(metrics.read_text())["oracle"])
