"""Explanations of BPM's and DICE's scores: the boxes that were found, and the judgements."""

from typing import Any, cast

from rewardedit.batch import EditBatch, Scores
from rewardedit.instructions.parsed import Parsed, ParsedEdit
from rewardedit.regions.base import Instances
from rewardedit.regions.differences import covered, pixel_boxes
from rewardedit.regions.frames import FRAMES
from rewardedit.reports.marked import Explanation, Mark, panel, veiled
from rewardedit.reports.verdict import verdict
from rewardedit.scorers import Scorer
from rewardedit.scorers.bpm.bpm import Bpm
from rewardedit.scorers.dice import Analysis, Dice

COLOURS = {"source": (40, 90, 220), "target": (20, 140, 60), "reference": (220, 120, 10)}
SAYS = {True: "asked for", False: "not asked for", None: "undecided"}


def explain(scorer: Scorer, batch: EditBatch) -> Explanation:
    """Explains the score of one edit by BPM or DICE.

    BPM: the source with the source object's boxes, the edited image with the target's and the reference's,
    and a veil over the region that may change; the verdict in a sentence, the parsed instruction and each
    part's value. DICE: the source with the boxes of removed and edited objects, the edited image with those
    of added and edited ones, and a veil over all that is not asked for; each difference with its judgement.

    Raises:
        ValueError: if the batch does not hold exactly one edit, or the scorer is another.
    """
    if len(batch) != 1:
        raise ValueError(f"explain: expected one edit; got {len(batch)}")
    require_explained(scorer)
    batch = scorer.beside(batch)
    return _of_bpm(scorer, batch) if isinstance(scorer, Bpm) else _of_dice(cast(Dice, scorer), batch)


def require_explained(scorer: Scorer) -> None:
    """Raises ValueError unless it is a scorer whose scores can be explained."""
    if not isinstance(scorer, Bpm | Dice):
        raise ValueError(f"--explain: expected the scorer bpm or dice; got {type(scorer).__name__}")


def _of_bpm(scorer: Bpm, batch: EditBatch) -> Explanation:
    prepared = scorer.prepare(batch.source, batch.instruction)
    (regions,) = scorer.locate(batch, prepared)
    scores = scorer.scores_of(batch, prepared, [regions])
    parsed = prepared.inputs["parsed"][0]
    edited = batch.edited.detach()

    # The regions that fill a missing side are not drawn there.
    before = [] if regions.is_added else _marks("source", parsed, regions.source)
    after = [] if regions.is_removed else _marks("target", parsed, regions.edited)
    after += _marks("reference", parsed, regions.reference)
    panels = [
        ("source", panel(batch.source, before)),
        ("edited", panel(edited, after)),
        ("may change", panel(veiled(edited, regions.mask), [])),
    ]

    record = _record(batch, scores)
    shown = [f"{name} {value:.2f}" for name, value in record["parts"].items() if value is not None]
    parts = {name: float(values[0]) for name, values in scores.parts.items()}
    said = verdict(scorer, float(scores.score[0]), parts, scores.reason[0])
    details = [f"Parts, higher is better: {', '.join(shown)}"] if shown else []

    objects = []
    for image, marks in (("source", before), ("edited", after)):
        objects += [{"object": mark.label, "pixels": list(mark.box), "image": image} for mark in marks]
    table = {name: {"value": value} for name, value in record["parts"].items()}

    return Explanation(
        "BPM",
        scores,
        batch.instruction[0],
        panels,
        [said, f"Read as: {_asked(parsed)}"],
        details,
        table,
        {**record, "objects": objects},
    )


def _marks(kind: str, parsed: Parsed, instances: Instances | None) -> list[Mark]:
    """The boxes of the objects found, each with its name and confidence."""
    if instances is None:
        return []
    name = (getattr(parsed, kind) or "") if isinstance(parsed, ParsedEdit) else ""
    marks = []
    for box, confidence in zip(instances.boxes.tolist(), instances.confidence.tolist(), strict=True):
        marks.append(Mark(tuple(box), COLOURS[kind], f"{name} {confidence:.2f}"))
    return marks


