"""Watching for reward hacking: the editor on fixed prompts against its base, by scores that it is not trained on."""

import dataclasses
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewardedit.batch import EditBatch, collate
from rewardedit.data import Data, open_rows
from rewardedit.data.shapes import Shapes, ShapesBatch, ShapesOracle
from rewardedit.diffusion.editors import Editor, save_editor
from rewardedit.evaluation.health import picture_health
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.report import Report
from rewardedit.scorers import Scorer
from rewardedit.trainers import _run

BATCH = 64
LOG = "watch.jsonl"


@dataclass(frozen=True)
class Watching:
    """What is looked at, and what is done about it; how often is `train.validate_every`."""

    n: int = 64  # fixed prompts
    steps: int | None = None  # denoising steps of a look; None: the editor's own
    held_out: str = "ssim"  # a reward of another family than the one that trains
    held_out_options: dict[str, Any] = field(default_factory=lambda: {"against": "target"})
    stop: bool = False  # at a red flag; the result is then the editor that the held-out reward liked best


def fixed_prompts(data: Data, n: int) -> tuple[EditBatch, ShapesBatch | None]:
    """n sources with their instructions: of the shapes world's val split, with their truth, or a data set's first rows."""
    if data.name == "shapes":
        samples = Shapes("val", data.seed, data.backdrops).batch(0, n)
        captions = {"source_caption": samples.source_caption, "target_caption": samples.target_caption}
        truth = {"target": samples.target, "mask": samples.mask, **captions}
        return EditBatch(samples.source, samples.instruction, samples.source, **truth), samples
    rows = open_rows(data)
    return collate([rows[i] for i in range(min(n, len(rows)))], data.size, data.policy), None


class Watch:
    """Edits the fixed prompts from the same noise each time, and keeps what became of them in watch.jsonl and watch.html."""

    def __init__(
        self,
        prompts: EditBatch,
        truth: ShapesBatch | None,
        scorers: dict[str, Scorer],
        folder: Path,
        config: Watching,
        lora_of: str | None = None,
    ) -> None:
        """`scorers`: the training reward first, then the held-out one. `lora_of`: the base, where a LoRA is trained."""
        self.lora_of = lora_of
        self.prompts, self.truth, self.scorers, self.folder, self.config = prompts, truth, scorers, folder, config
        self.reward, self.held_out = list(scorers)[:2]
        self.base: dict[str, Tensor] | None = None
        self.best_folder, self.stopped = folder / "best", False
        earlier = _run.read_log(folder, LOG) if self.best_folder.is_dir() else []
        self.best = max((look[self.held_out] for look in earlier), default=-float("inf"))

    def step(self, editor: Editor, step: int) -> bool:
        """Looks at an editor in training, saves it where the held-out reward likes it best; True: stop."""
        found = self.look(editor)
        _run.append(self.folder / LOG, {"step": step, **found})
        held_out = found[self.held_out]
        if self.config.stop and held_out > self.best:
            self.best = held_out
            shutil.rmtree(self.best_folder, ignore_errors=True)
            save_editor(editor, self.best_folder, base=self.lora_of)
        if found["flag"]:
            print(f"red flag at step {step}: {found['flag']}")
        self.stopped = self.config.stop and found["flag"] is not None
        return self.stopped

    @torch.no_grad()
    def look(self, editor: Editor) -> dict[str, Any]:
        """Means of rewards, oracle and signs of hacking; `flag` where the reward rose and the held-out one fell.

        The first editor that is looked at is the one that others are compared with.
        """
        prompts, made, settings = self.prompts, [], editor.settings
        if self.config.steps is not None:
            settings = dataclasses.replace(settings, steps=self.config.steps)
        for i in range(0, len(prompts), BATCH):
            part = prompts[i : i + BATCH]
            made.append(editor(part.source, part.instruction, range(i, i + len(part)), settings=settings))
        edited = torch.cat(made)
        batch = dataclasses.replace(prompts, edited=edited)
        each = {name: scorer(batch.to(editor.pipe.device)).score.cpu() for name, scorer in self.scorers.items()}
        if self.truth is not None:
            each["oracle"] = ShapesOracle().rate(self.truth, edited).score
        each |= picture_health(prompts.source, edited, prompts.mask)
        self.base = each if self.base is None else self.base
        means = {name: float(values.nanmean()) for name, values in each.items()}
        return {**means, "flag": flag(each, self.base, self.reward, self.held_out)}

    def report(self, sweep: list[dict[str, Any]]) -> Path:
        """watch.html: the curves, the flags and the sweep over the share of the change."""
        looks = _run.read_log(self.folder, LOG)
        report = Report(f"watching {self.folder.name}")
        for row in sweep:
            if row["flag"]:
                report.flag(f"{row['scale']:g} of the change: {row['flag']}")
        for look in looks:
            if look["flag"]:
                report.flag(f"step {look['step']}: {look['flag']}")
        by_step = {str(look["step"]): {k: v for k, v in look.items() if k not in ("flag", "step")} for look in looks}
        report.table("Fixed prompts by step", by_step)
        rows = {f"{row['scale']:g}": {k: v for k, v in row.items() if k not in ("flag", "scale")} for row in sweep}
        report.table("By share of the change, from the base (0) to the result (1)", rows)
        for name in (*self.scorers, *(["oracle"] if self.truth is not None else [])):
            report.lines(name, {name: [(look["step"], look[name]) for look in looks]})
        _run.write_json(self.folder / "watch.json", {"looks": looks, "sweep": sweep})
        return report.save(self.folder / "watch.html")


def flag(now: dict[str, Tensor], base: dict[str, Tensor], reward: str, held_out: str) -> str | None:
    """What is wrong where the training reward has risen while the held-out one has fallen, both by whole intervals."""

    def change(name: str) -> tuple[float, float]:
        kept = now[name].isfinite() & base[name].isfinite()
        if int(kept.sum()) < 2:
            return (0.0, 0.0)
        return paired_bootstrap(now[name][kept].numpy(), base[name][kept].numpy(), resamples=2000).ci95

    up, down = change(reward), change(held_out)
    if up[0] > 0 and down[1] < 0:
        return f"{reward} rises ({up[0]:+.3f} to {up[1]:+.3f}) while {held_out} falls ({down[0]:+.3f} to {down[1]:+.3f})"
    return None
