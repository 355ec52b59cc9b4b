"""The page of a comparison of editors: the result in words, intervals, tables, and the wall of all edits."""

from pathlib import Path

from rewardedit.evaluation.editor_wall import IMAGES, Shown, editor_wall
from rewardedit.evaluation.editor_words import (
    NOTE,
    digits_of,
    interval,
    sentences,
    table,
)
from rewardedit.evaluation.editors import ByScorer, EditorComparison, Pair
from rewardedit.files import replaced
from rewardedit.reports.charts import Interval, Intervals
from rewardedit.reports.plain_names import scorer_name, signed
from rewardedit.reports.report import Headline, Report


def write_page(comparison: EditorComparison, of: Shown, folder: Path) -> Path:
    """Writes report.html, and its images beside it; returns its path."""
    report = Report(f"Comparison of {', '.join(comparison.editors)}")
    report.headline(_headline(comparison))
    report.panels("Differences of the best editor to each other one", _panels(comparison))
    report.panels("Differences by kind of edit", _kind_panels(comparison))
    for scorer, one in comparison.scorers.items():
        plain = scorer_name(scorer)
        report.table(plain.name, table(one))
        report.text(plain.says)
    report.text(NOTE)
    with replaced(folder / IMAGES) as aside:
        aside.mkdir()
        wall = editor_wall(of, aside)
    report.wall("Edits", wall)
    return report.save(folder / "report.html")


def _headline(comparison: EditorComparison) -> Headline:
    """The result by the first scorer, and below it those by the others."""
    first, *others = sentences(comparison)
    scorer, one = next(iter(comparison.scorers.items()))
    best = one.ranked[0]
    if len(one.ranked) == 1:
        return Headline(f"{best} by {scorer_name(scorer).name}", first, notes=others)
    pair = one.pair(*one.ranked[:2])
    title = f"No clear difference between {pair.a} and {pair.b}"
    tone = ""
    if one.better_than_first:
        others_ahead = " and ".join(one.better_than_first)
        title = f"{best} is rated highest, but worse than {others_ahead} where both have a score"
    elif pair.clear > 0:
        title = f"{best} is best" if len(one.ranked) > 2 else f"{best} is better than {pair.b}"
        tone = "better"
    counts = {
        f"wins of {pair.a}": pair.wins,
        "ties": pair.ties,
        f"wins of {pair.b}": pair.losses,
    }
    return Headline(title, first, tone, counts, others)


def _panels(comparison: EditorComparison) -> list[Intervals]:
    panels = []
    for scorer, one in comparison.scorers.items():
        best, *others = one.ranked
        rows = [_interval(f"{best} − {other}", one.pair(best, other), one) for other in others]
        if rows:
            panels.append(Intervals(scorer_name(scorer).name, scorer_name(scorer).says, rows))
    return panels


def _kind_panels(comparison: EditorComparison) -> list[Intervals]:
    """A panel for each scorer: the two best editors' difference on each kind of edit."""
    panels = []
    for scorer, one in comparison.scorers.items():
        if len(one.kinds) < 2 or len(one.ranked) < 2:
            continue
        first, second = one.ranked[:2]
        rows = []
        for kind in one.kinds:
            pair = one.pair(first, second, kind)
            rows.append(_interval(f"{kind} ({pair.difference.n})", pair, one))
        says = f"{first} − {second}; in brackets the number of requests."
        panels.append(Intervals(scorer_name(scorer).name, says, rows))
    return panels


def _interval(name: str, pair: Pair, one: ByScorer) -> Interval:
    of = pair.difference
    if of.n == 0:
        return Interval(name, "no requests")
    low, high = of.ci95
    text = interval(of, digits_of(one), signed)
    return Interval(name, text, of.value, low, high) if low == low else Interval(name, text, of.value)
