"""BPM's evaluation on the shapes world (Li et al. 2025, Sec. 4 and App. B): python benchmarks/bpm.py [RUNS]

Editors are the shipped one and those that its recipes make in RUNS (default: runs), each at the settings
that are best for it on val. The people of the human alignment test are the oracle: pairs of edits whose
ratings differ by less than 1 are left out. Regions are located, never exact. An edit whose target object is
not found has failed. LPIPS stands among the rivals where REWARDEDIT_LPIPS names the folder of its weights.
"""

import itertools
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import StableDiffusionDiffEditPipeline
from edits import best_settings_of, editors_in, edits_of
from rate_text_to_image import draw
from record import keep

from rewardedit import EditBatch, devices, load_scorer
from rewardedit.batch import Scores
from rewardedit.cli import quiet
from rewardedit.data.shapes import Shapes, ShapesBatch, ShapesOracle
from rewardedit.diffusion.text_to_image import load_text_to_image
from rewardedit.evaluation.parsing import parse_accuracy
from rewardedit.evaluation.preferences import (
    agreement,
    alignment,
    alignment_of_editors,
    favoured,
    mean_share,
)
from rewardedit.evaluation.statistics import paired_bootstrap, spearman
from rewardedit.instructions.grammar import parse_all
from rewardedit.instructions.parsed import Parsed
from rewardedit.regions.base import NamedObjects
from rewardedit.regions.change_map import change_mask
from rewardedit.regions.grounded_sam import GroundedSam
from rewardedit.scorers import Scorer
from rewardedit.scorers.bpm import PARTS, Bpm, BpmConfig, combine, parsed_edits
from rewardedit.scoring import score_batch
from rewardedit.synthesis.methods import set_ddim

N = 560  # test samples
INSTRUCTIONS = Path(__file__).parents[1] / "tests" / "data" / "instructions.jsonl"
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
if "REWARDEDIT_LPIPS" in os.environ:  # the folder of its published weights
    RIVALS["lpips"] = ("lpips", {"weights": os.environ["REWARDEDIT_LPIPS"]})


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


def batch_of(samples: ShapesBatch, edited: torch.Tensor) -> EditBatch:
    """The edits without captions, targets and masks, where models are."""
    return EditBatch(samples.source, samples.instruction, edited).to(devices.default_device())


def scored(scorer: Scorer, samples: ShapesBatch, edited: torch.Tensor) -> Scores:
    """Of all edits."""
    starts = range(0, len(samples), BATCH)
    batches = [batch_of(samples[i : i + BATCH], edited[i : i + BATCH]) for i in starts]
    parts = [score_batch(batch, {"": scorer})[""] for batch in batches]
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


def located(locator: Any, samples: ShapesBatch, edited: torch.Tensor) -> torch.Tensor:
    """M_origin ∪ M_edit of every edit, (n, h, w); empty where something is not found."""
    masks = []
    for i in range(0, len(samples), BATCH):
        batch = batch_of(samples[i : i + BATCH], edited[i : i + BATCH])
        parsed = parsed_edits(parse_all(batch.instruction))
        regions = locator.of_edits(batch, parsed, locator.of_sources(batch.source, parsed))
        masks += [found.mask.cpu() & (found.reason is None) for found in regions]
    return torch.stack(masks)


def mask_ious(samples: ShapesBatch, edited: torch.Tensor, bpm: Bpm) -> dict[str, torch.Tensor]:
    """The IoU of every edit's mask with the world's true regions, of masks that are located in several ways;
    what is not found counts as 0.
    """
    true = samples.mask[:, 0] > 0
    boxes = NamedObjects(GroundedSam(finder_of(bpm).detector, None))
    found = {
        "bpm": located(bpm.locator, samples, edited),
        "boxes": located(boxes, samples, edited),
        "change_mask": change_mask(samples.source, edited)[:, 0] > 0.5,
    }
    return {name: iou(mask, true) for name, mask in found.items()}


