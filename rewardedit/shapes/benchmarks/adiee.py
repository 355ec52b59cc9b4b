"""Agreement with the oracle of a scorer trained on labels by rules, including on editors that it has never
seen (ADIEE Tables 1 and 2):
python rewardedit/shapes/benchmarks/adiee.py [CHECKPOINT [RUNS]], by default the small scorer that
comes with the package; with `val` before them, only val is used, to choose settings.

Editors are the shipped one and those that its recipes make in RUNS (default: runs). No scorer is trained on
the edits of two of them; the headline figure is for these two. Rivals see only source, edited image and
instruction; the best rival is chosen on val. In a pair of edits for one instruction, an edit is better if its
rating is higher by at least 1; otherwise the pair is a tie. A scorer predicts a tie if its scores differ by
less than a margin, which is chosen on val for each scorer: from pairs by the seen editors, and, as
"own_margins", for the unseen editors from their own pairs, which have fewer ties. One rival is the model that
the scorer starts from, judged by its "yes". Also listed are the result of same_labels.py in RUNS,
if any, and "prior": the mean rating on val of the editor that made an edit. Rank correlations within each
editor's edits, where the prior is constant, are given as well.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import load_scorer, read_command_line
from edits import best_settings_of, editors_in, edits_of
from rate_editors import UNSEEN
from rivals import Followed, load_rivals, scored
from same_labels import load_same_labels

from rewardedit import devices
from rewardedit.cli import quiet
from rewardedit.evaluation.statistics import paired_bootstrap, spearman, spearman_difference
from rewardedit.language.vlm import load_vlm
from rewardedit.scorers import Scorer
from rewardedit.shapes import Shapes, ShapesBatch, ShapesOracle

SHIPPED = "shapes/adiee"
BASE = "shapes/vlm"  # model that the scorer starts from
N = 1120  # test samples: twice as many as elsewhere, since the best rivals are close to each other
VAL_N = 280
LEAST = 1.0  # of 10: ratings that differ by less are equal
OWN = ("adiee", "same_labels")  # scorers trained on these labels, which are not rivals
MARGINS = 41  # number of margins tried, quantiles of the differences of scores
Values = dict[str, np.ndarray]  # of each editor's edits of the same samples


def scores_of(scorer: Scorer, samples: ShapesBatch, edits: Mapping[str, torch.Tensor]) -> Values:
    """Scores of each editor's edits; edits without a score get less than all others."""
    scores = {name: scored(scorer, samples, images).score.numpy() for name, images in edits.items()}
    finite = [values[np.isfinite(values)] for values in scores.values()]
    least = min((float(values.min()) for values in finite if len(values)), default=0.0)
    return {name: np.nan_to_num(values, nan=least - 1.0) for name, values in scores.items()}


def pooled(values: Values, names: list[str]) -> np.ndarray:
    return np.concatenate([values[name] for name in names])


def differences(values: Values, names: list[str]) -> np.ndarray:
    """Differences of values for all pairs of editors, concatenated over the pairs."""
    return np.concatenate([values[a] - values[b] for a, b in itertools.combinations(names, 2)])


def said(difference: np.ndarray, margin: float) -> np.ndarray:
    """1 if the first is better, −1 if the second is, 0 for a tie."""
    return np.where(np.abs(difference) < margin, 0, np.sign(difference))


def best_margin(difference: np.ndarray, truth: np.ndarray) -> float:
    """Margin for which most pairs are judged correctly."""
    tried = np.unique(np.quantile(np.abs(difference), np.linspace(0, 1, MARGINS)))
    return float(max(tried, key=lambda margin: (said(difference, margin) == truth).mean()))


def best_of(figures: Mapping[str, float]) -> str:
    """Rival with the highest figure; one without a figure, because its scores are all equal, comes last."""
    rivals = [name for name in figures if name not in OWN]
    return max(rivals, key=lambda name: np.nan_to_num(figures[name], nan=-2.0))


@dataclass(frozen=True)
class Chosen:
    """Choices on val, from some editors' edits: each scorer's margin, and the best rivals."""

    margins: dict[str, float]
    spearman: dict[str, float]
    pairwise: dict[str, float]

    @property
    def rival(self) -> str:
        return best_of(self.spearman)

    @property
    def rival_in_pairs(self) -> str:
        return best_of(self.pairwise)


