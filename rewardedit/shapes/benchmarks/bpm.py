"""BPM's evaluation on the shapes world (Li et al. 2025, Sec. 4 and App. B):
python rewardedit/shapes/benchmarks/bpm.py [RUNS]

Editors are the shipped one and those that its recipes make in RUNS (default: runs), each at the settings
that are best for it on val. The oracle replaces the people of the human alignment test: pairs of edits whose
ratings differ by less than 1 are left out. Regions are located, never exact. An edit whose target object is
not found has failed. LPIPS is a rival if REWARDEDIT_LPIPS names the folder of its weights.
"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bpm_checks import LEAST, seconds, subset_alignment
from bpm_regions import diffedit_masks, iou, mask_ious, medians
from common import load_scorer, read_command_line
from edits import best_settings_of, editors_in, edits_of
from rate_text_to_image import draw
from rivals import RIVALS, load_rivals, scored

from rewardedit import devices
from rewardedit.cli import quiet
from rewardedit.diffusion.text_to_image import load_text_to_image
from rewardedit.evaluation.preferences import agreement, alignment, alignment_of_editors, favoured, mean_share
from rewardedit.evaluation.statistics import paired_bootstrap, spearman
from rewardedit.scorers import Scorer
from rewardedit.scorers.bpm.bpm import Bpm
from rewardedit.shapes import Shapes, ShapesBatch, ShapesOracle

N = 560  # test samples
SIGMAS = (5, 15, 50)  # standard deviations, out of 255, of the noise on regions that are preserved too well


def ground_truth(samples: ShapesBatch, scorers: dict[str, Scorer]) -> dict[str, dict[str, dict[str, float]]]:
    """Share of rows for which each kind of image scores best, by scorer and by the noise's σ."""
    drawn = draw(load_text_to_image("shapes/text-to-image"), samples.target_caption, 10, 3.0)
    shares: dict[str, dict[str, dict[str, float]]] = {name: {} for name in scorers}
    for sigma in SIGMAS:
        noise = torch.randn(samples.source.shape, generator=torch.Generator().manual_seed(sigma))
        noisy = (samples.source + sigma / 255 * noise).clamp(0, 1)
        images = {"ground_truth": samples.target, "noise": noisy, "generated": drawn}
        for name, scorer in scorers.items():
            values = {kind: scored(scorer, samples, image).score.tolist() for kind, image in images.items()}
            shares[name][str(sigma)] = favoured(values)
    return shares


def pairs_of(names: list[str]) -> list[tuple[str, str]]:
    return list(itertools.combinations(names, 2))


def alignment_table(
    scores: dict[str, dict[str, np.ndarray]],
    ratings: dict[str, np.ndarray],
    prior: dict[str, float],
    ids: list[str],
) -> dict[str, Any]:
    """Each scorer's alignment, averaged over pairs of editors and over all pairs of edits, and the lead of
    BPM over "the editor that is better on val".

    Args:
        scores: scores of each editor's edits, by scorer.
        prior: each editor's mean rating on val.
    """
    pairs = pairs_of(list(ratings))
    constant = {name: np.full(len(ids), value) for name, value in prior.items()}
    every = {**scores, "prior": constant}
    tested = {name: alignment_of_editors(by_editor, ratings, LEAST) for name, by_editor in every.items()}
    pooled = {}
    for name in ("bpm", "prior"):
        by_editor = every[name]
        right = [agreement(by_editor[a], by_editor[b], ratings[a], ratings[b], LEAST) for a, b in pairs]
        pooled[name] = np.concatenate(right)
    counted = ~np.isnan(pooled["prior"])
    cluster = np.tile(ids, len(pairs))[counted]
    versus = paired_bootstrap(pooled["bpm"][counted], pooled["prior"][counted], cluster)
    return {
        "mean_over_pairs": {name: mean_share(by_pair) for name, by_pair in tested.items()},
        "by_pair": {f"{a} | {b}": estimate.as_dict() for (a, b), estimate in tested["bpm"].items()},
        "pooled": {"bpm": versus.mean_a, "prior": versus.mean_b},
        "ci95_vs_prior": list(versus.ci95),
        "n": int(counted.sum()),
    }


