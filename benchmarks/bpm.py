"""BPM's evaluation on the shapes world (Li et al. 2025, Sec. 4 and App. B): python benchmarks/bpm.py [RUNS]

Editors are the shipped one and those that its recipes make in RUNS (default: runs), each at its own settings.
The people of the human alignment test are the oracle: pairs of edits whose ratings differ by less than 1 are
left out. Regions are located, never exact. An edit whose target object is not found counts as failed.
"""

import itertools
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import StableDiffusionDiffEditPipeline
from rate_editor import edit
from rate_editors import SCORED, UNSEEN
from rate_text_to_image import draw
from record import keep

from rewardedit import EditBatch, load_editor, load_scorer
from rewardedit.batch import Scores
from rewardedit.cli import quiet
from rewardedit.data.shapes import Shapes, ShapesBatch, ShapesOracle
from rewardedit.diffusion.text_to_image import load_text_to_image
from rewardedit.evaluation.preferences import agreement, favoured
from rewardedit.evaluation.statistics import paired_bootstrap, spearman
from rewardedit.instructions.grammar import parse_all
from rewardedit.regions.base import ChangedPlaces, NamedObjects
from rewardedit.regions.change_map import change_mask
from rewardedit.regions.grounded_sam import GroundedSam
from rewardedit.scorers import Scorer
from rewardedit.scorers.bpm import PARTS, Bpm, BpmConfig, combine
from rewardedit.scoring import score_batch
from rewardedit.synthesis.methods import set_ddim

N = 560  # test samples
LEAST = 1.0  # of 10: ratings that differ by less are held equal
SIGMAS = (5, 15, 50)  # of 255, of the noise on what is too well preserved
BATCH = 140
ALPHAS = [round(0.1 * i, 1) for i in range(11)]
# Scorers that see source, edited image and instruction alone, as BPM does.
RIVALS = {
    "clip_t": ("clip_t", {}),
    "clip_i": ("clip_i", {"against": "source"}),
    "clip_t+clip_i": ("clip_t:1,clip_i:1", {}),
    "clip_d": ("clip_d", {}),
    "l2": ("l2", {}),
    "ssim": ("ssim", {}),
    "vifi_clip": ("vifi_clip", {}),
}


def load_rivals() -> dict[str, Scorer]:
    """The rivals by name."""
    loaded = {}
    for name, (spec, options) in RIVALS.items():
        if "," in spec:
            loaded[name] = load_scorer(
                {"clip_t": {"weight": 1.0}, "clip_i": {"weight": 1.0, "against": "source"}}
            )
        else:
            loaded[name] = load_scorer(spec, **options)
    return loaded


def scored(scorer: Scorer, samples: ShapesBatch, edited: torch.Tensor) -> Scores:
    """Of all edits, without captions, targets and masks."""
    parts = []
    for i in range(0, len(samples), BATCH):
        batch = EditBatch(
            samples.source[i : i + BATCH], samples.instruction[i : i + BATCH], edited[i : i + BATCH]
        )
        parts.append(score_batch(batch, {"": scorer})[""])
    names = parts[0].parts
    return Scores(
        torch.cat([part.score for part in parts]),
        {name: torch.cat([part.parts[name] for part in parts]) for name in names},
        torch.cat([part.valid for part in parts]),
        [reason for part in parts for reason in part.reason],
    )


def iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of pairs of masks (n, h, w)."""
    both = (a & b).flatten(1).sum(1)
    either = (a | b).flatten(1).sum(1)
    return both / either.clamp_min(1)


def mask_quality(samples: ShapesBatch, edited: torch.Tensor, bpm: Bpm) -> dict[str, float]:
    """The median IoU with the world's true regions, of masks that are located in several ways; what is not
    found counts as 0.
    """
    true = samples.mask[:, 0] > 0
    batch = EditBatch(samples.source, samples.instruction, edited)
    detector = bpm.locator.finder.detector  # type: ignore[union-attr]
    locators = {
        "bpm": bpm.locator,
        "boxes": NamedObjects(GroundedSam(detector, None)),
        "change_map": ChangedPlaces(),
    }
    parsed = parse_all(samples.instruction)
    found = {}
    for name, locator in locators.items():
        regions = locator.of_edits(batch, parsed, locator.of_sources(samples.source, parsed))
        found[name] = torch.stack([region.mask for region in regions])
    found["diffedit"] = diffedit_masks(samples)
    found["change_mask"] = change_mask(samples.source, edited)[:, 0] > 0.5
    return {name: float(iou(mask, true).median()) for name, mask in found.items()}


def diffedit_masks(samples: ShapesBatch) -> torch.Tensor:
    """DiffEdit's maps, from the true captions; they need no edit."""
    stock = load_text_to_image("shapes-text-to-image")
    parts = {name: module for name, module in stock.components.items() if name != "image_encoder"}
    pipe = StableDiffusionDiffEditPipeline(**parts, inverse_scheduler=None, requires_safety_checker=False)
    set_ddim(pipe)
    pipe.set_progress_bar_config(disable=True)
    masks = []
    for i in range(len(samples)):
        mask = pipe.generate_mask(
            samples.source[i : i + 1],
            [samples.target_caption[i]],
            source_prompt=[samples.source_caption[i]],
            guidance_scale=3.0,
            num_inference_steps=10,
            generator=torch.Generator().manual_seed(i),
        )
        small = torch.as_tensor(mask).float().view(1, 1, *np.shape(mask)[-2:])
        masks.append(torch.nn.functional.interpolate(small, samples.source.shape[-2:])[0, 0] > 0.5)
    return torch.stack(masks)


