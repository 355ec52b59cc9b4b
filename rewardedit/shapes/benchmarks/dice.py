"""DICE in the shapes world: python rewardedit/shapes/benchmarks/dice.py [DICE]

DICE is the folder of a trained model, by default the shipped one. Detectors and judges without a model stand
beside it.

On rendered test pairs and on the shipped editor's outputs of which the oracle is certain: average precision
by detector, false alarms on untouched images, accuracy of verdicts on true boxes (half coherent, in reserved
wordings), what DICE changes in the correlation of CLIP-I and CLIP-T with the oracle, and editors ranked.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from common import load_scorer, read_command_line
from edits import best_settings_of, edits_of

from rewardedit import EditBatch
from rewardedit.batch import Scores
from rewardedit.data.difference_rows import DifferenceRow
from rewardedit.evaluation.average_precision import Kind, one_kind, precision_difference
from rewardedit.evaluation.dice import (
    Judged,
    augmented_table,
    coherence_accuracy,
    coherence_precision,
    detect_all,
    detection_table,
    editors_table,
    false_alarms,
    is_background,
    judge_all,
    without_background,
)
from rewardedit.images import to_tensor
from rewardedit.regions.both_orders import merge_orders
from rewardedit.regions.change_detector import ChangeDetector
from rewardedit.regions.differences import Detection, Difference, DifferenceDetector
from rewardedit.regions.grounded_sam import GroundedSam
from rewardedit.scorers.dice import Dice
from rewardedit.scorers.dice_models import load_dice
from rewardedit.scorers.dice_rules import CoherenceRules
from rewardedit.scorers.dice_vlm import CoherenceJudge, Verdict, VlmCoherence, VlmDetector
from rewardedit.shapes import Shapes, ShapesOracle
from rewardedit.shapes.bench.edits import World, make_edits
from rewardedit.shapes.bench.settings import ShapesBench
from rewardedit.shapes.differences import DEFAULT_PAIRS, HARD_PAIRS, ShapesDifferences, certain_outputs
from rewardedit.shapes.judged_differences import JudgedDifferences, JudgedEdit
from rewardedit.shapes.world import BLOCK, ShapesBatch

SHIPPED = "shapes/dice"
SAMPLES = 560  # of each test set
BATCH = 28
BACKDROPS = ("plain", "plain", "textured", "photo")
RESAMPLES = 1000
PLAIN = {"clip_i": "dice_clip_i", "clip_t": "dice_clip_t"}  # metrics and their DICE-augmented forms
ASPECTS = {"clip_i": "consistency", "clip_t": "alignment"}  # of the oracle, that each measures
MODEL_FREE = ("change", "change with detector")
TRAINED = ("dice", "dice, both orders")
CLASSES: dict[str, Kind] = {"aware": lambda one: one.command, "agnostic": one_kind}
YES = Verdict(True, 1.0, "")
# Detectors and judges whose judged detections are compared.
PAIRS_OF_PARTS = (
    ("change", "always yes"),
    ("change with detector", "rules"),
    ("dice", "rules"),
    ("dice", "dice"),
    ("dice, both orders", "rules"),
    ("dice, both orders", "dice"),
)


class AlwaysYes:
    """Judges every difference as coherent."""

    def judge(
        self, source: Any, edited: Any, instruction: str, differences: Sequence[Difference]
    ) -> list[Verdict]:
        return [YES] * len(differences)


def detectors_of(model: str) -> dict[str, DifferenceDetector]:
    """The detectors to compare, by name."""
    return {
        "change": ChangeDetector(),
        "change with detector": ChangeDetector(GroundedSam.from_pretrained("shapes/detector", None)),
        "dice": VlmDetector(load_dice(model)),
    }


def judges_of(model: str) -> dict[str, CoherenceJudge]:
    """The judges to compare, by name."""
    return {
        "always yes": AlwaysYes(),
        "rules": CoherenceRules(),
        "untrained": VlmCoherence(load_dice("shapes/vlm")),
        "dice": VlmCoherence(load_dice(model)),
    }


def batches_of(rows: Sequence[DifferenceRow | JudgedEdit]) -> list[EditBatch]:
    """The rows as batches; the instruction, which detectors without a model may read, where there is one."""
    batches = []
    for first in range(0, len(rows), BATCH):
        chunk = [rows[i] for i in range(first, min(first + BATCH, len(rows)))]
        source = torch.stack([to_tensor(row.source, 3) for row in chunk])
        edited = torch.stack([to_tensor(row.edited, 3) for row in chunk])
        batches.append(EditBatch(source, [row.instruction or "edit it" for row in chunk], edited))
    return batches


def pair_sets(n: int) -> dict[str, list[DifferenceRow]]:
    """Test pairs: usual, hard and untouched ones, and the editor's outputs that the oracle is sure of."""
    world = Shapes("test", backdrops=BACKDROPS)
    sets = {}
    for name, shares in (("test", DEFAULT_PAIRS), ("hard", HARD_PAIRS), ("untouched", {"untouched": 1.0})):
        rows = ShapesDifferences(n, world, shares)
        sets[name] = [rows[i] for i in range(n)]
    samples = Shapes("test").batch(0, n)
    name = "shapes-editor"
    edited = edits_of({name: "shapes/editor"}, best_settings_of([name]), "test", n, Path("runs"))
    sets["editor"] = [row for row in certain_outputs(samples, edited[name]) if row is not None]
    return sets