def ratings_of(samples: ShapesBatch, edits: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: ShapesOracle().rate(samples, images) for name, images in edits.items()}


def two_seeds(
    bpm: Bpm, test: ShapesBatch, edits: dict[str, torch.Tensor], again: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """BPM's alignment on pairs of edits by the same editor from two seeds."""
    table = {}
    for name in edits:
        pair = (edits[name], again[name])
        scores = [scored(bpm, test, images).score.numpy() for images in pair]
        ratings = [ShapesOracle().rate(test, images).score.numpy() for images in pair]
        table[name] = alignment(*scores, *ratings, LEAST).as_dict()
    return table


def mask_table(bpm: Bpm, test: ShapesBatch, edits: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Median overlaps of masks with the true regions."""
    ious = {name: mask_ious(test, images, bpm) for name, images in edits.items()}
    every = {way: torch.cat([by_way[way] for by_way in ious.values()]) for way in next(iter(ious.values()))}
    return {
        "edits": medians(every),
        "by_editor": {name: medians(by_way) for name, by_way in ious.items()},
        "true_edits": medians(mask_ious(test, test.target, bpm)),
        "diffedit": float(iou(diffedit_masks(test), test.mask[:, 0] > 0).median()),
    }


def main(runs: Path, n: int = N) -> dict[str, Any]:
    paths = editors_in(runs)
    settings = best_settings_of(list(paths))
    val = Shapes("val").batch(0, min(n, 140))
    test = Shapes("test").batch(0, n)
    bpm = load_scorer("bpm", missing_object="failed")
    assert isinstance(bpm, Bpm)
    scorers: dict[str, Scorer] = {"bpm": bpm, **load_rivals()}
    for scorer in scorers.values():
        scorer.to(devices.default_device())

    # Every editor's edits, the ratings of people (here the oracle), and the scores.
    edits = edits_of(paths, settings, "test", n, runs)
    again = edits_of(paths, settings, "test", n, runs, seed=10_000)
    early = edits_of(paths, settings, "val", len(val), runs)
    prior = {name: float(rating.score.mean()) for name, rating in ratings_of(val, early).items()}
    rated = ratings_of(test, edits)
    ratings = {name: rating.score.numpy() for name, rating in rated.items()}
    results = {
        name: {e: scored(s, test, images) for e, images in edits.items()} for name, s in scorers.items()
    }
    values = {
        name: {e: scores.score.numpy() for e, scores in by_editor.items()}
        for name, by_editor in results.items()
    }

    aligned = alignment_table(values, ratings, prior, test.id)
    share = aligned["mean_over_pairs"]
    truth = ground_truth(test, scorers)
    worst = {name: min(shares["ground_truth"] for shares in by.values()) for name, by in truth.items()}
    masks = mask_table(bpm, test, edits)
    whole = np.array([kind == "background" for kind in test.edit_type])
    return {
        "n": n,
        "mask_iou_median": masks["edits"]["bpm"],
        "mask_iou": masks,
        "ground_truth": worst["bpm"],
        "ground_truth_by_noise": truth,
        "alignment": share["bpm"],
        "prior": share["prior"],
        "ci95_vs_prior": aligned["ci95_vs_prior"],
        "alignment_table": aligned,
        "rivals": {name: {"ground_truth": worst[name], "alignment": share[name]} for name in RIVALS},
        "two_seeds": two_seeds(bpm, test, edits, again),
        "by_extent": {
            "local": subset_alignment(values["bpm"], ratings, ~whole),
            "global": subset_alignment(values["bpm"], ratings, whole),
        },
        "spearman_by_editor": {
            e: spearman(np.nan_to_num(predicted, nan=-1.0), ratings[e], test.id).as_dict("rho")
            for e, predicted in values["bpm"].items()
        },
        "seconds": seconds(bpm, test),
    }


if __name__ == "__main__":
    line = read_command_line(__doc__, "RUNS", many=False)
    quiet()
    torch.set_grad_enabled(False)
    line.keep("bpm", main(Path(*line.words or ["runs"])))