def ground_truth(samples: ShapesBatch, scorers: dict[str, Scorer]) -> dict[str, dict[str, dict[str, float]]]:
    """The share of rows of which each kind of image is liked best, by scorer and by the noise's σ."""
    drawn = draw(load_text_to_image("shapes-text-to-image"), samples.target_caption, 10, 3.0)
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in scorers}
    for sigma in SIGMAS:
        noise = torch.randn(samples.source.shape, generator=torch.Generator().manual_seed(sigma))
        noisy = (samples.source + sigma / 255 * noise).clamp(0, 1)
        images = {"ground_truth": samples.target, "noise": noisy, "generated": drawn}
        for name, scorer in scorers.items():
            values = {kind: scored(scorer, samples, image).score.tolist() for kind, image in images.items()}
            found[name][str(sigma)] = favoured(values)
    return found


def pairs_of(names: list[str]) -> list[tuple[str, str]]:
    return list(itertools.combinations(names, 2))


def alignment_table(
    scores: dict[str, dict[str, np.ndarray]],
    ratings: dict[str, np.ndarray],
    prior: dict[str, float],
    ids: list[str],
) -> dict[str, Any]:
    """Each scorer's alignment, mean over pairs of editors and of all pairs of edits, and how far BPM lies
    above "the editor that is better on val".

    Args:
        scores: by scorer, of each editor's edits.
        prior: each editor's mean rating on val.
    """
    pairs = pairs_of(list(ratings))
    right = {
        name: [agreement(own[a], own[b], ratings[a], ratings[b], LEAST) for a, b in pairs]
        for name, own in scores.items()
    }
    constant = {name: np.full(len(ids), value) for name, value in prior.items()}
    right["prior"] = [agreement(constant[a], constant[b], ratings[a], ratings[b], LEAST) for a, b in pairs]
    counted = ~np.isnan(np.concatenate(right["prior"]))
    cluster = np.tile(ids, len(pairs))[counted]
    pooled = {name: np.concatenate(values)[counted] for name, values in right.items()}
    versus = paired_bootstrap(pooled["bpm"], pooled["prior"], cluster)
    return {
        "mean_over_pairs": {
            name: float(np.mean([np.nanmean(v) for v in values])) for name, values in right.items()
        },
        "pooled": {name: float(values.mean()) for name, values in pooled.items()},
        "by_pair": {
            f"{a} | {b}": float(np.nanmean(v)) for (a, b), v in zip(pairs, right["bpm"], strict=True)
        },
        "ci95_vs_prior": list(versus.ci95),
        "n": int(counted.sum()),
    }


def alpha_sweep(
    parts: dict[str, dict[str, torch.Tensor]], ratings: dict[str, np.ndarray], config: BpmConfig
) -> dict[str, float]:
    """Alignment, mean over pairs of editors, by the weight of the semantic part (Table 9)."""
    table = {}
    for alpha in ALPHAS:
        weighed = BpmConfig(alpha=alpha, calibration=config.calibration, undetected="failed")
        score = {name: combine(found, weighed)[2].numpy() for name, found in parts.items()}
        shares = [
            np.nanmean(agreement(score[a], score[b], ratings[a], ratings[b], LEAST))
            for a, b in pairs_of(list(ratings))
        ]
        table[f"{alpha:g}"] = float(np.mean(shares))
    return table


def seconds(bpm: Bpm, samples: ShapesBatch) -> dict[str, float]:
    """Seconds an edit, of each part and of all, in batches and one by one."""
    n = 56
    part = samples[:n]
    batch = EditBatch(part.source, part.instruction, part.target)
    parsed = parse_all(part.instruction)

    def timed(call: Any) -> float:
        call()
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) / n

    detector = bpm.locator.finder.detector  # type: ignore[union-attr]
    segmenter = bpm.locator.finder.segmenter  # type: ignore[union-attr]
    names = [edit.target or "red circle" for edit in parsed]  # type: ignore[union-attr]
    boxes = [found for found, _ in detector(part.target, names)]
    regions = bpm.locate(batch)
    kept = [i for i, region in enumerate(regions) if region.reason is None]
    return {
        "parse": timed(lambda: parse_all(part.instruction)),
        "detect": timed(lambda: detector(part.target, names)),
        "segment": timed(lambda: segmenter(part.target, boxes)),
        "clip": timed(
            lambda: bpm.modify(
                part.source[kept],
                part.target[kept],
                [parsed[i] for i in kept],
                [regions[i] for i in kept],  # type: ignore[misc]
            )
        ),
        "all_in_a_batch": timed(lambda: bpm(batch)),
        "all_one_by_one": timed(lambda: [bpm(batch[i : i + 1]) for i in range(n)]),
    }


