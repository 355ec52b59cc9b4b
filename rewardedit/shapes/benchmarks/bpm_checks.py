"""Checks of BPM's parts: the weight of the semantic part, the judges, the parser, and their cost."""

import time
from typing import Any

import numpy as np
import torch
from bpm_regions import finder_of
from parser_accuracy import is_placed
from rivals import BATCH, batch_of, scored

from rewardedit.batch import Scores
from rewardedit.evaluation.preferences import alignment_of_editors, mean_share
from rewardedit.instructions.grammar.grammar import parse_all
from rewardedit.scorers.bpm.bpm import Bpm, BpmConfig, combine, parsed_edits
from rewardedit.shapes import ShapesBatch

LEAST = 1.0  # out of 10: ratings that differ by less count as equal
ALPHAS = [round(0.1 * i, 1) for i in range(11)]


def alpha_sweep(
    parts: dict[str, dict[str, torch.Tensor]], ratings: dict[str, np.ndarray], config: BpmConfig
) -> dict[str, float]:
    """Mean alignment over pairs of editors, by the weight of the semantic part (Table 9)."""
    table = {}
    for alpha in ALPHAS:
        weighed = BpmConfig(alpha=alpha, calibration=config.calibration, missing_object="failed")
        score = {name: combine(values, weighed)[2].numpy() for name, values in parts.items()}
        rows = np.ones(len(next(iter(ratings.values()))), dtype=bool)
        table[f"{alpha:g}"] = subset_alignment(score, ratings, rows)
    return table


def plain_similarity(bpm: Bpm, samples: ShapesBatch, edited: torch.Tensor) -> np.ndarray:
    """Computes cos(I(crop of edited), T(target)), not directional; NaN if no target is named or found."""
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
    results: dict[str, dict[str, Scores]],
    rated: dict[str, Any],
    samples: ShapesBatch,
    on_crop: dict[str, np.ndarray],
) -> dict[str, Any]:
    """Agreement of each part with the aspect that it measures (Tables 5, 7 and 14), compared with a baseline:
    preserve and L2 with the oracle's consistency; modify, CLIPScore and CLIP's plain similarity of the
    edited crop with the target's name with its alignment.

    Each comparison uses the edits for which all are defined: an edit of the background has no outside, and a
    removed object has neither crop nor name.
    """
    consistency = {name: rating.consistency.numpy() for name, rating in rated.items()}
    alignment = {name: rating.alignment.numpy() for name, rating in rated.items()}
    kept = {name: scores.parts["preserve"].numpy() for name, scores in results["bpm"].items()}
    changed = {name: scores.parts["modify"].numpy() for name, scores in results["bpm"].items()}
    rivals = {
        rival: {name: scores.score.numpy() for name, scores in results[rival].items()}
        for rival in ("l2", "clip_t")
    }
    local = np.array([kind != "background" for kind in samples.edit_type])
    shown = np.array([kind != "remove" for kind in samples.edit_type])
    return {
        "consistency": {
            "preserve": subset_alignment(kept, consistency, local),
            "l2": subset_alignment(rivals["l2"], consistency, local),
        },
        "alignment": {
            "modify": subset_alignment(changed, alignment, shown),
            "clip_t": subset_alignment(rivals["clip_t"], alignment, shown),
            "clip_on_crop": subset_alignment(on_crop, alignment, shown),
        },
    }


def verdicts_on_true_edits(bpm: Bpm, samples: ShapesBatch) -> dict[str, float]:
    """Share of true edits whose size and position the judges find right, and of unchanged sources whose size
    or position they find wrong if the instruction changes it (Table 6).
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


def seconds(bpm: Bpm, samples: ShapesBatch) -> dict[str, float]:
    """Seconds per edit, of each part and in total, in batches and one by one."""
    n = min(56, len(samples))
    subset = samples[:n]
    batch = batch_of(subset, subset.target)
    parsed = parsed_edits(parse_all(subset.instruction))

    def timed(call: Any) -> float:
        call()
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) / n

    detector = finder_of(bpm).detector
    segmenter = finder_of(bpm).segmenter
    assert segmenter is not None
    names = [edit.target or "red circle" for edit in parsed]
    boxes = [image_boxes for image_boxes, _ in detector(batch.edited, names)]
    regions = bpm.locate(batch)
    kept = [i for i, region in enumerate(regions) if region.reason is None]
    return {
        "parse": timed(lambda: parse_all(subset.instruction)),
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


def templates_parsed(samples: ShapesBatch) -> dict[str, float]:
    """Shares of the world's own instructions that the grammar parses correctly."""
    pairs = list(zip(parsed_edits(parse_all(samples.instruction)), samples.parsed, strict=True))
    right = {
        "object": [_alike(a.source, b.source) and _alike(a.target, b.target) for a, b in pairs],
        "size": [a.size == b.size for a, b in pairs],
        "position": [is_placed(a.position, [b.position]) for a, b in pairs],
    }
    return {part: sum(hits) / len(hits) for part, hits in right.items()}


def _alike(name: str | None, other: str | None) -> bool:
    """True if two names mean the same object; one may have more words than the other."""
    words, others = (set((text or "").split()) for text in (name, other))
    return (name is None) == (other is None) and (words <= others or others <= words)


def subset_alignment(
    values: dict[str, np.ndarray], ratings: dict[str, np.ndarray], rows: np.ndarray
) -> float:
    """Mean alignment over pairs of editors, on some of the rows."""
    chosen = [{name: column[rows] for name, column in table.items()} for table in (values, ratings)]
    return mean_share(alignment_of_editors(*chosen, LEAST))