def detection(
    detectors: dict[str, DifferenceDetector], sets: dict[str, list[DifferenceRow]]
) -> dict[str, Any]:
    """Figures of all detectors on all sets, and the trained one's gain over the best without a model."""
    outcomes: dict[str, dict[str, list[Detection]]] = {}
    for kind, rows in sets.items():
        batches = batches_of(rows)
        outcomes[kind] = detect_with_all(detectors, batches)
        outcomes[kind]["dice, fixed confidence"] = list(map(with_fixed_confidence, outcomes[kind]["dice"]))
    figures = detection_figures(sets, outcomes)
    for classes in CLASSES:
        gains = figures[f"ci95_{classes}"] = {}
        for name in TRAINED:
            gains[name] = against_model_free(name, sets, outcomes, figures["tables"], classes)
    return figures


def detect_with_all(
    detectors: dict[str, DifferenceDetector], batches: list[EditBatch]
) -> dict[str, list[Detection]]:
    """Differences of all rows by each detector, and by the trained one in both orders of the images."""
    outcomes = {name: detect_all(one, batches) for name, one in detectors.items()}
    reverse = [replace(batch, source=batch.edited, edited=batch.source) for batch in batches]
    pairs = zip(outcomes["dice"], detect_all(detectors["dice"], reverse), strict=True)
    outcomes["dice, both orders"] = [merge_orders(*pair) for pair in pairs]
    return outcomes


def detection_figures(
    sets: dict[str, list[DifferenceRow]], outcomes: dict[str, dict[str, list[Detection]]]
) -> dict[str, Any]:
    """Average precision of each detector on each set, and false alarms on untouched images."""
    figures: dict[str, Any] = {"ap": {}, "tables": {}, "false_alarms": {}}
    for name in outcomes["test"]:
        tables: dict[str, Any] = {}
        for kind, rows in sets.items():
            detections = outcomes[kind][name]
            truth = [row.differences for row in rows]
            if kind == "untouched":  # nothing is to be found
                figures["false_alarms"][name] = false_alarms(detections).value
                tables[kind] = {
                    "invalid": sum(one.reason is not None for one in detections) / len(detections)
                }
            else:
                tables[kind] = detection_table(detections, truth, [row.id for row in rows], RESAMPLES)
        figures["ap"][name] = {
            "agnostic": tables["test"]["agnostic"]["ap"],
            "aware": tables["test"]["aware"]["ap"],
            "hard": tables["hard"]["aware"]["ap"],
        }
        figures["tables"][name] = tables
    return figures


def with_fixed_confidence(detection: Detection) -> Detection:
    """The same differences, all with a confidence of 1."""
    fixed = tuple(replace(one, confidence=1.0) for one in detection.differences)
    return replace(detection, differences=fixed)


def against_model_free(
    name: str,
    sets: dict[str, list[DifferenceRow]],
    outcomes: dict[str, dict[str, list[Detection]]],
    tables: dict[str, Any],
    classes: str,
) -> dict[str, Any]:
    """AP of a trained detector minus that of the better one without a model, on each set."""
    changes = {}
    for kind in ("test", "hard", "editor"):
        best = max(MODEL_FREE, key=lambda free, kind=kind: tables[free][kind][classes]["ap"])
        truth = [without_background(row.differences) for row in sets[kind]]
        pair = []
        for detector in (name, best):
            pair.append([without_background(one.differences) for one in outcomes[kind][detector]])
        clusters = [row.id for row in sets[kind]]
        change = precision_difference(*pair, truth, CLASSES[classes], clusters, RESAMPLES)
        changes[kind] = {"against": best, "difference": change.difference, "ci95": change.ci95}
    return changes


def coherence(judges: dict[str, CoherenceJudge], n: int) -> dict[str, Any]:
    """Accuracy of each judge on true boxes, with its interval."""
    rows = JudgedDifferences(n, Shapes("test", backdrops=BACKDROPS, wordings="reserved"))
    figures: dict[str, Any] = {}
    for name, judge in judges.items():
        verdicts: list[Verdict] = []
        labels: list[bool] = []
        for i in range(n):
            row = rows[i]
            assert row.instruction is not None
            images = to_tensor(row.source, 3), to_tensor(row.edited, 3)
            verdicts += judge.judge(*images, row.instruction, row.differences)
            labels.append(bool(row.coherent))
        figures[name] = coherence_accuracy(verdicts, labels).as_dict("accuracy")
    return figures