def medians(ious: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(values.median()) for name, values in ious.items()}


def finder_of(bpm: Bpm) -> GroundedSam:
    """The detector and segmenter of a BPM scorer."""
    assert isinstance(bpm.locator, NamedObjects)
    assert isinstance(bpm.locator.finder, GroundedSam)
    return bpm.locator.finder


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
    constant = {name: np.full(len(ids), value) for name, value in prior.items()}
    every = {**scores, "prior": constant}
    tested = {name: alignment_of_editors(own, ratings, LEAST) for name, own in every.items()}
    pooled = {}
    for name in ("bpm", "prior"):
        own = every[name]
        right = [agreement(own[a], own[b], ratings[a], ratings[b], LEAST) for a, b in pairs]
        pooled[name] = np.concatenate(right)
    counted = ~np.isnan(pooled["prior"])
    cluster = np.tile(ids, len(pairs))[counted]
    versus = paired_bootstrap(pooled["bpm"][counted], pooled["prior"][counted], cluster)
    return {
        "mean_over_pairs": {name: mean_share(found) for name, found in tested.items()},
        "by_pair": {f"{a} | {b}": found.as_dict() for (a, b), found in tested["bpm"].items()},
        "pooled": {"bpm": versus.mean_a, "prior": versus.mean_b},
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
        rows = np.ones(len(next(iter(ratings.values()))), dtype=bool)
        table[f"{alpha:g}"] = subset_alignment(score, ratings, rows)
    return table


def seconds(bpm: Bpm, samples: ShapesBatch) -> dict[str, float]:
    """Seconds an edit, of each part and of all, in batches and one by one."""
    n = 56
    part = samples[:n]
    batch = batch_of(part, part.target)
    parsed = parsed_edits(parse_all(part.instruction))

    def timed(call: Any) -> float:
        call()
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) / n

    detector = finder_of(bpm).detector
    segmenter = finder_of(bpm).segmenter
    assert segmenter is not None
    names = [edit.target or "red circle" for edit in parsed]
    boxes = [found for found, _ in detector(batch.edited, names)]
    regions = bpm.locate(batch)
    kept = [i for i, region in enumerate(regions) if region.reason is None]
    return {
        "parse": timed(lambda: parse_all(part.instruction)),
        "detect": timed(lambda: detector(batch.edited, names)),
        "segment": timed(lambda: segmenter(batch.edited, boxes)),
        "clip": timed(
            lambda: bpm.modify(
                batch.source[kept],
                batch.edited[kept],
                [parsed[i] for i in kept],
                [regions[i] for i in kept],  # type: ignore[misc]
            )
        ),
        "all_in_a_batch": timed(lambda: bpm(batch)),
        "all_one_by_one": timed(lambda: [bpm(batch[i : i + 1]) for i in range(n)]),
    }


def plain_similarity(bpm: Bpm, samples: ShapesBatch, edited: torch.Tensor) -> np.ndarray:
    """cos(I(crop of edited), T(target)), without direction; NaN where the edit names or shows no target."""
    parts = []
    for i in range(0, len(samples), BATCH):
        batch = batch_of(samples[i : i + BATCH], edited[i : i + BATCH])
        names = [one.target for one in parsed_edits(parse_all(batch.instruction))]
        regions = bpm.locate(batch)
        crops = bpm.crop_features([*batch.edited], [region.edited for region in regions])
        similarity = torch.cosine_similarity(crops, bpm.name_features(names))
        known = [
            name is not None and region.reason is None for name, region in zip(names, regions, strict=True)
        ]
        parts.append(torch.where(torch.tensor(known), similarity.cpu(), torch.nan))
    return torch.cat(parts).numpy()


