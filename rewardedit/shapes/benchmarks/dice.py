"""DICE in the shapes world: python rewardedit/shapes/benchmarks/dice.py [DICE]

DICE is the folder of a trained model, by default the shipped one. Detectors and judges without a model stand
beside it, and the variants of runs/shapes-dice-ablations, where they are.

On rendered test pairs and on the shipped editor's outputs of which the oracle is certain: average precision
by detector, false alarms on untouched images, accuracy of verdicts on true boxes (half coherent, in reserved
wordings), what DICE changes in the correlation of CLIP-I and CLIP-T with the oracle, and editors ranked.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import load_scorer, read_command_line
from edits import best_settings_of, editors_in, edits_of

from rewardedit import EditBatch
from rewardedit.batch import Scores
from rewardedit.data.difference_rows import DifferenceRow
from rewardedit.evaluation.average_precision import precision_difference
from rewardedit.evaluation.dice import (
    augmented_table,
    coherence_accuracy,
    detect_all,
    detection_table,
    editors_table,
    false_alarms,
    without_background,
)
from rewardedit.images import to_tensor
from rewardedit.regions.change_detector import ChangeDetector
from rewardedit.regions.differences import Detection, Difference, DifferenceDetector
from rewardedit.regions.grounded_sam import GroundedSam
from rewardedit.scorers.dice import Dice
from rewardedit.scorers.dice_models import load_dice
from rewardedit.scorers.dice_rules import CoherenceRules
from rewardedit.scorers.dice_vlm import CoherenceJudge, Verdict, VlmCoherence, VlmDetector
from rewardedit.shapes import Shapes, ShapesOracle
from rewardedit.shapes.differences import DEFAULT_PAIRS, HARD_PAIRS, ShapesDifferences, certain_outputs
from rewardedit.shapes.judged_differences import JudgedDifferences

SHIPPED = "shapes/dice"
ABLATIONS = Path("runs/shapes-dice-ablations")
VARIANTS = {"a quarter of the steps": "phase-2", "no stage 1": "phase-3", "116 verdicts": "phase-4"}
SAMPLES = 560  # of each test set
EDITS = 280  # of each editor, for augmented metrics and ranks
BATCH = 28
BACKDROPS = ("plain", "plain", "textured", "photo")
RESAMPLES = 1000
PLAIN = {"clip_i": "dice_clip_i", "clip_t": "dice_clip_t"}  # metrics and their DICE-augmented forms
ASPECTS = {"clip_i": "consistency", "clip_t": "alignment"}  # of the oracle, that each measures
YES = Verdict(True, 1.0, "")


class AlwaysYes:
    """Judges every difference as coherent."""

    def judge(
        self, source: Any, edited: Any, instruction: str, differences: Sequence[Difference]
    ) -> list[Verdict]:
        return [YES] * len(differences)


def detectors_of(model: str) -> dict[str, DifferenceDetector]:
    """The detectors to compare, by name."""
    found: dict[str, DifferenceDetector] = {
        "change": ChangeDetector(),
        "change with detector": ChangeDetector(GroundedSam.from_pretrained("shapes/detector", None)),
    }
    dice = load_dice(model)
    found["dice"] = VlmDetector(dice)
    found["dice, fixed confidence"] = VlmDetector(dice, "fixed")
    for name, phase in VARIANTS.items():
        folder = ABLATIONS / phase / "dice"
        if folder.is_dir():
            found[name] = VlmDetector(load_dice(str(folder)))
    return found


def judges_of(model: str) -> dict[str, CoherenceJudge]:
    """The judges to compare, by name."""
    found: dict[str, CoherenceJudge] = {
        "always yes": AlwaysYes(),
        "rules": CoherenceRules(),
        "untrained": VlmCoherence(load_dice("shapes/vlm")),
        "dice": VlmCoherence(load_dice(model)),
    }
    for name, phase in VARIANTS.items():
        folder = ABLATIONS / phase / "dice"
        if folder.is_dir():
            found[name] = VlmCoherence(load_dice(str(folder)))
    return found


def batches_of(rows: Sequence[DifferenceRow]) -> list[EditBatch]:
    """The rows as batches; the instruction, which detectors without a model may read, where there is one."""
    batches = []
    for first in range(0, len(rows), BATCH):
        part = [rows[i] for i in range(first, min(first + BATCH, len(rows)))]
        source = torch.stack([to_tensor(row.source, 3) for row in part])
        edited = torch.stack([to_tensor(row.edited, 3) for row in part])
        batches.append(EditBatch(source, [row.instruction or "edit it" for row in part], edited))
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
    """Average precision of each detector on each set, and false alarms on untouched images."""
    found: dict[str, Any] = {"ap": {}, "tables": {}, "false_alarms": {}, "ci95_aware": {}}
    outcomes: dict[str, list[Detection]] = {}
    for name, detector in detectors.items():
        tables = {}
        for kind, rows in sets.items():
            outcomes[f"{name}/{kind}"] = detect_all(detector, batches_of(rows))
            if kind != "untouched":
                truth = [row.differences for row in rows]
                clusters = [row.id for row in rows]
                tables[kind] = detection_table(outcomes[f"{name}/{kind}"], truth, clusters, RESAMPLES)
        alarms = false_alarms(outcomes[f"{name}/untouched"])
        found["ap"][name] = {
            "agnostic": tables["test"]["agnostic"]["ap"],
            "aware": tables["test"]["aware"]["ap"],
            "hard": tables["hard"]["aware"]["ap"],
        }
        found["tables"][name] = tables
        found["false_alarms"][name] = alarms.value
    bare = ("change", "change with detector")
    best = max(bare, key=lambda name: found["ap"][name]["aware"])
    for kind in ("test", "hard", "editor"):
        truth = [without_background(row.differences) for row in sets[kind]]
        pair = [
            [without_background(one.differences) for one in outcomes[f"{name}/{kind}"]]
            for name in ("dice", best)
        ]
        clusters = [row.id for row in sets[kind]]
        change = precision_difference(*pair, truth, lambda one: one.command, clusters, RESAMPLES)
        found["ci95_aware"][kind] = {"against": best, "difference": change.difference, "ci95": change.ci95}
    return found


def coherence(judges: dict[str, CoherenceJudge], n: int) -> dict[str, Any]:
    """Accuracy of each judge on true boxes, with its interval."""
    rows = JudgedDifferences(n, Shapes("test", backdrops=BACKDROPS, wordings="reserved"))
    found: dict[str, Any] = {}
    for name, judge in judges.items():
        verdicts: list[Verdict] = []
        labels: list[bool] = []
        for i in range(n):
            row = rows[i]
            assert row.instruction is not None
            images = to_tensor(row.source, 3), to_tensor(row.edited, 3)
            verdicts += judge.judge(*images, row.instruction, row.differences)
            labels.append(bool(row.coherent))
        found[name] = coherence_accuracy(verdicts, labels).as_dict("accuracy")
    return found


def augmented(model: str, edits: dict[str, torch.Tensor], n: int) -> dict[str, Any]:
    """Correlation of CLIP-I and CLIP-T with the oracle, and of their DICE-augmented forms."""
    samples = Shapes("test").batch(0, n)
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
                    images[:n],
                    target_caption=samples.target_caption if captioned else None,
                )
                for name, scorer in scorers.items():
                    values[name] += scorer(batch).score.tolist()
                values["truth"] += getattr(ShapesOracle().rate(samples, images[:n]), ASPECTS[plain]).tolist()
                clusters += samples.id
            name = plain if captioned else f"{plain} without captions"
            tables[name] = augmented_table(
                values["plain"], values["masked"], values["truth"], clusters, RESAMPLES
            )
    return tables


def _spec(scorer: str, model: str) -> Any:
    """A scorer against the source, with the trained model where it takes one."""
    if scorer.startswith("dice"):
        return {scorer: {"checkpoint": "shapes/clip", "dice": {"checkpoint": model}}}
    return {scorer: {"checkpoint": "shapes/clip"} | ({"against": "source"} if scorer == "clip_i" else {})}


def ranked(model: str, edits: dict[str, torch.Tensor], n: int) -> dict[str, Any]:
    """DICE's figures of each editor beside the oracle's."""
    samples = Shapes("test").batch(0, n)
    dice = Dice.from_pretrained(model)
    scores: dict[str, Scores] = {}
    ratings: dict[str, list[float]] = {}
    for name, images in edits.items():
        batch = EditBatch(samples.source, samples.instruction, images[:n])
        scores[name] = dice(batch)
        ratings[name] = ShapesOracle().rate(samples, images[:n]).score.tolist()
    return editors_table(scores, ratings)


def evaluate(model: str, n: int, n_edits: int, edits: dict[str, torch.Tensor]) -> dict[str, Any]:
    """All figures."""
    sets = pair_sets(n)
    figures = detection(detectors_of(model), sets)
    verdicts = coherence(judges_of(model), n)
    figures["coherence"] = {name: own["accuracy"] for name, own in verdicts.items()}
    figures["coherence_intervals"] = verdicts
    figures["augmented"] = augmented(model, edits, n_edits)
    figures["editors"] = ranked(model, edits, n_edits)
    figures["n"] = {name: len(rows) for name, rows in sets.items()} | {"verdicts": n, "edits": n_edits}
    figures["certain_share"] = len(sets["editor"]) / n
    return figures


if __name__ == "__main__":
    line = read_command_line(__doc__, "DICE", many=False)
    known = editors_in(Path("runs"))
    paths = {name: path for name, path in known.items() if name == "shapes-editor" or Path(path).is_dir()}
    edits = edits_of(paths, best_settings_of(list(paths)), "test", EDITS, Path("runs"))
    line.keep("dice", evaluate(line.words[0] if line.words else SHIPPED, SAMPLES, EDITS, edits))
