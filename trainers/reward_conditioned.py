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
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rewardedit import devices
from rewardedit.data import Data, Rows, batches, open_rows
from rewardedit.diffusion.editors import Editor
from rewardedit.evaluation.editors import Evaluate, compare, require_arms
from rewardedit.files import replaced, write_json
from rewardedit.processes import processes, say
from rewardedit.relabel import (
    PRESETS,
    RewardPrompt,
    RewardScale,
    label_rows,
    read_columns,
    read_rows,
    score_rows,
    write_rows,
)
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.stages import is_made, mark_made, row_shards, stage
from rewardedit.synthesis.candidates import Candidates, WithCandidates, edit_rows, load_candidates_editor
from rewardedit.training import run
from rewardedit.training.estimate import plan
from rewardedit.training.finetune import Finetuning
from rewardedit.training.latents import LatentCache, make_cache
from rewardedit.training.trainable import Labels, Train, load_base

__all__ = ["Config", "Relabel", "main", "plan", "train"]

SHOWN = {"conditioned": "conditioned_five", "learned_embedding": "learned_embedding_five"}  # what arms are asked for
HELD_OUT = "l1"  # the family that no arm is trained on when labels come from CLIP
Arm = Literal["conditioned", "unconditioned", "best_rows_only", "learned_embedding"]


@dataclass(frozen=True)
class Relabel:
    """How rows get their labels."""

    scorer: str = "clip_d"  # whose score becomes the label
    options: dict[str, Any] = field(default_factory=dict)  # for the scorer, e.g. its checkpoint
    # how the label is written: ADIEE's or HIVE's words, a learned embedding, or a template
    prompt: Literal["adiee", "hive", "learned", "custom"] = "adiee"
    template: str | None = None  # custom prompts only, with {instruction} and {word}
    words: tuple[str, ...] | None = None  # of the labels, from worst to best; None: the prompt's own
    upper: tuple[float, ...] | None = None  # the highest score, of 0 to 10, of each word; None: even bins
    # scores to 0–10 by their quantiles over the rows, or by the scorer's declared range
    scale: Literal["quantiles", "range"] = "quantiles"
    batch: int = 64  # rows that are scored at a time

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

    name: str  # of the run, and of its folder in runs/
    base: str = "shapes-editor"  # the editor to start from: hub name, pipeline folder or run folder
    data: Data = field(default_factory=Data)  # the rows that are scored and trained on
    # editors whose outputs stand beside the data's own targets; None: the data's own rows alone
    candidates: Candidates | None = None
    relabel: Relabel = field(default_factory=Relabel)  # how rows get their labels
    train: Train = field(default_factory=Train)  # the optimizer, the loop and what is trained
    arms: tuple[Arm, ...] = ("conditioned",)  # the first is the result; the others are what it is compared with
    evaluate: Evaluate | None = None  # on shapes, with the oracle

    def __post_init__(self) -> None:
        require_arms(self.arms, self.evaluate, self.data)


@dataclass
class Relabelled:
    """What the rows of a data set were scored and labelled, in order."""

    score: list[float]  # NaN where it is invalid
    label: list[int | None]  # None where the score is invalid
    scale: RewardScale


def train(config: Config, folder: Path, resume: bool = False) -> Path:
    """Runs all stages in `folder`; those that a resumed run finds whole are not done again.

    Returns:
        The folder of the first arm's result: pipeline/ (or lora/), with reward_prompt.json inside.
    """
    config.train.micro_batches(processes().num_processes)
    run.start(folder, config, resume)
    rows = rows_of(config, folder)
    relabelled = relabel(config, rows, folder)
    editor = load_base(config.base, devices.default_device())
    latents = make_cache(rows, config.data, editor, folder / "cache", config.candidates, config.train.encode_batch)
    del editor
    results: dict[str, Path] = {}
    for i, arm in enumerate(config.arms):
        own = folder if i == 0 else folder / "arms" / arm
        results[arm] = own / ("lora" if config.train.lora_rank else "pipeline")
        made_of = {"arm": arm, "base": config.base, "train": config.train}
        if not (resume and is_made(results[arm], made_of)):
            say(f"arm {arm}: {config.train.steps} steps")
            finetune(config.train, config.base, latents, arm_labels(config, arm, relabelled), own, resume)
            mark_made(results[arm], made_of)
    if config.evaluate is not None:
        rewards = {config.relabel.scorer: config.relabel.options, HELD_OUT: {}}
        scorers = {name: load_scorer(name, **options).to(devices.default_device()) for name, options in rewards.items()}
        named = {SHOWN.get(arm, arm): path for arm, path in results.items()}
        compare(config.evaluate, config.base, named, scorers, folder)
    return results[config.arms[0]]