def component_checks(
    found: dict[str, dict[str, Scores]],
    rated: dict[str, Any],
    samples: ShapesBatch,
    on_crop: dict[str, np.ndarray],
) -> dict[str, Any]:
    """Each part against what it stands for (Tables 5, 7 and 14), beside the metric that it should beat:
    preserve and L2 against the oracle's consistency; modify, CLIPScore and CLIP's plain similarity of the
    edited crop with the target's name against its alignment.
    """
    consistency = {name: rating.consistency.numpy() for name, rating in rated.items()}
    alignment = {name: rating.alignment.numpy() for name, rating in rated.items()}
    kept = {name: scores.parts["preserve"].numpy() for name, scores in found["bpm"].items()}
    changed = {name: scores.parts["modify"].numpy() for name, scores in found["bpm"].items()}
    rivals = {
        rival: {name: scores.score.numpy() for name, scores in found[rival].items()}
        for rival in ("l2", "clip_t")
    }
    every = np.ones(len(samples), dtype=bool)
    return {
        "consistency": {
            "preserve": subset_alignment(kept, consistency, every),
            "l2": subset_alignment(rivals["l2"], consistency, every),
        },
        "alignment": {
            "modify": subset_alignment(changed, alignment, every),
            "clip_t": subset_alignment(rivals["clip_t"], alignment, every),
            "clip_on_crop": subset_alignment(on_crop, alignment, every),
        },
    }


def verdicts_on_true_edits(bpm: Bpm, samples: ShapesBatch) -> dict[str, float]:
    """How often the judges find size and position right in true edits, and wrong in the sources of edits that
    ask for another one (Table 6).
    """
    right = scored(bpm, samples, samples.target).parts
    still = scored(bpm, samples, samples.source).parts
    resized = torch.tensor([edit.size != "unchanged" for edit in samples.parsed])
    moved = torch.tensor([kind == "move" for kind in samples.edit_type])
    return {
        "size_right": float(right["size"].nan_to_num().mean()),
        "position_right": float(right["position"].nan_to_num().mean()),
        "size_wrong_where_untouched": float((still["size"][resized] == 0).float().mean()),
        "position_wrong_where_untouched": float((still["position"][moved] == 0).float().mean()),
    }


