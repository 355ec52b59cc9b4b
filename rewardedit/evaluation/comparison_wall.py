"""The edits of a comparison and their scores, and the wall that shows them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rewardedit.batch import Scores
from rewardedit.evaluation.held_out import HeldOut
from rewardedit.reports.plain_names import PlainName, decimals, fixed, signed, variant_name
from rewardedit.reports.wall import Wall, WallEdit, WallImage, tone

MOST_SHOWN = 200  # edits on the wall
EXTREMES = 50  # edits of each kind that are shown first: greatest gains, losses and disagreements
WITH_HEAT = 8  # greatest gains, and greatest losses, that have a heat map
BEFORE = "before"
TARGET = "target"


@dataclass(frozen=True)
class Compared:
    """The edits of all variants of a training, and how they were judged."""

    main: str  # the variant that the others are compared with
    result: Path  # its model
    edited: dict[str, Tensor]  # (n, 3, h, w) by variant, the base first
    judge: str
    values: dict[str, Tensor]  # (n,) by variant, by the judge
    scores: dict[str, dict[str, Scores]]  # by variant and scorer
    signs: dict[str, dict[str, Tensor]]  # (n,) of reward hacking by variant and name
    names: dict[str, PlainName]  # names of the judge and the scorers
    reward: str | None  # the scorer that trained the variants
    # the judge's heat map of an edit of the main variant (3, h, w), by row; None: it has no gradient
    heat: Callable[[int], Tensor] | None = None

    @property
    def judge_name(self) -> str:
        return self.names[self.judge].name


def wall_of(of: Compared, test: HeldOut) -> Wall:
    """Edits of base and result; of many, those with the greatest gains, losses and disagreements, and then
    the first of the others.
    """
    gain = of.values[of.main] - of.values["base"]
    disagreement = disagreements(of)
    shown = chosen_rows(gain, disagreement)

    main = variant_name(of.main)
    note = "Gains are differences of the result from the base by " + of.judge_name + "."
    if len(shown) < len(test):
        note += (
            f" {len(shown)} of {len(test)} edits are shown: the {EXTREMES} with the greatest gain, loss and "
            "disagreement of scorers each, and the first of the others."
        )

    wall = Wall(left=variant_name("base"), right=main, note=note)
    with_heat = set() if of.heat is None else set(_extremes(gain, WITH_HEAT))
    digits = decimals(finite(of.values.values()))
    for row in shown:
        edit = _edit(of, test, row, digits)
        edit.gain = float(gain[row])
        edit.tone = tone(edit.gain)
        edit.change = signed(edit.gain, digits) if gain[row].isfinite() else ""
        edit.disagreement = None if disagreement is None else float(disagreement[row])
        if row in with_heat:
            assert of.heat is not None
            edit.hidden = [*edit.hidden, WallImage(f"heat map of {main}", of.heat(row))]
            legend = "green: this change raised the score; red: it lowered it"
            edit.facts = [*edit.facts, ("heat map", legend)]
        wall.add(edit)
    return wall


def finite(values: Iterable[Tensor]) -> list[float]:
    """The finite numbers of several tensors."""
    numbers: list[float] = []
    for tensor in values:
        numbers += tensor[tensor.isfinite()].tolist()
    return numbers


def disagreements(of: Compared) -> Tensor | None:
    """Spread of the scorers' gains (n,), each in its own standard deviations; None for fewer than two."""
    gains = []
    for name, main in of.scores[of.main].items():
        gain = (main.score - of.scores["base"][name].score).float()
        valid = gain[gain.isfinite()]
        if len(valid) > 1 and float(valid.std()) > 0:
            gains.append(gain / valid.std())
    if len(gains) < 2:
        return None
    stacked = torch.stack(gains)
    return stacked.amax(0) - stacked.amin(0)


def chosen_rows(gain: Tensor, disagreement: Tensor | None) -> list[int]:
    """At most `MOST_SHOWN` rows, in the order of the data."""
    if len(gain) <= MOST_SHOWN:
        return list(range(len(gain)))
    rows = _extremes(gain, EXTREMES)
    if disagreement is not None:
        rows += disagreement.nan_to_num(-torch.inf).topk(EXTREMES).indices.tolist()
    return sorted(list(dict.fromkeys([*rows, *range(len(gain))]))[:MOST_SHOWN])


def _extremes(gain: Tensor, n: int) -> list[int]:
    """The n rows with the greatest gain, and the n with the greatest loss."""
    n = min(n, len(gain))
    best = gain.nan_to_num(-torch.inf).topk(n).indices.tolist()
    worst = (-gain).nan_to_num(-torch.inf).topk(n).indices.tolist()
    return [row for row in dict.fromkeys(best + worst) if gain[row].isfinite()]


def _edit(of: Compared, test: HeldOut, row: int, digits: int) -> WallEdit:
    """One edit: before, base, result and target; the other variants at full size alone."""
    images = [WallImage(BEFORE, test.source[row])]
    hidden = []
    for name, edited in of.edited.items():
        if name not in ("base", of.main) and not edited[row].isfinite().any():
            continue  # asked for in a part of the rows alone
        value = of.values[name][row]
        note = fixed(float(value), digits) if value.isfinite() else "no score"
        place = images if name in ("base", of.main) else hidden
        place.append(WallImage(variant_name(name), edited[row], note=note))
    if test.batch.target is not None:
        images.append(WallImage(TARGET, test.batch.target[row]))

    kind = test.edit_type[row] if test.edit_type else ""
    facts = [("seed", str(row)), ("row", test.id[row]), ("source image", test.source_id[row])]
    if kind:
        facts.append(("kind", kind))
    reasons = {}
    for name, scores in of.scores[of.main].items():
        if scores.reason[row]:
            reasons[f"{of.names[name].name}: no score"] = scores.reason[row]

    return WallEdit(
        test.instruction[row],
        images,
        hidden=hidden,
        kind=kind,
        facts=[*facts, *reasons.items()],
        columns=list(map(variant_name, of.edited)),
        scores=_scores(of, row),
    )


def _scores(of: Compared, row: int) -> list[tuple[str, list[str]]]:
    """The scores and their parts: a line each, with a cell for each variant."""
    lines: dict[str, list[Tensor | None]] = {}
    if of.judge not in of.scores[of.main]:
        lines[of.judge_name] = [of.values[name] for name in of.edited]
    for scorer, main in of.scores[of.main].items():
        plain = of.names[scorer].name
        lines[plain] = [of.scores[name][scorer].score for name in of.edited]
        for sub_score in main.parts:
            lines[f"{plain} · {sub_score}"] = [
                of.scores[name][scorer].parts.get(sub_score) for name in of.edited
            ]
    return [(name, _cells(values, row)) for name, values in lines.items()]


def _cells(values: list[Tensor | None], row: int) -> list[str]:
    """One row's values with the same number of decimals; "–" where there is none."""
    numbers = [None if value is None or not value[row].isfinite() else float(value[row]) for value in values]
    digits = decimals(numbers)
    return [fixed(number, digits) for number in numbers]