def choose_on_val(scores: Mapping[str, Values], ratings: Values, names: list[str]) -> Chosen:
    """Chooses each scorer's margin on these editors' edits of val, and measures its accuracy with it."""
    truth = pooled(ratings, names)
    wanted = said(differences(ratings, names), LEAST)
    margins: dict[str, float] = {}
    rho: dict[str, float] = {}
    judged: dict[str, float] = {}
    for name, by_editor in scores.items():
        margins[name] = best_margin(differences(by_editor, names), wanted)
        rho[name] = spearman(pooled(by_editor, names), truth).value
        judged[name] = float((said(differences(by_editor, names), margins[name]) == wanted).mean())
    return Chosen(margins, rho, judged)


def compare(
    scores: Mapping[str, Values],
    ratings: Values,
    names: list[str],
    ids: list[str],
    chosen: Chosen,
) -> dict[str, Any]:
    """Rank correlation and pairwise accuracy of every scorer, "prior" among them, on some editors' edits."""
    sources = np.tile(ids, len(names))
    truth = pooled(ratings, names)
    values = {name: pooled(by_editor, names) for name, by_editor in scores.items()}
    within = {
        name: float(np.mean([spearman(by_editor[editor], ratings[editor], ids).value for editor in names]))
        for name, by_editor in scores.items()
        if name != "prior"
    }
    versus = {
        name: list(spearman_difference(values["adiee"], predicted, truth, sources).ci95)
        for name, predicted in values.items()
        if name != "adiee"
    }
    return {
        "n": len(truth),
        "spearman": {name: spearman(predicted, truth, sources).value for name, predicted in values.items()},
        "spearman_within_editors": within,
        "best_rival": chosen.rival,
        "ci95_vs_best_rival": versus[chosen.rival],
        "ci95_vs": versus,
        **order_pairs(scores, ratings, names),
        **judge_pairs(scores, ratings, names, ids, chosen),
    }


def order_pairs(scores: Mapping[str, Values], ratings: Values, names: list[str]) -> dict[str, Any]:
    """Share of pairs, ties excluded, whose better edit has the higher score."""
    wanted = said(differences(ratings, names), LEAST)
    unequal = wanted != 0
    ordered = {
        name: float((np.sign(differences(by_editor, names)) == wanted)[unequal].mean())
        for name, by_editor in scores.items()
    }
    return {"pairs": len(wanted), "unequal_pairs": int(unequal.sum()), "unequal_pairwise": ordered}


