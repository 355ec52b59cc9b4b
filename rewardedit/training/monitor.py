"""Watching for reward hacking: the editor on fixed prompts against its base,
by scores that it is not trained on.
"""

import dataclasses
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from accelerate.utils import gather_object
from torch import Tensor

from rewardedit.batch import EditBatch, EditSample, collate, common_fields
from rewardedit.data import (
    DataConfig,
    distinct_rows,
    held_out_rows,
    require_size,
)
from rewardedit.data.datasets import shared_sources
from rewardedit.data.reading import PreparedRows, Unreadable
from rewardedit.data.worlds import WORLDS, Samples, WorldConfig, world
from rewardedit.diffusion.editors import Editor
from rewardedit.diffusion.saving import save_editor
from rewardedit.evaluation.hacking import hacking_flag, hacking_signs
from rewardedit.evaluation.statistics import valid_means
from rewardedit.files import append_json_line, read_log, write_json
from rewardedit.models import EXACT
from rewardedit.processes import processes
from rewardedit.scorer_spec import ScorerSpec, resolve_spec
from rewardedit.scorers import Scorer
from rewardedit.scoring import score_batch
from rewardedit.training.monitor_page import save_prompts, write_monitor_page
from rewardedit.untrusted import read_settings_file

LOG = "monitor.jsonl"


@dataclass(frozen=True)
class MonitorConfig:
    """Fixed prompts that are edited every `train.validate_every` steps, and what follows a flag."""

    n: int = 64  # fixed prompts, each of its own source image
    # rows to evaluate; None: source images held out of the training data; of a generated world, its val split
    data: DataConfig | None = None
    num_inference_steps: int | None = None  # denoising steps; None: the editor's own
    batch_size: int = 64  # images that are denoised, decoded and scored at a time
    # a reward of another family than the one that trains
    held_out: ScorerSpec = field(default_factory=lambda: {"ssim": {"against": "target"}})
    stop: bool = False  # stop at a flag; the result is then the editor that the held-out reward liked best

    def __post_init__(self) -> None:
        object.__setattr__(self, "held_out", resolve_spec(self.held_out))
        for name, least in (("n", 2), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}; got {getattr(self, name)}")


def training_data(data: DataConfig, config: MonitorConfig) -> DataConfig:
    """The training data without what is watched, where that is taken from it.

    Raises:
        ValueError: where `monitor.data` shares a source image with the training data.
    """
    if config.data is None:
        if data.name not in WORLDS:
            return dataclasses.replace(data, holdout_sources=max(data.holdout_sources, config.n))
        if data.split == "val":
            raise ValueError(
                "monitor.data: the training uses the val split, and so would the monitor; name another split"
            )
        return data
    if data.name == config.data.name and data.name in WORLDS:
        world, watched = data.shapes, config.data.shapes
        shared = (data.split, world and world.seed) == (config.data.split, watched and watched.seed)
    else:
        shared = bool(shared_sources([data], config.data))
    if shared:
        raise ValueError(
            "monitor.data: shares source images with the training data; give another split or data set"
        )
    return data


def fixed_prompts(data: DataConfig, config: MonitorConfig) -> tuple[EditBatch, Samples | None]:
    """The sources and instructions that are watched; those of a generated world with their scenes.

    Rows that cannot be read are left out.

    Args:
        data: data set of the training, as `training_data` returned it.

    Raises:
        ValueError: if none can be read.
    """
    watched = config.data or (
        dataclasses.replace(data, split="val", offset=0) if data.name in WORLDS else None
    )

    if watched is not None and watched.name in WORLDS:
        scenes = watched.shapes or WorldConfig()
        samples = world(watched.name).samples(
            watched.split, scenes.seed, scenes.backdrops, watched.offset, config.n
        )
        captions = {"source_caption": samples.source_caption, "target_caption": samples.target_caption}
        truth = {"target": samples.target, "mask": samples.mask, **captions}
        return EditBatch(samples.source, samples.instruction, samples.source, **truth), samples

    rows = held_out_rows(data, config.n) if watched is None else distinct_rows(watched, config.n)
    shape = watched or data
    prepared = PreparedRows(rows, require_size(shape), shape.resize)
    prompts = [prepared[i] for i in range(len(rows))]
    samples = [sample for sample in prompts if isinstance(sample, EditSample)]
    if not samples:
        reasons = [row.reason for row in prompts if isinstance(row, Unreadable)]
        raise ValueError(
            f"monitor.data: expected rows that can be read, got none among {len(prompts)} (the first: "
            f"{reasons[0]}); name other rows in monitor.data, or mend these"
        )

    # What a pair is to become is its target, under either name.
    samples = [
        sample if sample.target is not None else dataclasses.replace(sample, target=sample.edited)
        for sample in samples
    ]
    return collate(samples, fields=common_fields(samples)), None