def main(runs: Path, n: int = N) -> dict[str, Any]:
    paths = editors_in(runs)
    settings = best_settings_of(list(paths))
    val = Shapes("val").batch(0, min(n, 140))
    test = Shapes("test").batch(0, n)
    bpm = load_scorer("bpm", undetected="failed")
    assert isinstance(bpm, Bpm)
    scorers: dict[str, Scorer] = {"bpm": bpm, **load_rivals()}
    for scorer in scorers.values():
        scorer.to(devices.default_device())

    edits = edits_of(paths, settings, "test", n, runs)
    again = edits_of(paths, settings, "test", n, runs, seed=10_000)
    rated = {name: ShapesOracle().rate(test, image) for name, image in edits.items()}
    ratings = {name: rating.score.numpy() for name, rating in rated.items()}
    early = edits_of(paths, settings, "val", len(val), runs)
    prior = {name: float(ShapesOracle().rate(val, image).score.mean()) for name, image in early.items()}
    found = {name: {e: scored(s, test, image) for e, image in edits.items()} for name, s in scorers.items()}
    values = {name: {e: scores.score.numpy() for e, scores in own.items()} for name, own in found.items()}
    parts = {e: {name: scores.parts[name] for name in PARTS} for e, scores in found["bpm"].items()}

    aligned = alignment_table(values, ratings, prior, test.id)
    truth = ground_truth(test, scorers)
    worst = {name: min(shares["ground_truth"] for shares in by.values()) for name, by in truth.items()}
    seeds = {}
    for name in paths:
        second = ShapesOracle().rate(test, again[name]).score.numpy()
        scores = (values["bpm"][name], scored(bpm, test, again[name]).score.numpy())
        seeds[name] = alignment(*scores, ratings[name], second, LEAST).as_dict()
    meant = dict(zip(test.instruction, test.parsed, strict=True))

    def parse_exactly(instructions: Sequence[str]) -> list[Parsed]:
        return [meant[instruction] for instruction in instructions]

    told = Bpm(bpm.model, bpm.tokenizer, bpm.preprocess, parse_exactly, bpm.locator, bpm.config)
    by_truth = {e: scored(told, test, image).score.numpy() for e, image in edits.items()}
    whole = np.array([kind == "background" for kind in test.edit_type])
    ious = {name: mask_ious(test, image, bpm) for name, image in edits.items()}
    all_ious = {way: torch.cat([own[way] for own in ious.values()]) for way in next(iter(ious.values()))}
    diffedit = float(iou(diffedit_masks(test), test.mask[:, 0] > 0).median())
    return {
        "n": n,
        "mask_iou_median": medians(all_ious)["bpm"],
        "mask_iou": {
            "edits": medians(all_ious),
            "by_editor": {name: medians(own) for name, own in ious.items()},
            "true_edits": medians(mask_ious(test, test.target, bpm)),
            "diffedit": diffedit,
        },
        "ground_truth": worst["bpm"],
        "ground_truth_by_noise": truth,
        "alignment": aligned["mean_over_pairs"]["bpm"],
        "prior": aligned["mean_over_pairs"]["prior"],
        "ci95_vs_prior": aligned["ci95_vs_prior"],
        "alignment_table": aligned,
        "parse": parse_accuracy(parse_all, INSTRUCTIONS),
        "parse_templates": {
            wordings: templates_parsed(Shapes("test", wordings=wordings).batch(0, n))
            for wordings in ("usual", "reserved")
        },
        "rivals": {
            name: {"ground_truth": worst[name], "alignment": aligned["mean_over_pairs"][name]}
            for name in RIVALS
        },
        "two_seeds": seeds,
        "alpha": alpha_sweep(parts, ratings, bpm.config),
        "components": component_checks(
            found, rated, test, {e: plain_similarity(bpm, test, image) for e, image in edits.items()}
        ),
        "verdicts": verdicts_on_true_edits(bpm, test),
        "parser": {
            "grammar": aligned["mean_over_pairs"]["bpm"],
            "truth": subset_alignment(by_truth, ratings, np.ones(n, dtype=bool)),
        },
        "by_extent": {
            "local": subset_alignment(values["bpm"], ratings, ~whole),
            "global": subset_alignment(values["bpm"], ratings, whole),
        },
        "spearman_by_editor": {
            e: spearman(np.nan_to_num(values["bpm"][e], nan=-1.0), ratings[e], test.id).as_dict()
            for e in edits
        },
        "seconds": seconds(bpm, test),
    }


def templates_parsed(samples: ShapesBatch) -> dict[str, float]:
    """The shares of the world's own instructions that the grammar parses right."""
    pairs = list(zip(parsed_edits(parse_all(samples.instruction)), samples.parsed, strict=True))
    right = {
        "object": [_alike(a.source, b.source) and _alike(a.target, b.target) for a, b in pairs],
        "size": [a.size == b.size for a, b in pairs],
        "position": [a.position == b.position for a, b in pairs],
    }
    return {part: sum(found) / len(found) for part, found in right.items()}


def _alike(name: str | None, other: str | None) -> bool:
    """Whether two names are of one object: one may say more than the other."""
    words, others = (set((text or "").split()) for text in (name, other))
    return (name is None) == (other is None) and (words <= others or others <= words)


def subset_alignment(
    values: dict[str, np.ndarray], ratings: dict[str, np.ndarray], rows: np.ndarray
) -> float:
    """Alignment on some of the rows, mean over pairs of editors."""
    chosen = [{name: own[rows] for name, own in table.items()} for table in (values, ratings)]
    return mean_share(alignment_of_editors(*chosen, LEAST))


if __name__ == "__main__":
    quiet()
    torch.set_grad_enabled(False)
    keep("bpm", " ".join(["python benchmarks/bpm.py", *sys.argv[1:]]), main(Path(*sys.argv[1:] or ["runs"])))
