"""The result of a comparison of editors in sentences, and as tables."""

from collections.abc import Callable, Sequence
from itertools import chain
from math import isfinite

from rewardedit.evaluation.editors import ByScorer, EditorComparison, Pair
from rewardedit.evaluation.statistics import Estimate
from rewardedit.reports.plain_names import decimals, fixed, scorer_name, signed

Form = Callable[[float, int], str]
NOTE = (
    "In brackets: 95 % intervals over source images. Means are over the requests for which all editors have "
    "a score, wins over those for which both have one; a tie is half a win for each. Strength: by Bradley "
    "and Terry, natural logarithms of odds."
)


def sentences(comparison: EditorComparison) -> list[str]:
    """The result by each scorer: which editor is better and by how much, on which kinds of edit, and how many
    scores had no part in it; then the agreement of the scorers.
    """
    lines = []
    for scorer, one in comparison.scorers.items():
        said = [verdict(one), *kind_sentences(one), *_without_score(one)]
        lines.append(f"{scorer_name(scorer).name}: {' '.join(said)}")
    return [*lines, *agreement_sentences(comparison)]


def verdict(one: ByScorer) -> str:
    """The best editor by a scorer, and its differences to the others."""
    best, *others = one.ranked
    digits = digits_of(one)
    if not others:
        return f"the mean of {best} is {interval(one.standings[best].mean, digits)}."

    better = []
    equal = []
    contrary = []
    for other in others:
        pair = one.pair(best, other)
        if pair.clear < 0:
            turned = by_how_much(one.pair(other, best), digits)
            contrary.append(f"{other} is better than {best} by {turned}")
        elif pair.clear > 0:
            better.append(f"{other} by {by_how_much(pair, digits)}")
        else:
            equal.append(f"{other} ({by_how_much(pair, digits)})")

    unclear = f"no difference can be told to {_listed(equal)}" if equal else ""
    if contrary:
        said = [f"{best} is rated highest, but where both have a score, {_listed(contrary)}"]
        said += [f"it is better than {_listed(better)}"] if better else []
        return f"{'; '.join([*said, *filter(None, [unclear])])}."
    if not better:
        return f"{best} is rated highest, but {unclear}."
    return f"{'; '.join(filter(None, [f'{best} is better than {_listed(better)}', unclear]))}."


def by_how_much(pair: Pair, digits: int) -> str:
    """A difference with its interval, the share of wins, and the number of requests."""
    of = pair.difference
    if not isfinite(of.value):
        return of.reason
    counted = f"{of.n} requests, {of.clusters} source images"
    return f"{interval(of, digits, signed)}; wins {100 * pair.win_rate.value:.0f} % of {counted}"


def kind_sentences(one: ByScorer) -> list[str]:
    """The kinds of edit on which the two best editors differ, and those on which no difference can be told;
    nothing for fewer than two kinds.
    """
    if len(one.kinds) < 2 or len(one.standings) < 2:
        return []
    first, second = one.ranked[:2]
    ahead: dict[tuple[str, str], list[str]] = {(first, second): [], (second, first): []}
    unclear = []
    for kind in one.kinds:
        sign = one.pair(first, second, kind).clear
        if sign == 0:
            unclear.append(f"'{kind}'")
            continue
        both = (first, second) if sign > 0 else (second, first)
        difference = interval(one.pair(*both, kind).difference, digits_of(one), signed)
        ahead[both].append(f"'{kind}' edits by {difference}")
    said = []
    for (better, worse), kinds in ahead.items():
        if kinds:
            said.append(f"{better} is better than {worse} on {_listed(kinds)}.")
    if unclear:
        said.append(f"No difference between {first} and {second} can be told on {_listed(unclear)}.")
    return said


def _without_score(one: ByScorer) -> list[str]:
    """The editors whose edits were not all scored."""
    lacking = []
    for editor, standing in one.standings.items():
        counts = {"without a valid score": standing.invalid, "missing": standing.missing}
        counted = [f"{count} {name}" for name, count in counts.items() if count]
        if counted:
            lacking.append(f"{editor} {' and '.join(counted)}")
    return [f"Left out: {', '.join(lacking)}."] if lacking else []


def agreement_sentences(comparison: EditorComparison) -> list[str]:
    """The best editor by each scorer, and for three editors and more the correlation of their order."""
    if len(comparison.editors) < 2 or len(comparison.scorers) < 2:
        return []
    best: dict[str, list[str]] = {}
    for scorer, one in comparison.scorers.items():
        best.setdefault(one.ranked[0], []).append(scorer_name(scorer).name)
    if len(best) == 1:
        lines = [f"All scorers rate {next(iter(best))} highest."]
    else:
        said = [f"{editor} by {_listed(scorers)}" for editor, scorers in best.items()]
        lines = [f"The scorers disagree on the best editor: {'; '.join(said)}."]
    for one in comparison.agreement:
        if isfinite(one.kendall.value):
            names = " and ".join(scorer_name(scorer).name for scorer in one.scorers)
            both = f"Kendall τ {interval(one.kendall, 2)}, Spearman ρ {interval(one.spearman, 2)}"
            lines.append(f"Order of {one.kendall.n} editors by {names}: {both}.")
    return lines


def table(one: ByScorer) -> dict[str, dict[str, str]]:
    """A row for each editor, the best first."""
    digits = digits_of(one)
    rows = {}
    for editor in one.ranked:
        standing = one.standings[editor]
        requested = standing.valid + standing.invalid + standing.missing
        row = {"mean": interval(standing.mean, digits)}
        if standing.win_rate is not None:
            row["wins, %"] = interval(standing.win_rate, 0, _percent)
        if standing.strength is not None:
            row["strength"] = interval(standing.strength, 2, signed)
        rows[editor] = {**row, "scored": f"{standing.valid} of {requested}"}
    return rows


def text_table(rows: dict[str, dict[str, str]], title: str) -> list[str]:
    """The table as lines of text, columns below one another."""
    names = list(dict.fromkeys(chain.from_iterable(rows.values())))
    lines = [[title, *names]]
    for name, row in rows.items():
        lines.append([name, *(row.get(column, "") for column in names)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = []
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        padded.append("  ".join(cells).rstrip())
    return padded


def interval(estimate: Estimate, digits: int, form: Form = fixed) -> str:
    """A value with its interval, e.g. "+0.12 [+0.05, +0.19]"; "–" where it is undefined."""
    if not isfinite(estimate.value):
        return "–"
    value = form(estimate.value, digits)
    low, high = estimate.ci95
    return f"{value} [{form(low, digits)}, {form(high, digits)}]" if isfinite(low) else value


def digits_of(one: ByScorer) -> int:
    """Decimals of a scorer's means and differences."""
    means = [standing.mean.value for standing in one.standings.values()]
    return decimals([mean for mean in means if isfinite(mean)])


def _percent(value: float, digits: int) -> str:
    return fixed(100 * value, digits)


def _listed(names: Sequence[str]) -> str:
    """The names as a list in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
