"""A comparison of editors in the layout of ADIEE's Tables 3 (means by several scorers) and 5 (mean and rank),
with wins, strengths and the agreement of the scorers.
"""

from rewardedit.evaluation.editors import EditorComparison
from rewardedit.evaluation.protocols.protocol import Cell, Column, Line, Table
from rewardedit.evaluation.statistics import Estimate

MEANS = "Mean score and rank of each editor"
WINS = "Wins against the other editors"
STRENGTHS = "Strength of each editor (Bradley and Terry)"
AGREEMENT = "Agreement of two scorers on the order of the editors"


def tables(comparison: EditorComparison) -> list[Table]:
    """Means with ranks; for two editors and more, wins and strengths; for two scorers and more, how far they
    agree on the order.
    """
    made = [_means(comparison)]
    if len(comparison.editors) > 1:
        tie = "a tie is half a win"
        if comparison.tie:
            tie += f"; scores that differ by at most {comparison.tie:g} are a tie"
        made.append(_by_editor(comparison, "win_rate", WINS, percent=True, note=tie))
        note = "natural logarithms of odds, their mean is 0; every two editors have one tie more"
        made.append(_by_editor(comparison, "strength", STRENGTHS, percent=False, note=note))
    if comparison.agreement:
        made.append(_agreement(comparison))
    return made


def _means(comparison: EditorComparison) -> Table:
    columns = []
    for scorer in comparison.scorers:
        columns += [Column(scorer), Column(_rank(scorer), digits=0)]
    lines = []
    for editor in comparison.editors:
        cells = {}
        for scorer, one in comparison.scorers.items():
            cells[scorer] = Cell.of(one.standings[editor].mean)
            if cells[scorer].value is not None:
                cells[_rank(scorer)] = Cell(1.0 + one.ranked.index(editor))
        lines.append(Line(editor, cells))
    notes = []
    for scorer, one in comparison.scorers.items():
        notes.append(f"{scorer}: over the {one.requests} requests for which all editors have a score")
        for editor, standing in one.standings.items():
            if standing.invalid or standing.missing:
                lack = f"{standing.invalid} edits without a score, {standing.missing} missing"
                notes.append(f"{scorer}, {editor}: {lack}")
    return Table(MEANS, columns, lines, notes)


def _rank(scorer: str) -> str:
    return f"rank by {scorer}"


def _by_editor(comparison: EditorComparison, name: str, title: str, percent: bool, note: str) -> Table:
    columns = [Column(scorer, percent, digits=1 if percent else 2) for scorer in comparison.scorers]
    lines = []
    for editor in comparison.editors:
        cells = {}
        for scorer, one in comparison.scorers.items():
            estimate: Estimate = getattr(one.standings[editor], name)
            cells[scorer] = Cell.of(estimate)
        lines.append(Line(editor, cells))
    return Table(title, columns, lines, [note])


def _agreement(comparison: EditorComparison) -> Table:
    columns = [Column("Kendall's τ", digits=2), Column("Spearman's ρ", digits=2)]
    lines = []
    count = len(comparison.editors)
    notes = [f"of {count} editors, over the requests for which both scorers have all scores"]
    for one in comparison.agreement:
        cells = {"Kendall's τ": Cell.of(one.kendall), "Spearman's ρ": Cell.of(one.spearman)}
        name = " and ".join(one.scorers)
        lines.append(Line(name, cells))
        if one.kendall.reason:
            notes.append(f"{name}: {one.kendall.reason}")
    return Table(AGREEMENT, columns, lines, notes)
