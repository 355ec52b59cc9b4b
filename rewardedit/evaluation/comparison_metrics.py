"""Figures of a comparison of editors: means, paired differences, signs of reward hacking."""

from typing import Any

import numpy as np
from torch import Tensor

from rewardedit.batch import Scores
from rewardedit.data.worlds import Rating
from rewardedit.evaluation.hacking import hacking_flag
from rewardedit.evaluation.held_out import HeldOut
from rewardedit.evaluation.statistics import paired_bootstrap
from rewardedit.models import EXACT
from rewardedit.scorers import Scorer
from rewardedit.scoring import score_batch

VERSUS = {"base": "ci95", "conditioned_one": "ci95_vs_one"}  # names of intervals; others are ci95_vs_NAME


def scores(
    edited: dict[str, Tensor], test: HeldOut, scorers: dict[str, Scorer]
) -> dict[str, dict[str, Scores]]:
    """Each variant's scores by every scorer, a row each."""
    return {name: score_batch(test.edited(images), scorers) for name, images in edited.items()}


def score_values(scores: dict[str, dict[str, Scores]]) -> dict[str, dict[str, Tensor]]:
    """The scores alone, without parts and reasons; NaN where a scorer has none."""
    values = {}
    for name, by_scorer in scores.items():
        values[name] = {scorer: one.score.float() for scorer, one in by_scorer.items()}
    return values


def exact(ratings: dict[str, Rating], test: HeldOut, main: str) -> dict[str, Any]:
    """The exact ratings of a world, and those of copying the source and of the true target."""
    kinds = {}
    aspects = {}
    for name, rating in ratings.items():
        kinds[name] = _by_kind(rating, test)
        aspects[name] = _aspects(rating)

    trivial = {
        "source": float(test.rate(test.source).score.mean()),
        "target": float(test.rate(test.batch.target).score.mean()),
    }
    return {EXACT: _exact(ratings, test, main), "kinds": kinds, "aspects": aspects, "trivial": trivial}


def _exact(ratings: dict[str, Rating], test: HeldOut, main: str) -> dict[str, Any]:
    out: dict[str, Any] = {name: float(rating.score.nanmean()) for name, rating in ratings.items()}
    out["relative_gain"] = out[main] / max(out["base"], 1e-9) - 1
    differences = {}
    for name in ratings:
        if name != main:
            difference = paired(ratings[main].score, ratings[name].score, test)
            out[VERSUS.get(name, f"ci95_vs_{name}")] = difference and difference["ci95"]
            differences[name] = difference
    return {**out, "differences": differences, "n": len(test)}


def _by_kind(rating: Rating, test: HeldOut) -> dict[str, float]:
    types = np.array(test.edit_type or [])
    by_kind = {str(kind): rating.score[types == kind] for kind in np.unique(types)}
    return {kind: float(score.nanmean()) for kind, score in by_kind.items() if score.isfinite().any()}


def _aspects(rating: Rating) -> dict[str, float]:
    return {name: float(getattr(rating, name).nanmean()) for name in ("alignment", "consistency", "quality")}


def flags(
    scores: dict[str, dict[str, Tensor]], health: dict[str, dict[str, Tensor]], rewards: list[str]
) -> dict[str, str | None]:
    """Why each variant looks as if it hacked its reward; None where it does not, or no other reward is there
    to tell. An editor that is asked for the worst is no sign of hacking.
    """
    signs = {name: scores[name] | health[name] for name in scores}
    flags: dict[str, str | None] = dict.fromkeys(signs)
    if len(rewards) > 1:
        for name in set(signs) - {"conditioned_one"}:
            flags[name] = hacking_flag(signs[name], signs["base"], *rewards[:2])
    return flags


def differences(scores: dict[str, dict[str, Tensor]], test: HeldOut, main: str) -> dict[str, dict[str, Any]]:
    """By scorer and variant: main − variant on edits that both can score, and main's wins and losses."""
    by_scorer: dict[str, dict[str, Any]] = {}
    for scorer, values in scores[main].items():
        by_scorer[scorer] = {}
        for name in scores:
            if name != main:
                by_scorer[scorer][name] = paired(values, scores[name][scorer], test)
    return by_scorer


def change_outside(health: dict[str, dict[str, Tensor]], test: HeldOut) -> dict[str, Any]:
    """Changes outside the true mask, each variant against the base; {} without masks."""
    if test.batch.mask is None:
        return {}
    outside = {name: values["change_outside"] for name, values in health.items()}
    base = outside.pop("base")
    has_outside = test.batch.mask.flatten(1).amin(1) < 1
    return {name: paired(values, base, test, has_outside) for name, values in outside.items()}


def paired(a: Tensor, b: Tensor, test: HeldOut, kept: Tensor | None = None) -> dict[str, Any] | None:
    """Compares two variants on rows where both have a value; None if fewer than two source images have."""
    valid = a.isfinite() & b.isfinite()
    rows = (valid if kept is None else valid & kept).nonzero()[:, 0].tolist()
    sources = [test.source_id[i] for i in rows]
    if len(set(sources)) < 2:
        return None
    interval = paired_bootstrap(a[rows].numpy(), b[rows].numpy(), sources).as_dict()
    signs = (a[rows] - b[rows]).sign()
    return {**interval, "wins": int((signs > 0).sum()), "losses": int((signs < 0).sum())}
