"""Gallery page of the edits made by `rewardedit edit`, which links the images beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from rewardedit.files import replaced
from rewardedit.images import to_pil
from rewardedit.reports.plain_names import decimals, fixed, scorer_name
from rewardedit.reports.report import Report
from rewardedit.reports.wall import Wall, WallEdit, WallImage

MOST_SHOWN = 1000  # most edits in the gallery
CANDIDATES = "-candidates"  # the folder of an edit's candidates is named after the edit


def save_candidates(
    images: Mapping[int, Float[Tensor, "3 h w"]],
    scores: Mapping[int, float | None],
    folder: Path,
    name: str,
) -> list[dict[str, Any]]:
    """Writes the candidates of an edit, which are given by their seeds; returns the record of each, the best
    first.
    """
    with replaced(folder / f"{name}{CANDIDATES}") as aside:
        aside.mkdir()
        for seed, image in images.items():
            to_pil(image.nan_to_num(0.5)).save(aside / f"seed-{seed}.png")
    ranked = sorted(images, key=lambda seed: (scores[seed] is None, -(scores[seed] or 0.0)))
    return [
        {"seed": seed, "score": scores[seed], "image": f"{name}{CANDIDATES}/seed-{seed}.png"}
        for seed in ranked
    ]


def write_gallery(
    done: list[dict[str, Any]],
    folder: Path,
    model: str,
    scorer: str | None,
    note: str,
) -> None:
    """Writes one edit per turn: source, result with its score, mask and candidates; only the first of many.

    Args:
        done: records of jobs, whose images lie in `folder`.
        scorer: name of the scorer of the edits.
        note: text above the gallery on how the edits were made.
    """
    turns = []
    for record in done[:MOST_SHOWN]:
        turns += record["turns"]
    scores = [turn["score"] for turn in turns if turn.get("score") is not None]
    wall = Wall(
        left="before",
        right="edited",
        orders=("highest score", "lowest score"),
        note="" if scorer is None else f"Scores by {scorer}: {scorer_name(scorer).says}",
    )
    for turn in turns:
        wall.add(_edit(turn, scorer, decimals(scores)))
    report = Report(f"Edits by {model}")
    if len(done) > MOST_SHOWN:
        report.text(f"The first {MOST_SHOWN} of {len(done)} edits; the others lie beside this page.")
    report.wall(note, wall)
    report.save(folder / "gallery.html")


def _edit(turn: dict[str, Any], scorer: str | None, digits: int) -> WallEdit:
    score = turn.get("score")
    said = "" if scorer is None else _score(score, turn.get("reason"), digits)
    images = [WallImage("before", file=turn["source"]), WallImage("edited", file=turn["image"], note=said)]
    if "mask" in turn:
        images.append(WallImage("mask", file=turn["mask"]))
    facts = [("seed", str(turn["seed"])), ("file", turn["image"])]
    return WallEdit(
        turn["instruction"],
        images,
        strip=[_candidate(record, turn, digits) for record in turn.get("candidates", [])],
        gain=score,
        change="" if score is None else f"{scorer} {fixed(score, digits)}",
        facts=[*facts, *([(scorer, said)] if scorer else []), ("prompt", turn["prompt"])],
    )


def _candidate(record: dict[str, Any], turn: dict[str, Any], digits: int) -> WallImage:
    """A candidate of the best of N."""
    note = _score(record["score"], None, digits)
    is_best = record["seed"] == turn["seed"]
    return WallImage(f"seed {record['seed']}", file=record["image"], note=note, best=is_best)


def _score(score: float | None, reason: str | None, digits: int) -> str:
    return f"no score{f': {reason}' if reason else ''}" if score is None else fixed(score, digits)
