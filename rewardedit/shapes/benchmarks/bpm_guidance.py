"""BPM's regions as masks for guidance (Li et al. 2025, Sec. 3.5 and 4.4):
python rewardedit/shapes/benchmarks/bpm_guidance.py

Compares the first edit, a second edit under M_origin ∪ M_edit of the first, and a strong baseline: an edit
with the source pasted outside its mask, which preserves for free, with a hard and with a feathered edge. Each
method uses the text guidance scale that is best for it on val. Masks grow by one latent pixel for guidance,
and as much for pasting. The oracle rates the edits; preservation is outside the world's true mask;
modification is BPM's own. Then best of 8 by BPM, compared with other scorers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from common import load_scorer, read_command_line
from guidance import preservation
from rate_editor import edit
from rivals import batch_of, scored

from rewardedit import EditBatch, best_of_n, devices, load_editor, two_round_edit
from rewardedit.cli import quiet
from rewardedit.diffusion.editors import Editor, SamplingConfig
from rewardedit.diffusion.guidance import soften
from rewardedit.evaluation.preferences import better_equal_worse
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.scorers.bpm.bpm import NOT_THERE, Bpm
from rewardedit.scoring import score_batch
from rewardedit.shapes import Shapes, ShapesBatch, ShapesOracle, join

N = 1120
VAL_N = 280
BATCH = 140
SCALES = (1.5, 1.75, 2.0, 2.25)  # text guidance scales; the image's is the editor's own
GROWN = 4  # pixels: one latent pixel
FEATHER = 2.0  # pixels
BEST_OF = 8
BEST_N = 280
# Differences that count as equal (Table 15), on each measure's own scale.
EQUAL = {
    "modification": 0.02,
    "modification_or_missing": 0.02,
    "size": 0.01,
    "position": 0.01,
    "score": 0.5,
    "alignment": 0.5,
    "consistency": 0.5,
    "quality": 0.5,
    "preservation": 0.005,
}
JUDGES = ("bpm", "vifi_clip", "clip_d", "l1")


def mask_of(samples: ShapesBatch, edited: torch.Tensor, bpm: Bpm) -> torch.Tensor:
    """M_origin ∪ M_edit of every edit, (n, 1, h, w)."""
    starts = range(0, len(samples), BATCH)
    batches = [batch_of(samples[i : i + BATCH], edited[i : i + BATCH]) for i in starts]
    return torch.cat([bpm.masks(one.source, one.edited, one.instruction).cpu() for one in batches])


def guided(
    editor: Editor, samples: ShapesBatch, first: torch.Tensor, masks: torch.Tensor, settings: SamplingConfig
) -> torch.Tensor:
    """The second round under the masks of the first."""
    made = []
    for start in range(0, len(samples), BATCH):
        batch, rows = samples[start : start + BATCH], slice(start, start + BATCH)
        result = two_round_edit(
            editor,
            batch.source,
            batch.instruction,
            mask=lambda *_, batch_masks=masks[rows]: batch_masks,
            first=first[rows],
            seed=start,
            settings=settings,
        )
        made.append(result.edited)
    return torch.cat(made)


def pasted(samples: ShapesBatch, edited: torch.Tensor, masks: torch.Tensor, feather: float) -> torch.Tensor:
    """The edit inside the masks and the source outside."""
    return samples.source.lerp(edited, soften(masks, GROWN, feather).expand_as(edited))


def rounds(
    editor: Editor, samples: ShapesBatch, bpm: Bpm, scales: Mapping[str, Sequence[float]]
) -> dict[str, dict[float, torch.Tensor]]:
    """Images of every method by text guidance scale; the masks of the first edit are listed as another
    method. The second round follows the first edit at the first of that method's scales.
    """
    every = {scale for way_scales in scales.values() for scale in way_scales}
    asked = {scale: replace(editor.settings, guidance_scale=scale) for scale in every}
    alone = {scale for way, way_scales in scales.items() if way != "guided" for scale in way_scales}
    edits = {scale: edit(editor, samples, asked[scale]) for scale in sorted(alone)}
    masks = {scale: mask_of(samples, made, bpm) for scale, made in edits.items()}
    start = scales["first"][0]
    return {
        "first": {scale: edits[scale] for scale in scales["first"]},
        "mask": {start: masks[start]},
        "guided": {
            scale: guided(editor, samples, edits[start], masks[start], asked[scale])
            for scale in scales["guided"]
        },
        "pasted": {scale: pasted(samples, edits[scale], masks[scale], 0.0) for scale in scales["pasted"]},
        "pasted_feathered": {
            scale: pasted(samples, edits[scale], masks[scale], FEATHER)
            for scale in scales["pasted_feathered"]
        },
    }


def best_scales(editor: Editor, val: ShapesBatch, bpm: Bpm) -> tuple[dict[str, float], dict[str, Any]]:
    """Text guidance scale of each method that is best on val, and the figures of all scales there."""

    def rated(images: dict[float, torch.Tensor]) -> dict[float, float]:
        return {scale: float(ShapesOracle().rate(val, image).score.mean()) for scale, image in images.items()}

    every = dict.fromkeys(("first", "pasted", "pasted_feathered"), SCALES)
    tried = rounds(editor, val, bpm, {**every, "guided": ()})
    means = {way: rated(tried[way]) for way in every}
    start = max(SCALES, key=means["first"].__getitem__)
    second = rounds(editor, val, bpm, {**dict.fromkeys(every, ()), "first": (start,), "guided": SCALES})
    means["guided"] = rated(second["guided"])
    return {way: max(by_scale, key=by_scale.__getitem__) for way, by_scale in means.items()}, means


def measures(samples: ShapesBatch, images: torch.Tensor, bpm: Bpm) -> dict[str, np.ndarray]:
    """Measures of each edit: the oracle's rating and aspects, preservation outside the true mask, S_modify if
    the target is located, S_modify or −1, 1 if it is located, S_size and S_position.
    """
    rating = ShapesOracle().rate(samples, images)
    names = ("score", "alignment", "consistency", "quality")
    by_measure = {name: getattr(rating, name).numpy() for name in names}
    by_measure["preservation"] = preservation(samples.source, images, samples.mask).numpy()
    parts = {name: values.numpy() for name, values in scored(bpm, samples, images).parts.items()}
    by_measure["modification"] = parts["modify"]
    by_measure["modification_or_missing"] = np.nan_to_num(parts["modify"], nan=NOT_THERE)
    by_measure["located"] = np.isfinite(parts["modify"]).astype(float)
    return {**by_measure, "size": parts["size"], "position": parts["position"]}


def compare(samples: ShapesBatch, images: dict[str, torch.Tensor], bpm: Bpm) -> dict[str, Any]:
    """Means of every method, and differences from the first edit; rows whose target is not located in one of
    the two have no modification, size and position and are left out of these differences. An edit that a
    second round destroys counts in "modification_or_missing".

    Args:
        bpm: scorer for which an edit whose target is not located is invalid.
    """
    values = {name: measures(samples, image, bpm) for name, image in images.items() if name != "mask"}
    table: dict[str, Any] = {}
    for name, by_measure in values.items():
        table[name] = {"mean": {key: float(np.nanmean(column)) for key, column in by_measure.items()}}
        if name == "first":
            continue
        for key, column in by_measure.items():
            known = np.isfinite(column) & np.isfinite(values["first"][key])
            ids = [samples.id[i] for i in np.flatnonzero(known)]
            versus = paired_bootstrap(column[known], values["first"][key][known], ids)
            row = {"difference": versus.difference, "ci95": list(versus.ci95), "n": len(ids)}
            if key in EQUAL:
                shares = better_equal_worse(values["first"][key][known], column[known], EQUAL[key])
                row["better_equal_worse"] = list(shares)
            table[name][key] = row
    pasted = values["pasted_feathered"]["quality"]
    against = paired_bootstrap(values["guided"]["quality"], pasted, samples.id)
    table["guided_minus_pasted_quality"] = {"difference": against.difference, "ci95": list(against.ci95)}
    return table


def best_of(editor: Editor, samples: ShapesBatch, bpm: Bpm, settings: SamplingConfig) -> dict[str, Any]:
    """The oracle's mean rating of each scorer's choices among the same candidates."""
    scorers = {name: bpm if name == "bpm" else load_scorer(name) for name in JUDGES}
    for scorer in scorers.values():
        scorer.to(devices.default_device())
    chosen: dict[str, list[float]] = {name: [] for name in ("one sample", *JUDGES, "oracle's choice")}
    for i in range(len(samples)):
        source = samples.source[i]
        instruction = samples.instruction[i]
        candidates = best_of_n(
            editor, scorers["l1"], source, instruction, BEST_OF, seed=BEST_OF * i, settings=settings
        )
        rating = ShapesOracle().rate(join([samples[i : i + 1]] * BEST_OF), candidates.images).score
        batch = EditBatch(source.expand(BEST_OF, -1, -1, -1), [instruction] * BEST_OF, candidates.images)
        chosen["one sample"].append(float(rating[0]))
        chosen["oracle's choice"].append(float(rating.max()))
        for name, scorer in scorers.items():
            score = score_batch(batch, {"": scorer})[""].score.nan_to_num(-torch.inf)
            chosen[name].append(float(rating[int(score.argmax())]))
    one = chosen["one sample"]
    return {
        name: {
            "mean": float(np.mean(values)),
            "ci95_vs_one_sample": list(paired_bootstrap(values, one, samples.id).ci95),
        }
        for name, values in chosen.items()
    }


if __name__ == "__main__":
    line = read_command_line(__doc__)
    quiet()
    torch.set_grad_enabled(False)
    editor = load_editor("shapes/editor")
    bpm = load_scorer("bpm", missing_object="failed")
    assert isinstance(bpm, Bpm)
    chosen, on_val = best_scales(editor, Shapes("val").batch(0, VAL_N), bpm)
    test = Shapes("test").batch(0, N)
    edits = rounds(editor, test, bpm, {way: (scale,) for way, scale in chosen.items()})
    images = {way: next(iter(made.values())) for way, made in edits.items()}
    strict = load_scorer("bpm")
    assert isinstance(strict, Bpm)
    settings = replace(editor.settings, guidance_scale=chosen["first"])
    figures = {
        "n": N,
        "guidance_scale": chosen,
        "val": on_val,
        "oracle": compare(test, images, strict),
        "best_of_8": best_of(editor, test[:BEST_N], bpm, settings),
        "mask_share": float(images["mask"].mean()),
    }
    line.keep("bpm-guidance", figures)