def judge_pairs(
    scores: Mapping[str, Values], ratings: Values, names: list[str], ids: list[str], chosen: Chosen
) -> dict[str, Any]:
    """Share of pairs of edits for one instruction that each scorer judges as the ratings do, including ties.
    A scorer without a margin predicts a tie only for equal scores.
    """
    wanted = said(differences(ratings, names), LEAST)
    right = {
        name: (said(differences(by_editor, names), chosen.margins.get(name, 0.0)) == wanted).astype(float)
        for name, by_editor in scores.items()
    }
    right["always a tie"] = (wanted == 0).astype(float)
    right["random"] = np.full(len(wanted), 1 / 3)
    sources = np.tile(ids, len(names) * (len(names) - 1) // 2)
    versus = {
        name: list(paired_bootstrap(right["adiee"], hits, sources).ci95)
        for name, hits in right.items()
        if name != "adiee"
    }
    return {
        "pairwise": {name: float(hits.mean()) for name, hits in right.items()},
        "best_rival_pairwise": chosen.rival_in_pairs,
        "ci95_pairwise_vs_best_rival": versus[chosen.rival_in_pairs],
        "ci95_pairwise_vs": versus,
        "margins": chosen.margins,
    }


def checks(scorer: Scorer, samples: ShapesBatch) -> dict[str, float]:
    """Mean scores of true edits, of reversed ones, of unchanged sources and of true edits with other rows'
    instructions; and the spread over the questions.
    """
    order = np.roll(np.arange(len(samples)), 1)
    backwards = ShapesBatch(**{**vars(samples), "source": samples.target})
    shuffled = ShapesBatch(**{**vars(samples), "instruction": [samples.instruction[i] for i in order]})
    true = scored(scorer, samples, samples.target)
    return {
        "true_edits": float(true.score.nanmean()),
        "source_and_edit_exchanged": float(scored(scorer, backwards, samples.source).score.nanmean()),
        "untouched_sources": float(scored(scorer, samples, samples.source).score.nanmean()),
        "other_instructions": float(scored(scorer, shuffled, samples.target).score.nanmean()),
        "spread_of_questions": float(true.parts["spread"].nanmean()) if "spread" in true.parts else 0.0,
    }


def measure(
    scorers: Mapping[str, Scorer],
    unseen: list[str],
    val: ShapesBatch,
    early: Mapping[str, torch.Tensor],
    test: ShapesBatch,
    edits: Mapping[str, torch.Tensor],
) -> dict[str, Any]:
    """All figures. One of the scorers is "adiee", another may be "same_labels"; the rest are rivals.

    Rivals and margins are chosen on val, on edits of the editors that a scorer may be trained on; in
    addition, for pairs by unseen editors, on those editors' own edits.

    Args:
        early: edits of val by all editors.
        edits: edits of test by all editors.
    """
    seen = [name for name in edits if name not in unseen]
    ratings = {name: ShapesOracle().rate(val, early[name]).score.numpy() for name in edits}
    prior = {name: float(rating.mean()) for name, rating in ratings.items()}
    tried = {name: scores_of(scorer, val, early) for name, scorer in scorers.items()}
    chosen, chosen_unseen = (choose_on_val(tried, ratings, names) for names in (seen, unseen))

    rated = {name: ShapesOracle().rate(test, images).score.numpy() for name, images in edits.items()}
    scores = {name: scores_of(scorer, test, edits) for name, scorer in scorers.items()}
    # All that is known of an edit from its editor alone.
    scores["prior"] = {name: np.full(len(test), prior[name]) for name in edits}
    return {
        **compare(scores, rated, unseen, test.id, chosen),
        "own_margins": judge_pairs(scores, rated, unseen, test.id, chosen_unseen),
        "seen": compare(scores, rated, seen, test.id, chosen),
        "val_spearman": chosen.spearman,
        "val_pairwise": chosen.pairwise,
        "prior": prior,
        "checks": checks(scorers["adiee"], test),
    }


def on_val(
    scorers: Mapping[str, Scorer], unseen: list[str], val: ShapesBatch, early: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Each scorer's rank correlation on edits of val, by editors that a scorer may be trained on and by
    others; and `checks` of the first scorer.
    """
    ratings = {name: ShapesOracle().rate(val, images).score.numpy() for name, images in early.items()}
    groups = {"unseen": unseen, "seen": [name for name in early if name not in unseen]}
    rho: dict[str, dict[str, float]] = {where: {} for where in groups}
    for name, scorer in scorers.items():
        by_editor = scores_of(scorer, val, early)
        for where, names in groups.items():
            rho[where][name] = spearman(pooled(by_editor, names), pooled(ratings, names)).value
    return {**rho, "checks": checks(next(iter(scorers.values())), val)}


def choose(checkpoint: str = SHIPPED, runs: str = "runs") -> dict[str, Any]:
    """`on_val` for a scorer and for BPM and ViFi-CLIP, the strongest rivals."""
    paths = editors_in(Path(runs))
    names = {"bpm": {"missing_object": "failed"}, "vifi_clip": {}}
    scorers: dict[str, Scorer] = {"adiee": load_scorer("adiee", checkpoint=checkpoint)}
    scorers |= {name: load_scorer(name, **options) for name, options in names.items()}
    for scorer in scorers.values():
        scorer.to(devices.default_device())
    early = edits_of(paths, best_settings_of(list(paths)), "val", VAL_N, Path(runs))
    unseen = [f"shapes-editor-{name}" for name in UNSEEN]
    return on_val(scorers, unseen, Shapes("val").batch(0, VAL_N), early)


def main(checkpoint: str = SHIPPED, runs: str = "runs") -> dict[str, Any]:
    paths = editors_in(Path(runs))
    settings = best_settings_of(list(paths))
    scorers: dict[str, Scorer] = {"adiee": load_scorer("adiee", checkpoint=checkpoint)}
    same_labels = Path(runs) / "same-labels" / "scorer"
    if same_labels.is_dir():
        scorers["same_labels"] = load_same_labels(same_labels)
    scorers |= {
        "bpm": load_scorer("bpm", missing_object="failed"),
        "l1": load_scorer("l1"),
        "psnr": load_scorer("psnr"),
        "shapes-vlm": Followed(load_vlm(BASE)),
        **load_rivals(),
    }
    for scorer in scorers.values():
        scorer.to(devices.default_device())
    unseen = [f"shapes-editor-{name}" for name in UNSEEN]
    early = edits_of(paths, settings, "val", VAL_N, Path(runs))
    edits = edits_of(paths, settings, "test", N, Path(runs))
    return measure(scorers, unseen, Shapes("val").batch(0, VAL_N), early, Shapes("test").batch(0, N), edits)


if __name__ == "__main__":
    line = read_command_line(__doc__, "FOLDER")
    quiet()
    torch.set_grad_enabled(False)
    if line.words[:1] == ["val"]:
        print(json.dumps(choose(*line.words[1:]), indent=2))
    else:
        line.keep("adiee", main(*line.words))
