"""Agreement of scores with the oracle on trained editors' edits:
python rewardedit/shapes/benchmarks/agreement.py [EDITOR …]

Each editor edits the same held-out samples. Figures are Spearman's ρ with the rating and its three aspects,
as on the ViFi-CLIP poster (f, g), and ρ by kind of instruction and on the extremes.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from common import load_scorer, read_command_line
from grid import best_by_steps
from tqdm import tqdm

from rewardedit import EditBatch, devices, load_editor
from rewardedit.cli import quiet
from rewardedit.diffusion.editors import SamplingConfig
from rewardedit.evaluation.statistics import spearman
from rewardedit.scorers import Scorer
from rewardedit.scoring import score_batch
from rewardedit.shapes import EDIT_TYPES, Shapes, ShapesBatch, ShapesOracle

SAMPLES = 700
BATCH = 140
RESAMPLES = 1000
STEPS = (1, 4, 10)  # denoising steps of each editor's edits
ASPECTS = ("score", "alignment", "consistency", "quality")
LOW = 1.0
HIGH = 9.0  # ratings of the extremes: at most, at least
TARGET = {"against": "target"}
# Inputs that a scorer may use, besides source, edited image and instruction.
GROUPS = {
    "source, edited, instruction": {
        "vifi_clip": ("vifi_clip", {}),
        "bpm": ("bpm", {"missing_object": "failed"}),
        "adiee": ("adiee", {}),
        "clip_d": ("clip_d", {}),
        "clip_t": ("clip_t", {}),
        "clip_i against the source": ("clip_i", {"against": "source"}),
        **{name: (name, {}) for name in ("l1", "l2", "psnr", "ssim")},
    },
    "captions": {"clip_d": ("clip_d", {}), "clip_t": ("clip_t", {})},
    "target or true mask": {
        "clip_i": ("clip_i", {}),
        **{f"{name} against the target": (name, TARGET) for name in ("l1", "l2", "psnr", "ssim")},
        **{f"{name} outside the mask": (name, {"region": "outside"}) for name in ("l1", "ssim")},
    },
}


def edits(
    editors: list[str], n: int, grid: Sequence[SamplingConfig]
) -> list[tuple[ShapesBatch, torch.Tensor]]:
    """Edits of the same samples by each editor, at each of the settings (for reward-conditioned editors, with
    several labels).
    """
    samples = Shapes("test").batch(0, n)
    out = []
    for name in editors:
        editor = load_editor(name)
        asked = (
            [(s, 10.0) for s in grid] if editor.prompt is None else [(grid[-1], s) for s in (1.0, 5.0, 10.0)]
        )
        for settings, score in asked:
            made = []
            for i in tqdm(
                range(0, n, BATCH),
                desc=f"{Path(name).name}, {settings.num_inference_steps} steps",
                unit="batch",
                leave=False,
            ):
                batch = samples[i : i + BATCH]
                with devices.autocast(editor.pipe.device.type):
                    seeds = range(i, i + len(batch))
                    made.append(
                        editor(batch.source, batch.instruction, seeds, settings=settings, target_score=score)
                    )
            out.append((samples, torch.cat(made)))
    return out


def scores_of(scorer: Scorer, samples: ShapesBatch, edited: torch.Tensor, group: str) -> torch.Tensor:
    """Scores of all edits, with only the fields that the group may use."""
    captions = {"source_caption": samples.source_caption, "target_caption": samples.target_caption}
    truth = {"target": samples.target, "mask": samples.mask}
    fields = captions if group == "captions" else truth if group.startswith("target") else {}
    batch = EditBatch(samples.source, samples.instruction, edited, **fields)
    results = [score_batch(batch[i : i + BATCH], {"": scorer})[""] for i in range(0, len(batch), BATCH)]
    return torch.cat([scores.score for scores in results])


def measure(editors: list[str], n: int, settings: Sequence[SamplingConfig]) -> dict:
    """The table of all scorers."""
    made = edits(editors, n, settings)
    ratings = [ShapesOracle().rate(samples, edited) for samples, edited in made]
    rated = {name: torch.cat([getattr(r, name) for r in ratings]).numpy() for name in ASPECTS}
    ids = [name for samples, _ in made for name in samples.id]
    kind = [name for samples, _ in made for name in samples.edit_type]
    extreme = (rated["score"] <= LOW) | (rated["score"] >= HIGH)
    lpips = {"weights": os.environ["REWARDEDIT_LPIPS"]} if "REWARDEDIT_LPIPS" in os.environ else None
    table: dict[str, dict] = {}
    for group, scorers in GROUPS.items():
        if lpips is not None and group != "captions":
            more = {"lpips against the target": TARGET} if group.startswith("target") else {"lpips": {}}
            scorers = {
                **scorers,
                **{label: ("lpips", {**lpips, **options}) for label, options in more.items()},
            }
        for label, (name, options) in scorers.items():
            scorer = load_scorer(name, **options)
            score = torch.cat([scores_of(scorer, *pair, group) for pair in made]).numpy()
            valid = score == score
            row = {}
            for aspect in ASPECTS:
                for where, rows in (("all", valid), ("extremes", valid & extreme)):
                    names = [i for i, keep in zip(ids, rows, strict=True) if keep]
                    row.setdefault(where, {})[aspect] = spearman(
                        score[rows], rated[aspect][rows], names, RESAMPLES
                    ).as_dict("rho")
            for one in EDIT_TYPES:
                rows = valid & [k == one for k in kind]
                names = [i for i, keep in zip(ids, rows, strict=True) if keep]
                row.setdefault("kinds", {})[one] = spearman(
                    score[rows], rated["score"][rows], names, RESAMPLES
                ).as_dict("rho")
            table.setdefault(group, {})[label] = row
    return {
        "n": len(ids),
        "sources": n,
        "extremes": int(extreme.sum()),
        "mean": float(rated["score"].mean()),
        "rho": table,
    }


if __name__ == "__main__":
    line = read_command_line(__doc__, "EDITOR")
    quiet()
    settings = [best_by_steps()[steps] for steps in STEPS]
    line.keep("agreement", measure(line.words or ["shapes/editor"], SAMPLES, settings))