def _asked(parsed: Parsed) -> str:
    """The parsed instruction in one line."""
    if not isinstance(parsed, ParsedEdit):
        return "could not be parsed"
    said = [f"{parsed.edit_type}: {parsed.source or 'nothing'} to {parsed.target or 'nothing'}"]
    if parsed.size != "unchanged":
        said.append(parsed.size)
    if parsed.position != "unchanged":
        said.append(f"{parsed.position} of {parsed.reference}" if parsed.reference else parsed.position)
    return ", ".join(said)


def _of_dice(scorer: Dice, batch: EditBatch) -> Explanation:
    (analysis,) = scorer.analyse(batch)
    scores = scorer.scores_of(batch, [analysis])
    edited = batch.edited.detach()
    h, w = edited.shape[-2:]

    before = []
    after = []
    for number, mark in enumerate(_difference_marks(analysis, h, w)):
        command = analysis.differences[number].command
        if command != "ADD":
            before.append(mark)
        if command != "REMOVE":
            after.append(mark)

    unwanted = covered(analysis.incoherent, h, w)
    panels = [
        ("source", panel(batch.source, before)),
        ("edited", panel(edited, after)),
        ("not asked for", panel(veiled(edited, unwanted.to(edited.device)), [])),
    ]

    table = _difference_rows(analysis)
    pixels = pixel_boxes(analysis.differences, h, w).tolist()
    rows = [{**row, "pixels": box} for row, box in zip(table.values(), pixels, strict=True)]
    record = _record(batch, scores) | {"differences": rows}

    details = []
    for name, row in table.items():
        said = f": {row['reason']}" if row["reason"] else ""
        caption = f"{row['command']} {row['subject']} (confidence {row['confidence']:.2f})"
        details.append(f"{name}. {caption}, {row['judgement']}{said}")
        del row["box"]

    verdict_line = _dice_verdict(scores, analysis)
    return Explanation("DICE", scores, batch.instruction[0], panels, [verdict_line], details, table, record)


def _difference_marks(analysis: Analysis, height: int, width: int) -> list[Mark]:
    boxes = pixel_boxes(analysis.differences, height, width).tolist()
    marks = []
    for number, (one, box) in enumerate(zip(analysis.differences, boxes, strict=True), 1):
        marks.append(Mark(tuple(box), FRAMES[one.command], f"{number} {one.command} {one.subject}"[:28]))
    return marks


def _difference_rows(analysis: Analysis) -> dict[str, dict[str, Any]]:
    """The differences by their numbers, with their judgements as far as there are any."""
    rows: dict[str, dict[str, Any]] = {}
    for number, one in enumerate(analysis.differences):
        judged = analysis.verdicts[number] if analysis.verdicts else None
        probability = judged.probability if judged is not None else float("nan")
        rows[str(number + 1)] = {
            "command": one.command,
            "subject": one.subject,
            "box": list(one.box),
            "confidence": one.confidence,
            "judgement": SAYS[judged.coherent if judged is not None else None],
            "probability": probability if probability == probability else None,
            "reason": judged.reason if judged is not None else "",
        }
    return rows


def _dice_verdict(scores: Scores, analysis: Analysis) -> str:
    """The result in one sentence."""
    if not scores.valid[0]:
        return f"No score: {scores.reason[0]}."
    score = f"DICE {float(scores.score[0]):.2f} of 1"
    n = len(analysis.differences)
    if n == 0:
        return f"Nothing changed ({score})."
    counted = f"{n} difference{'s' if n > 1 else ''}, {len(analysis.coherent)} asked for"
    unwanted = float(scores.parts["unwanted_area"][0])
    return f"{counted} ({score}); {100 * unwanted:.0f} % of the image changed without being asked for."


def _record(batch: EditBatch, scores: Scores) -> dict[str, Any]:
    """Score and parts of one edit for JSON, with None for NaN."""
    parts = {name: float(values[0]) for name, values in scores.parts.items()}
    return {
        "instruction": batch.instruction[0],
        "score": float(scores.score[0]) if scores.valid[0] else None,
        "reason": scores.reason[0],
        "parts": {name: value if value == value else None for name, value in parts.items()},
    }
