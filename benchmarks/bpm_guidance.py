"""BPM's regions as masks for guidance (Li et al. 2025, Sec. 3.5 and 4.4): python benchmarks/bpm_guidance.py

The first edit, the second under M_origin ∪ M_edit of the first, and the honest baseline: the first edit with
the source pasted outside the same mask, which preserves for free, with a hard and with a feathered rim. Masks
grow by one place of the latents for guidance and by as much for pasting. Rated by the oracle; preservation
outside the world's true mask; modification is BPM's own. Then best of 8 by BPM beside other scorers.
"""

from typing import Any

import numpy as np
import torch
from guidance import preservation
from rate_editor import edit
from record import keep
from rivals import batch_of, scored

from rewardedit import EditBatch, best_of_n, devices, load_editor, load_scorer, two_round_edit
from rewardedit.cli import quiet
from rewardedit.data.shapes import Shapes, ShapesBatch, ShapesOracle, join
from rewardedit.diffusion.editors import Editor
from rewardedit.diffusion.guidance import soften
from rewardedit.evaluation.preferences import better_equal_worse
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.scorers.bpm import NOT_THERE, Bpm
from rewardedit.scoring import score_batch

N = 1120
BATCH = 140
GROWN = 4  # pixels: one place of the latents
FEATHER = 2.0  # pixels
BEST_OF = 8
BEST_N = 280
# What counts as equal (Table 15), on each measure's own scale.
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
JUDGES = ("bpm", "vifi_clip", "clip_d", "l1")  # and a scorer of ADIEE's, once one is trained


def rounds(editor: Editor, samples: ShapesBatch, bpm: Bpm) -> dict[str, torch.Tensor]:
    """The images of every way, by name, and the masks."""
    made: dict[str, list[torch.Tensor]] = {
        name: [] for name in ("first", "guided", "pasted", "pasted_feathered", "mask")
    }
    for start in range(0, len(samples), BATCH):
        part = samples[start : start + BATCH]
        first = edit(editor, part, editor.settings, seed=start)
        batch = batch_of(part, first)
        masks = bpm.masks(batch.source, batch.edited, batch.instruction).cpu()
        found = two_round_edit(
            editor, part.source, part.instruction, mask=lambda *_, own=masks: own, first=first, seed=start
        )
        made["first"].append(first)
        made["guided"].append(found.edited)
        for name, feather in (("pasted", 0.0), ("pasted_feathered", FEATHER)):
            made[name].append(part.source.lerp(first, soften(masks, GROWN, feather).expand_as(first)))
        made["mask"].append(masks)
    return {name: torch.cat(images) for name, images in made.items()}


def measures(samples: ShapesBatch, images: torch.Tensor, bpm: Bpm) -> dict[str, np.ndarray]:
    """Of each edit: the oracle's rating and aspects, preservation outside the true mask, S_modify where the
    target is located, and with −1 where it is not, whether it is, S_size and S_position.
    """
    rating = ShapesOracle().rate(samples, images)
    names = ("score", "alignment", "consistency", "quality")
    found = {name: getattr(rating, name).numpy() for name in names}
    found["preservation"] = preservation(samples.source, images, samples.mask).numpy()
    parts = {name: values.numpy() for name, values in scored(bpm, samples, images).parts.items()}
    found["modification"] = parts["modify"]
    found["modification_or_missing"] = np.nan_to_num(parts["modify"], nan=NOT_THERE)
    found["located"] = np.isfinite(parts["modify"]).astype(float)
    return {**found, "size": parts["size"], "position": parts["position"]}


def compare(samples: ShapesBatch, images: dict[str, torch.Tensor], bpm: Bpm) -> dict[str, Any]:
    """Means of every way, and what each adds to the first edit; rows whose target is not located in one of
    the two have no modification, size and position and are left out of these differences. An edit that a
    second round destroys counts in "modification_or_missing".

    Args:
        bpm: by which an edit whose target is not located is invalid.
    """
    values = {name: measures(samples, image, bpm) for name, image in images.items() if name != "mask"}
    table: dict[str, Any] = {}
    for name, own in values.items():
        table[name] = {"mean": {key: float(np.nanmean(found)) for key, found in own.items()}}
        if name == "first":
            continue
        for key, found in own.items():
            known = np.isfinite(found) & np.isfinite(values["first"][key])
            ids = [samples.id[i] for i in np.flatnonzero(known)]
            versus = paired_bootstrap(found[known], values["first"][key][known], ids)
            row = {"difference": versus.difference, "ci95": list(versus.ci95), "n": len(ids)}
            if key in EQUAL:
                shares = better_equal_worse(values["first"][key][known], found[known], EQUAL[key])
                row["better_equal_worse"] = list(shares)
            table[name][key] = row
    pasted = values["pasted_feathered"]["quality"]
    against = paired_bootstrap(values["guided"]["quality"], pasted, samples.id)
    table["guided_minus_pasted_quality"] = {"difference": against.difference, "ci95": list(against.ci95)}
    return table


def best_of(editor: Editor, samples: ShapesBatch, bpm: Bpm) -> dict[str, Any]:
    """The oracle's mean rating of what each scorer chooses of the same candidates."""
    scorers = {name: bpm if name == "bpm" else load_scorer(name) for name in JUDGES}
    for scorer in scorers.values():
        scorer.to(devices.default_device())
    chosen: dict[str, list[float]] = {name: [] for name in ("one sample", *JUDGES, "oracle's choice")}
    for i in range(len(samples)):
        source = samples.source[i]
        instruction = samples.instruction[i]
        found = best_of_n(editor, scorers["l1"], source, instruction, BEST_OF, seed=BEST_OF * i)
        rating = ShapesOracle().rate(join([samples[i : i + 1]] * BEST_OF), found.images).score
        batch = EditBatch(source.expand(BEST_OF, -1, -1, -1), [instruction] * BEST_OF, found.images)
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
    quiet()
    torch.set_grad_enabled(False)
    editor = load_editor("shapes-editor")
    bpm = load_scorer("bpm", undetected="failed").to(devices.default_device())
    assert isinstance(bpm, Bpm)
    test = Shapes("test").batch(0, N)
    found = rounds(editor, test, bpm)
    strict = load_scorer("bpm").to(devices.default_device())
    assert isinstance(strict, Bpm)
    figures = {
        "n": N,
        "oracle": compare(test, found, strict),
        "best_of_8": best_of(editor, test[:BEST_N], bpm),
        "mask_share": float(found["mask"].mean()),
    }
    keep("bpm-guidance", "python benchmarks/bpm_guidance.py", figures)