def main(runs: Path) -> dict[str, Any]:
    paths = {"shapes-editor": "shapes-editor"}
    for name in (*SCORED, *UNSEEN):
        paths[f"shapes-editor-{name}"] = str(runs / f"shapes-editor-{name}" / "pipeline")
    val = Shapes("val").batch(0, 140)
    test = Shapes("test").batch(0, N)
    bpm = load_scorer("bpm", undetected="failed")
    assert isinstance(bpm, Bpm)
    scorers: dict[str, Scorer] = {"bpm": bpm, **load_rivals()}

    edits: dict[str, torch.Tensor] = {}
    prior: dict[str, float] = {}
    for name, path in paths.items():
        editor = load_editor(path)
        edits[name] = edit(editor, test, editor.settings)
        prior[name] = float(ShapesOracle().rate(val, edit(editor, val, editor.settings)).score.mean())
    again = edit(load_editor("shapes-editor"), test, load_editor("shapes-editor").settings, seed=10_000)
    ratings = {name: ShapesOracle().rate(test, image).score.numpy() for name, image in edits.items()}
    found = {name: {e: scored(s, test, image) for e, image in edits.items()} for name, s in scorers.items()}
    values = {name: {e: scores.score.numpy() for e, scores in own.items()} for name, own in found.items()}
    parts = {e: {name: scores.parts[name] for name in PARTS} for e, scores in found["bpm"].items()}

    aligned = alignment_table(values, ratings, prior, test.id)
    truth = ground_truth(test, scorers)
    seeds = {"first": ratings["shapes-editor"], "second": ShapesOracle().rate(test, again).score.numpy()}
    of_seeds = {"first": values["bpm"]["shapes-editor"], "second": scored(bpm, test, again).score.numpy()}
    between = agreement(of_seeds["first"], of_seeds["second"], seeds["first"], seeds["second"], LEAST)
    worst = {name: min(shares["ground_truth"] for shares in by.values()) for name, by in truth.items()}
    spread = np.array([kind == "background" for kind in test.edit_type])
    return {
        "n": N,
        "mask_iou_median": mask_quality(test, edits["shapes-editor"], bpm)["bpm"],
        "mask_iou": {
            "edits": mask_quality(test, edits["shapes-editor"], bpm),
            "true_edits": mask_quality(test, test.target, bpm),
        },
        "ground_truth": worst["bpm"],
        "ground_truth_by_noise": truth,
        "alignment": aligned["mean_over_pairs"]["bpm"],
        "prior": aligned["mean_over_pairs"]["prior"],
        "ci95_vs_prior": aligned["ci95_vs_prior"],
        "alignment_table": aligned,
        "rivals": {
            name: {"ground_truth": worst[name], "alignment": aligned["mean_over_pairs"][name]}
            for name in RIVALS
        },
        "two_seeds": {"alignment": float(np.nanmean(between)), "n": int((~np.isnan(between)).sum())},
        "alpha": alpha_sweep(parts, ratings, bpm.config),
        "components": {name: aligned_by(parts, ratings, name) for name in PARTS},
        "by_extent": {
            "local": subset_alignment(values["bpm"], ratings, ~spread),
            "global": subset_alignment(values["bpm"], ratings, spread),
        },
        "spearman_by_editor": {
            e: spearman(np.nan_to_num(values["bpm"][e], nan=-1.0), ratings[e], test.id).as_dict()
            for e in edits
        },
        "seconds": seconds(bpm, test),
    }


def aligned_by(parts: dict[str, dict[str, torch.Tensor]], ratings: dict[str, np.ndarray], name: str) -> float:
    """Alignment of one part alone, mean over pairs of editors (Tables 5 and 14)."""
    own = {e: found[name].numpy() for e, found in parts.items()}
    return subset_alignment(own, ratings, np.ones(N, dtype=bool))


def subset_alignment(
    values: dict[str, np.ndarray], ratings: dict[str, np.ndarray], rows: np.ndarray
) -> float:
    """Alignment on some of the rows, mean over pairs of editors."""
    shares = [
        np.nanmean(agreement(values[a][rows], values[b][rows], ratings[a][rows], ratings[b][rows], LEAST))
        for a, b in pairs_of(list(ratings))
    ]
    return float(np.mean(shares))


if __name__ == "__main__":
    quiet()
    torch.set_grad_enabled(False)
    keep("bpm", " ".join(["python benchmarks/bpm.py", *sys.argv[1:]]), main(Path(*sys.argv[1:] or ["runs"])))