def coherence_of_detections(
    detectors: dict[str, DifferenceDetector], judges: dict[str, CoherenceJudge], n: int
) -> dict[str, Any]:
    """AP of judged detections of edits of every quality: whoever finds a difference has to judge it too."""
    world = JudgedDifferences(n, Shapes("test", backdrops=BACKDROPS, wordings="reserved"))
    edits = list(chain.from_iterable(world.edits(block) for block in range(-(-n // BLOCK))))[:n]
    batches = batches_of(edits)
    truth = [judged([change.difference for change in edit.changes], edit.verdicts) for edit in edits]
    detected = detect_with_all(detectors, batches)
    figures: dict[str, Any] = {}
    for first, second in PAIRS_OF_PARTS:
        detections = iter(detected[first])
        answers = []
        for batch in batches:
            rows = [next(detections).differences for _ in batch.instruction]
            for differences, verdicts in zip(rows, judge_all(judges[second], batch, rows), strict=True):
                answers.append(judged(differences, [verdict.coherent for verdict in verdicts]))
        estimate = coherence_precision(answers, truth, [edit.id for edit in edits], RESAMPLES)
        figures[f"{first}, {second}"] = estimate.as_dict("ap")
    return figures


def judged(differences: Sequence[Difference], coherent: Sequence[bool | None]) -> list[Judged]:
    """Differences with their verdicts, without those of the background."""
    pairs = zip(differences, coherent, strict=True)
    return [Judged(one.box, one.confidence, asked) for one, asked in pairs if not is_background(one)]


def augmented(model: str, edits: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Correlation of CLIP-I and CLIP-T with the oracle, and of their DICE-augmented forms."""
    samples = sources_of(edits)
    tables: dict[str, Any] = {}
    for plain, masked in PLAIN.items():
        scorers = {"plain": load_scorer(_spec(plain, model)), "masked": load_scorer(_spec(masked, model))}
        for captioned in (True, False) if plain == "clip_t" else (True,):
            values: dict[str, list[float]] = {"plain": [], "masked": [], "truth": []}
            clusters: list[str] = []
            for images in edits.values():
                batch = EditBatch(
                    samples.source,
                    samples.instruction,
                    images,
                    target_caption=samples.target_caption if captioned else None,
                )
                for name, scorer in scorers.items():
                    values[name] += scorer(batch).score.tolist()
                values["truth"] += getattr(ShapesOracle().rate(samples, images), ASPECTS[plain]).tolist()
                clusters += samples.id
            name = plain if captioned else f"{plain} without captions"
            tables[name] = augmented_table(
                values["plain"], values["masked"], values["truth"], clusters, RESAMPLES
            )
    return tables


def sources_of(edits: dict[str, torch.Tensor]) -> ShapesBatch:
    """The samples that editors have edited."""
    (n,) = {len(images) for images in edits.values()}
    return Shapes("test").batch(0, n)


def _spec(scorer: str, model: str) -> Any:
    """A scorer against the source, with the trained model where it takes one."""
    if scorer.startswith("dice"):
        return {scorer: {"checkpoint": "shapes/clip", "dice": {"checkpoint": model}}}
    return {scorer: {"checkpoint": "shapes/clip"} | ({"against": "source"} if scorer == "clip_i" else {})}


def ranked(model: str, edits: dict[str, torch.Tensor]) -> dict[str, Any]:
    """DICE's figures of each editor beside the oracle's."""
    samples = sources_of(edits)
    dice = Dice.from_pretrained(model)
    scores: dict[str, Scores] = {}
    ratings: dict[str, list[float]] = {}
    for name, images in edits.items():
        batch = EditBatch(samples.source, samples.instruction, images)
        scores[name] = dice(batch)
        ratings[name] = ShapesOracle().rate(samples, images).score.tolist()
    return editors_table(scores, ratings)


def evaluate(model: str, n: int, edits: dict[str, torch.Tensor]) -> dict[str, Any]:
    """All figures: n pairs of each kind and n verdicts; augmented metrics and ranks on the editors' edits."""
    sets = pair_sets(n)
    detectors = detectors_of(model)
    judges = judges_of(model)
    figures = detection(detectors, sets)
    verdicts = coherence(judges, n)
    figures["coherence"] = {name: estimate["accuracy"] for name, estimate in verdicts.items()}
    figures["coherence_intervals"] = verdicts
    figures["coherence_of_detections"] = coherence_of_detections(detectors, judges, n)
    figures["augmented"] = augmented(model, edits)
    figures["editors"] = ranked(model, edits)
    figures["n"] = {name: len(rows) for name, rows in sets.items()}
    figures["n"] |= {"verdicts": n, "edits": sum(map(len, edits.values()))}
    figures["certain_share"] = len(sets["editor"]) / n
    return figures


def edits_by_editor(out: Path) -> dict[str, torch.Tensor]:
    """Edits of the same sources by the eight editors of `rewardedit bench shapes`; kept in a folder."""
    bench = ShapesBench()
    edits = make_edits(out, bench, World(bench.n))
    return {name: edits[name, 0] for name in bench.editors}


if __name__ == "__main__":
    line = read_command_line(__doc__, "DICE", many=False)
    edits = edits_by_editor(Path("runs/dice-edits"))
    line.keep("dice", evaluate(line.words[0] if line.words else SHIPPED, SAMPLES, edits))