@runtime_checkable
class Monitor(Protocol):
    """Evaluates an editor during its training."""

    def check(self, editor: Editor, step: int) -> bool:
        """Evaluates the current weights; returns True to stop training. All processes call it together."""
        ...


class HackingMonitor:
    """Edits the fixed prompts from the same noise each time,
    and keeps what became of them in monitor.jsonl and monitor.html.

    All processes call it together: each edits and scores its share of the prompts,
    and all hold the values of all of them.
    """

    def __init__(
        self,
        prompts: EditBatch,
        truth: Samples | None,
        scorers: dict[str, Scorer],
        folder: Path,
        config: MonitorConfig,
        checks: int,
        lora_of: str | None = None,
        guidance: tuple[float, float] | None = None,
    ) -> None:
        """
        Args:
            scorers: the training reward first, then the held-out one.
            checks: how often the run is evaluated in all, for which the flag's test is corrected.
            lora_of: the base, where a LoRA is trained.
            guidance: scales of text and image; None: the editor's own.
        """
        self.prompts = prompts
        self.truth = truth
        self.scorers = scorers
        self.folder = folder
        self.config = config
        self.reward, self.held_out = list(scorers)[:2]
        self.checks = checks
        self.lora_of = lora_of
        self.guidance = guidance
        self.base: dict[str, Tensor] | None = None
        self.refusals: dict[str, str] = {}  # scorer: why it could not score some prompt of this process
        self.best_folder = folder / "best"
        self.stopped = False
        earlier = read_log(folder, LOG) if self.best_folder.is_dir() else []
        liked = [check[self.held_out] for check in earlier]
        self.best = max((mean for mean in liked if mean is not None), default=-float("inf"))

    def check(self, editor: Editor, step: int) -> bool:
        """Evaluates the current weights, saves them where the held-out reward is best;
        returns True to stop training.

        Raises:
            ValueError: where a reward can score no prompt of the base.
        """
        figures = self.evaluate(editor, step)
        liked = figures[self.held_out]
        is_best = self.config.stop and liked is not None and liked > self.best
        if is_best:
            self.best = liked
        if processes().is_main_process:
            if is_best:  # before it is said: the log tells which editor is the best
                save_editor(editor, self.best_folder, base=self.lora_of)
            append_json_line(self.folder / LOG, {"step": step, **figures})
            if figures["flag"]:
                print(f"red flag at step {step}: {figures['flag']}")
            self._write_page()
        self.stopped = self.config.stop and figures["flag"] is not None
        return self.stopped

    def evaluate(self, editor: Editor, step: int | None = None) -> dict[str, Any]:
        """Means over the prompts of rewards and signs of hacking, and `flag` (see `hacking_flag`);
        None where no prompt has a value.

        The first editor that is evaluated is the one that others are compared with.

        Args:
            step: of the training, under which the first images are kept; None: none are.

        Raises:
            ValueError: where a reward can score none of its prompts.
        """
        values = self.evaluate_prompts(editor, step)
        if self.base is None:
            self._require_scores(values)
            self.base = values
        flag = hacking_flag(values, self.base, self.reward, self.held_out, self.checks)
        return {**valid_means(values), "flag": flag}

    @torch.no_grad()
    def evaluate_prompts(self, editor: Editor, step: int | None = None) -> dict[str, Tensor]:
        """Values (n,) of every prompt by name; the prompts are divided over the processes. The images of the
        first prompts are kept under `step`.
        """
        state = processes()
        settings = editor.settings
        if self.config.num_inference_steps is not None:
            settings = dataclasses.replace(settings, num_inference_steps=self.config.num_inference_steps)
        if self.guidance is not None:
            text, image = self.guidance
            settings = dataclasses.replace(settings, guidance_scale=text, image_guidance_scale=image)

        local = range(state.process_index, len(self.prompts), state.num_processes)
        parts = []
        for at in range(0, len(local), self.config.batch_size):
            rows = local[at : at + self.config.batch_size]
            which = slice(rows.start, rows.stop, rows.step)
            prompts = self.prompts[which]
            encoded = editor.encode(prompts.source, prompts.instruction)
            # A row without an edit has no values, and ends no training.
            edited = editor.sample(encoded, rows, settings=settings).to("cpu").images
            if step is not None:
                save_prompts(self.folder, prompts.source, edited, rows, step)
            parts.append(
                (list(rows), self._values(prompts, edited, None if self.truth is None else self.truth[which]))
            )

        if state.num_processes > 1:
            parts = gather_object(parts)
        numbers, values = zip(*parts, strict=True)
        order = torch.tensor(list(chain.from_iterable(numbers))).argsort()

        joined = {}
        for name in values[0]:
            joined[name] = torch.cat([chunk[name] for chunk in values])[order]
        return joined

    def _require_scores(self, values: dict[str, Tensor]) -> None:
        """Nothing could be compared with a base without scores."""
        for name, setting in ((self.reward, "reward.scorer"), (self.held_out, "monitor.held_out")):
            if not values[name].isfinite().any():
                reason = self.refusals.get(name, "see the other processes")
                raise ValueError(
                    f"{setting}: scores none of the {len(self.prompts)} watched prompts: {reason}"
                )

    def _values(self, prompts: EditBatch, edited: Tensor, truth: Samples | None) -> dict[str, Tensor]:
        batch = dataclasses.replace(prompts, edited=edited)
        values = {}
        for name, scores in score_batch(batch, self.scorers).items():
            values[name] = scores.score.float()
            reason = next((reason for reason in scores.reason if reason), None)
            if reason is not None:
                self.refusals[name] = reason
        if truth is not None:
            values[EXACT] = world(truth.world).rate(truth, edited).score
        return values | hacking_signs(prompts.source, edited, prompts.mask)

    def report(self, sweep: list[dict[str, Any]]) -> None:
        """Writes monitor.json and, for the last time, monitor.html: the checks, and the sweep over the share
        of the change.
        """
        if processes().is_main_process:
            write_json(self.folder / "monitor.json", {"checks": read_log(self.folder, LOG), "sweep": sweep})
            self._write_page(sweep)

    def _write_page(self, sweep: list[dict[str, Any]] | None = None) -> None:
        scorers = {
            self.reward: "The training reward.",
            self.held_out: "Another scorer, which trains nothing.",
        }
        write_monitor_page(self.folder, read_log(self.folder, LOG), self.prompts.instruction, scorers, sweep)


def require_fields(prompts: EditBatch, scorers: dict[str, Scorer]) -> None:
    """Raises ValueError where a scorer needs what the rows, or a rollout of them, do not have."""
    reward, held_out = scorers.values()
    has = {f.name for f in fields(prompts) if getattr(prompts, f.name) is not None}
    lacks = {
        "reward.scorer": reward.required_fields - has | reward.required_fields & {"target", "mask"},
        "monitor.held_out": held_out.required_fields - has,
    }
    for name, missing in lacks.items():
        if missing:
            raise ValueError(
                f"{name}: needs {', '.join(sorted(missing))}, which it cannot be given here; take another"
            )


def watched(results: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Checks of each variant on the fixed prompts: the first, the last, and how many raised a flag."""
    out = {}
    for variant, path in results.items():
        checks = read_settings_file(path.parent / "monitor.json")["checks"]
        out[variant] = {
            "first": checks[0],
            "last": checks[-1],
            "flags": sum(check["flag"] is not None for check in checks),
        }
    return out
