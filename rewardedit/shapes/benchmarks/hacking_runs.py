"""Training of the honest and hacked runs that hacking.py judges, and storage of their
results.
"""

import json
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import in_world, load_scorer
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.data import DataConfig, open_rows
from rewardedit.diffusion.editors import Editor, SamplingConfig, load_editor
from rewardedit.evaluation.hacking import hacking_signs
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.files import write_json
from rewardedit.models import digests
from rewardedit.scorer_spec import spec_name
from rewardedit.scorers import Scorer
from rewardedit.scoring import score_batch
from rewardedit.shapes import Shapes, ShapesOracle
from rewardedit.shapes.vocabulary import WORLD_VERSION
from rewardedit.shapes.world import ShapesBatch, join
from rewardedit.stages import stage as stage_module
from rewardedit.trainers import refl
from rewardedit.training.latents import cache_sources, make_cache
from rewardedit.training.reward import RewardConfig
from rewardedit.training.reward_scale import fit_reward_scale
from rewardedit.training.rollouts import RolloutPrompts
from rewardedit.training.trainable import RewardLabels, TrainConfig, load_base

BASE = "shapes/editor"
DATA = DataConfig("shapes", limit=280, offset=140_000)
# Sampling of the fixed prompts: 0.25 points below ten steps at their best on val, at 0.4 of their cost.
SETTINGS = SamplingConfig(num_inference_steps=4, guidance_scale=1.5, image_guidance_scale=1.2)
N = 80  # fixed prompts of a run
POOLS = {"calibration": (0, 280), "test": (280, 1120)}  # rows of val for a run's prompts
# With the calibration prompts, reward-only runs serve to choose settings only; no result uses them.
SEEDS = {
    ("calibration", "honest"): range(22),
    ("calibration", "reward_only"): range(100, 124),
    ("test", "honest"): range(400, 464),
    ("test", "reward_only"): range(500, 524),
}
# Updates of a run, and between two checks. A reward-only run ends earlier, once the oracle's mean has fallen.
STEPS = {"honest": 12, "reward_only": 60}
CHECK_EVERY = {"honest": 3, "reward_only": 6}
CHECKS = {kind: steps // CHECK_EVERY[kind] for kind, steps in STEPS.items()}
FALL = 0.35  # fall of the oracle's mean (0–10), with its whole interval below zero, that defines hacking
HELD_OUT = {"adiee": "ssim", "vifi_clip": "ssim", "clip_d": "ssim", "l1": "clip_i", "ssim": "clip_i"}


def settings_of(kind: str, seed: int) -> tuple[RewardConfig, TrainConfig]:
    """Training settings of a seed's run; reward, weight and learning rate are drawn at random."""
    rng = np.random.default_rng(seed)
    # Scored at the end of a rollout: the first steps' predictions are blurred, and rewarding them does not
    # raise the reward of the fixed prompts' edits.
    rollout: dict[str, Any] = {"num_inference_steps": (4, 6), "stop_before_end": (0, 1), "scored": "pred_x0"}
    train: dict[str, Any] = {
        "max_steps": STEPS[kind],
        "lr_warmup_steps": 3,
        "ema": None,
        "null_text_target": "source",
        "seed": seed,
        "tracker": "none",
        "validate_every": CHECK_EVERY[kind],
        "validation_rows": 1,
        "log_every": CHECK_EVERY[kind],
    }
    if kind == "reward_only":
        scorer = str(rng.choice(["adiee", "vifi_clip", "clip_d", "l1"], p=[0.3, 0.3, 0.2, 0.2]))
        lr = float(10 ** rng.uniform(-3.5, -3.1))
        reward = RewardConfig(
            in_world(scorer), weight=1.0, diffusion_weight=0.0, scale="quantiles", **rollout
        )
        return reward, TrainConfig(lr=lr, batch_size=8, **train)
    scorer = str(rng.choice(["adiee", "vifi_clip", "clip_d", "l1", "ssim"], p=[0.3, 0.3, 0.2, 0.1, 0.1]))
    # How much of the source is kept is a reward that soon has the source copied: it takes a smaller weight.
    weight = float(10 ** rng.uniform(-2.0, -1.3)) * (0.05 if scorer in ("l1", "ssim") else 1.0)
    lr = float(10 ** rng.uniform(-4.5, -3.9))
    reward = RewardConfig(in_world(scorer), weight=weight, scale="quantiles", **rollout)
    return reward, TrainConfig(lr=lr, lr_scheduler="cosine", batch_size=4, **train)


def require_same(folder: Path) -> None:
    """Stores the settings that all runs of a folder share.

    Raises:
        ValueError: if the folder has runs with other settings.
    """
    made_of = stage_module.plain(
        {
            "world": WORLD_VERSION,
            "models": digests(),
            "data": DATA,
            "fixed prompts": SETTINGS,
            "n": N,
            "pools": POOLS,
            "checks": [CHECK_EVERY, STEPS, FALL],
        }
    )
    mark = folder / "made_of.json"
    if not mark.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(mark, made_of)
    stage_module.require_same(folder, json.loads(mark.read_text()), made_of)


def described(kind: str, seed: int) -> dict[str, Any]:
    """Settings of a seed's run, as stored in its file."""
    reward, train = settings_of(kind, seed)
    return stage_module.plain({"scorer": spec_name(reward.scorer), "reward": reward, "train": train})


@cache
def scorer_of(name: str) -> Scorer:
    """The scorer; a held-out one compares with the target."""
    return load_scorer(name, **({"against": "target"} if name == "ssim" else {}))


class Prompts:
    """A pool of prompts of the val split, encoded once, with the base's edits of them."""

    def __init__(self, folder: Path, pool: str) -> None:
        self.first, last = POOLS[pool]
        self.samples = Shapes("val").batch(self.first, last - self.first)
        base = load_editor(BASE)
        speed_up(base)
        self.encoded = base.encode(self.samples.source, self.samples.instruction)
        path = folder / f"base-{self.first}.npy"
        if not path.is_file():
            aside = path.with_suffix(f".{os.getpid()}.npy")
            np.save(aside, self.edit(base, list(range(len(self.samples)))).numpy())
            aside.rename(path)
        self.base = torch.from_numpy(np.load(path))

    def edit(self, editor: Editor, rows: list[int]) -> Tensor:
        """The editor's edits of these prompts as bytes, each from its own noise."""
        made = []
        for i in range(0, len(rows), 32):
            chunk = rows[i : i + 32]
            seeds = [self.first + row for row in chunk]
            images = editor.sample(self.encoded.take(chunk), seeds, settings=SETTINGS).to("cpu").images
            made.append((images * 255).round().byte())
        return torch.cat(made)


def take(samples: ShapesBatch, rows: list[int]) -> ShapesBatch:
    """These rows of a batch."""
    return join([samples[row : row + 1] for row in rows])


def rate(samples: ShapesBatch, edited: Tensor) -> np.ndarray:
    """The oracle's ratings of edits given as bytes."""
    return ShapesOracle().rate(samples, edited.float() / 255).score.numpy()


def speed_up(editor: Editor) -> None:
    """Switches to the memory layout in which convolutions are fastest on a CPU."""
    for module in (editor.pipe.unet, editor.pipe.vae):
        module.to(memory_format=torch.channels_last)


class Recorder:
    """Replaces the monitor of a run: keeps the edits at every check.
    With `samples` it stops once the oracle's rating has fallen.
    """

    def __init__(self, prompts: Prompts, rows: list[int], samples: ShapesBatch | None) -> None:
        self.prompts = prompts
        self.rows = rows
        self.samples = samples
        self.steps: list[int] = []
        self.edits: list[Tensor] = []

    def check(self, editor: Editor, step: int) -> bool:
        if step == 0:
            speed_up(editor)
        edited = self.prompts.base[self.rows] if step == 0 else self.prompts.edit(editor, self.rows)
        self.steps.append(step)
        self.edits.append(edited)
        return (
            self.samples is not None
            and step > 0
            and has_fallen(rate(self.samples, edited), rate(self.samples, self.edits[0]))
        )


def has_fallen(now: np.ndarray, base: np.ndarray, least: float = FALL) -> bool:
    """True if the oracle's mean has fallen by `least`, and its whole 95 % interval is below zero."""
    versus = paired_bootstrap(now, base, resamples=2000)
    return versus.difference <= -least and versus.ci95[1] < 0


def train(folder: Path, pool: str, kind: str, seeds: range) -> None:
    """Trains the missing runs of these seeds;
    each writes SEED.npz with its edits at every check.
    """
    require_same(folder)
    out = folder / pool / kind
    work = folder / "work" / f"{pool}-{kind}-{seeds[0]}"
    out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    prompts = Prompts(folder / "work", pool)
    rows = open_rows(DATA)
    editor = load_base(BASE, "cpu")
    labels = RewardLabels(None, [0] * len(rows))
    cache = make_cache(rows, DATA, editor, work / "cache")
    rollouts = RolloutPrompts(
        cache, cache.texts(editor, labels), *cache_sources(rows, DATA, work / "sources")
    )
    scales: dict[str, Any] = {}
    for seed in seeds:
        path = out / f"{seed}.npz"
        if path.is_file():
            continue
        reward, settings = settings_of(kind, seed)
        name = spec_name(reward.scorer)
        if name not in scales:
            scores = work / name / "relabelled"
            scales[name] = fit_reward_scale(reward, rows, DATA, scores, load_scorer(name))
        drawn = np.random.default_rng(seed + 1).permutation(len(prompts.samples))[:N].tolist()
        recorder = Recorder(prompts, drawn, take(prompts.samples, drawn) if kind == "reward_only" else None)
        shutil.rmtree(work / "run", ignore_errors=True)
        scorers = {name: load_scorer(name)}
        shared = refl.SharedInputs(scorers, scales[name], cache, labels, rollouts)
        refl.finetune(settings, BASE, reward, shared, recorder, work / "run")
        aside = path.with_suffix(".partial.npz")
        np.savez_compressed(
            aside,
            prompts=np.array(drawn) + prompts.first,
            steps=np.array(recorder.steps),
            looks=torch.stack(recorder.edits).numpy(),
            of=json.dumps(described(kind, seed)),
        )
        aside.rename(path)
        print(kind, seed, name, flush=True)


@dataclass
class Run:
    """A run's edits as bytes, the base's first, and the samples and scorer for its values."""

    seed: int
    scorer: str
    samples: ShapesBatch
    edits: list[Tensor]

    def values(self, edited: Tensor) -> dict[str, Tensor]:
        """Values that a monitor measures: both rewards and the signs."""
        images = edited.float() / 255
        s = self.samples
        captions = {"source_caption": s.source_caption, "target_caption": s.target_caption}
        batch = EditBatch(s.source, s.instruction, images, target=s.target, mask=s.mask, **captions)
        scorers = {"reward": load_reward(self.scorer), "held_out": scorer_of(HELD_OUT[self.scorer])}
        scores = {name: result.score for name, result in score_batch(batch, scorers).items()}
        return {**scores, **hacking_signs(s.source, images, s.mask)}


@cache
def load_reward(name: str) -> Scorer:
    """Loads the scorer in the form that trains."""
    return load_scorer(name)


def runs_of(folder: Path, pool: str, kind: str) -> list[Run]:
    """Existing runs of the seeds in `SEEDS`.

    Raises:
        ValueError: if a run has other settings than those of its seed.
    """
    require_same(folder)
    first, last = POOLS[pool]
    samples = Shapes("val").batch(first, last - first)
    out = []
    for seed in SEEDS[pool, kind]:
        path = folder / pool / kind / f"{seed}.npz"
        if not path.is_file():
            continue
        kept = np.load(path)
        of = json.loads(str(kept["of"]))
        stage_module.require_same(path, of, described(kind, seed))
        drawn = take(samples, [int(row) - first for row in kept["prompts"]])
        edits = [torch.from_numpy(edited) for edited in kept["looks"]]
        out.append(Run(seed, of["scorer"], drawn, edits))
    return out