def finetune(config: Train, base: str, cache: LatentCache, labels: Labels, folder: Path, resume: bool = False) -> Path:
    """Fine-tunes `base` on cached rows whose prompts say their labels (ADIEE Sec. 3.4).

    Returns:
        The folder of the result: `pipeline/`, which stock diffusers loads, or `lora/`.

    Raises:
        ValueError: where no row has a label.
        TrainingStopped: where the loss is not a number.
    """
    tuning = Finetuning(config, base, cache, labels, folder, resume)
    loop = tuning.loop
    for step in loop.steps():
        for micro in tuning.micro_batches(step):
            with loop.accumulate():
                with loop.autocast():
                    loss = tuning.diffusion_loss(micro)
                loop.backward(loss, micro.ids)
        loop.update()
        if tuning.is_validation_step():
            with loop.ema_weights():
                tuning.save_previews()
    return tuning.save()


def rows_of(config: Config, folder: Path) -> Rows:
    """The rows that are scored: the data set's own, or each with its candidates, which are made here."""
    rows = open_rows(config.data)
    if config.candidates is None:
        return rows
    edits = folder / "candidates"
    for k in range(len(config.candidates.editors)):
        make_candidates(config.candidates, k, rows, config.data, edits / f"editor-{k}")
    return WithCandidates(rows, config.candidates, edits)


def make_candidates(config: Candidates, editor: int, rows: Rows, data: Data, folder: Path) -> None:
    """What one of the editors makes of all rows."""
    how = replace(config, editors=(), source=False)  # its edits do not depend on which other candidates there are
    made_of = {"editor": config.editors[editor], "how": how, "data": data, "rows": len(rows)}
    parts = row_shards(rows, config.batch)

    @cache
    def load() -> Editor:
        return load_candidates_editor(config, editor)

    def make(number: int, path: Path) -> None:
        edit_rows(load(), config, parts[number], data, number * len(parts[0]), path)

    stage(folder, made_of, make, len(parts))


def relabel(config: Config, rows: Rows, folder: Path) -> Relabelled:
    """Scores and labels every row; what an earlier run left whole is not done again.

    Rows are scored shard by shard. Their scale needs all scores, and labels need the scale, so that the labelled shards
    are written when all are there, with `scale.json`.

    Raises:
        ValueError: where the folder holds labels by another scorer, of other rows, or in other words.
    """
    shards, kind = folder / "relabelled", config.relabel
    made_of = {"relabel": kind, "data": config.data, "candidates": config.candidates, "rows": len(rows)}
    parts = row_shards(rows, kind.batch)

    @cache
    def scorer() -> Scorer:
        return load_scorer(kind.scorer, **kind.options).to(devices.default_device())

    def score(number: int, path: Path) -> None:
        found = ((ids, batch.to(devices.default_device())) for ids, batch in batches(parts[number], config.data, kind.batch))
        write_rows(score_rows(found, scorer()), path)

    def label(scored: list[Path]) -> None:
        values = read_columns(scored, "score")[0]
        by_quantiles = kind.scale == "quantiles"
        scale = RewardScale.from_quantiles(values) if by_quantiles else RewardScale.from_range(*scorer().range)
        for number, path in enumerate(scored):
            with replaced(shards / f"part-{number:05d}.parquet") as aside:
                write_rows(label_rows(read_rows(path), kind.reward_prompt(scale)), aside)
        write_json(shards / "scale.json", {"knots": list(scale.knots), "scorer": kind.scorer})

    stage(shards, made_of, score, len(parts), "scores-{:05d}.parquet", label)
    labelled = [shards / f"part-{number:05d}.parquet" for number in range(len(parts))]
    scale = RewardScale(tuple(json.loads((shards / "scale.json").read_text())["knots"]))
    return Relabelled(*read_columns(labelled, "score", "label"), scale)


def arm_labels(config: Config, arm: Arm, rows: Relabelled) -> Labels:
    """What each arm is trained on: the same rows, and its own way (or none) of saying their scores."""
    if arm == "unconditioned":
        return Labels(None, rows.label)
    if arm == "learned_embedding":
        return Labels(replace(config.relabel, prompt="learned", template=None).reward_prompt(rows.scale), rows.label)
    prompt = config.relabel.reward_prompt(rows.scale)
    if arm == "best_rows_only":
        best = len(prompt.words) - 1
        return Labels(prompt, [value if value == best else None for value in rows.label])
    return Labels(prompt, rows.label)


def main(config: Config, folder: Path, resume: bool = False) -> None:
    """Trains and says where the result is."""
    out = train(config, folder, resume)
    say(f"the editor is in {out}; try: rewardedit edit IMAGE INSTRUCTION --model {folder} --out edited")
