"""Reward-conditioned fine-tuning: the editor learns what a good edit is from scores written into its prompts.

Method: ADIEE Sec. 3.4 (after HIVE). Every row is scored, the score is written into its instruction, the editor is
fine-tuned on that, and at inference it is asked for the best. Stages, each kept in the run directory and not done again:
candidates (other editors' outputs beside the data's own targets) → relabel → train, one arm at a time → evaluate.

Deviations from the paper's released code: the text is the same in training and inference; InstructPix2Pix's conditioning
dropout is on; no flips or rotations, which turn "left" into "right"; scores become labels by quantiles, so that every
label has its share of the rows.

Command: rewardedit train magicbrush-reward-conditioned
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from rewardedit.data import Data, Rows, batches, open_rows
from rewardedit.relabel import PRESETS, RewardPrompt, RewardScale, label_rows, read_shards, score_rows, write_shards
from rewardedit.scorers import load_scorer
from rewardedit.synthesis.candidates import Candidates, WithCandidates
from rewardedit.trainers import _run
from rewardedit.trainers._cache import make_cache
from rewardedit.trainers._compare import Evaluate, compare, require_arms
from rewardedit.trainers._finetune import finetune
from rewardedit.trainers._models import Labels, Train, load_base
from rewardedit.trainers._plan import plan

__all__ = ["Config", "Relabel", "main", "plan", "train"]

SHOWN = {"conditioned": "conditioned_five", "learned_embedding": "learned_embedding_five"}  # what arms are asked for
HELD_OUT = "l1"  # the family that no arm is trained on when labels come from CLIP
Arm = Literal["conditioned", "unconditioned", "best_rows_only", "learned_embedding"]


@dataclass(frozen=True)
class Relabel:
    """How rows get their labels."""

    scorer: str = "clip_d"
    options: dict[str, Any] = field(default_factory=dict)  # for the scorer, e.g. its checkpoint
    prompt: Literal["adiee", "hive", "learned", "custom"] = "adiee"
    template: str | None = None  # custom prompts only, with {instruction} and {word}
    words: tuple[str, ...] | None = None
    upper: tuple[float, ...] | None = None
    scale: Literal["quantiles", "range"] = "quantiles"
    batch: int = 64

    def __post_init__(self) -> None:
        if (self.prompt == "custom") != (self.template is not None):
            raise ValueError("template: give one with prompt=custom, and with no other prompt")
        self.reward_prompt(RewardScale.from_range(0, 1))  # refuses a template or bins that do not fit, before rows are scored

    def reward_prompt(self, scale: RewardScale) -> RewardPrompt:
        """The prompt with its scale."""
        bins: dict[str, Any] = {k: v for k, v in (("words", self.words), ("upper", self.upper)) if v is not None}
        if self.template is not None:
            return RewardPrompt(self.template, scale=scale, **bins)
        return replace(PRESETS[self.prompt](scale), **bins)


@dataclass(frozen=True)
class Config:
    """One reward-conditioned fine-tuning, or a comparison of several."""

    name: str
    base: str = "shapes-editor"
    data: Data = field(default_factory=Data)
    candidates: Candidates | None = None
    relabel: Relabel = field(default_factory=Relabel)
    train: Train = field(default_factory=Train)
    arms: tuple[Arm, ...] = ("conditioned",)  # the first is the result; the others are what it is compared with
    evaluate: Evaluate | None = None  # on shapes, with the oracle

    def __post_init__(self) -> None:
        require_arms(self.arms, self.evaluate, self.data)


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Runs all stages in `folder`; those that a resumed run finds whole are not done again.

    Returns:
        The folder of the first arm's result: pipeline/ (or lora/), with reward_prompt.json inside.
    """
    config.train.micro_batches(_run.processes().num_processes)
    _run.start(folder, config)
    with _run.processes().main_process_first():  # the others find the stages done
        rows = rows_of(config, folder)
        scored, scale = relabel(config, rows, folder)
    editor = load_base(config.base, _run.device())
    cache = make_cache(rows, config.data, editor, folder / "cache")
    del editor
    results: dict[str, Path] = {}
    for i, arm in enumerate(config.arms):
        own = folder if i == 0 else folder / "arms" / arm
        results[arm] = own / ("lora" if config.train.lora_rank else "pipeline")
        if not (resume and results[arm].is_dir()):
            print(f"arm {arm}: {config.train.steps} steps")
            finetune(config.train, config.base, cache, arm_labels(config, arm, scored, scale), own, resume)
    if config.evaluate is not None and _run.processes().is_main_process:
        rewards = {config.relabel.scorer: config.relabel.options, HELD_OUT: {}}
        scorers = {name: load_scorer(name, **options) for name, options in rewards.items()}
        named = {SHOWN.get(arm, arm): path for arm, path in results.items()}
        compare(config.evaluate, config.base, named, scorers, folder)
    return results[config.arms[0]]


def rows_of(config: Config, folder: Path) -> Rows:
    """The rows that are scored: the data set's own, or each with its candidates, which are made here."""
    rows = open_rows(config.data)
    return rows if config.candidates is None else WithCandidates(rows, config.data, config.candidates, folder / "candidates")


def relabel(config: Config, rows: Rows, folder: Path) -> tuple[list[dict[str, Any]], RewardScale]:
    """Scores every row, or reads the shards of an earlier run; returns the rows and the scale of their labels."""
    shards, done = folder / "relabelled", folder / "relabelled" / "scale.json"
    if done.is_file():
        return read_shards(shards), RewardScale(tuple(json.loads(done.read_text())["knots"]))
    scorer = load_scorer(config.relabel.scorer, **config.relabel.options)
    chunks = tqdm(
        batches(rows, config.data, config.relabel.batch),
        desc="scoring rows",
        total=-(-len(rows) // config.relabel.batch),
        unit="batch",
    )
    scored = score_rows(((ids, batch.to(_run.device())) for ids, batch in chunks), scorer.to(_run.device()))
    values = [row["score"] for row in scored]
    by_quantiles = config.relabel.scale == "quantiles"
    scale = RewardScale.from_quantiles(values) if by_quantiles else RewardScale.from_range(*scorer.range)
    labelled = label_rows(scored, config.relabel.reward_prompt(scale))
    write_shards(labelled, shards)
    _run.write_json(done, {"knots": list(scale.knots), "scorer": config.relabel.scorer})
    return labelled, scale


def arm_labels(config: Config, arm: Arm, scored: list[dict[str, Any]], scale: RewardScale) -> Labels:
    """What each arm is trained on: the same rows, and its own way (or none) of saying their scores."""
    label = [row["label"] for row in scored]
    if arm == "unconditioned":
        return Labels(None, label)
    if arm == "learned_embedding":
        return Labels(replace(config.relabel, prompt="learned", template=None).reward_prompt(scale), label)
    prompt = config.relabel.reward_prompt(scale)
    if arm == "best_rows_only":
        best = len(prompt.words) - 1
        return Labels(prompt, [value if value == best else None for value in label])
    return Labels(prompt, label)


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and says where the result is."""
    out = train(config, folder, resume)
    print(f"the editor is in {out}; try: rewardedit edit IMAGE INSTRUCTION --model {folder} --out edited")
