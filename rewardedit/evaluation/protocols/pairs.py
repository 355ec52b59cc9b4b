"""Benchmarks of pairs: two edits of one source, and which of them people prefer."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from rewardedit.evaluation.decisions import (
    TIE,
    Rule,
    Ways,
    accuracy,
    adiee,
    as_ways,
    baselines,
    decide_out_of_fold,
    misdecided,
    strict,
)
from rewardedit.evaluation.protocols.protocol import Cell, Column, ItemScores, Line, Options, Table

FOLDS = 5
NAMED = 5  # ids in a note
FITTED = (
    "more than 2 answers: margins of each scorer are fitted on the votes of other source images, in 5 folds; "
    "2 answers: pairs of which people prefer one; the higher score wins, equal scores are wrong"
)


@dataclass(frozen=True)
class Pair:
    """Two edits by one instruction, and people's vote."""

    id: str
    left: str  # id of the item
    right: str
    vote: str  # one of `decisions`: A for the left edit
    source: str  # name of the source image


def item_ids(pairs: Sequence[Pair]) -> list[str]:
    """Ids of the edits of all pairs, each once."""
    ids: dict[str, None] = {}
    for pair in pairs:
        ids |= dict.fromkeys((pair.left, pair.right))
    return list(ids)


@dataclass(frozen=True)
class PairScores:
    """Scores of the pairs of which both edits have an entry."""

    pairs: Sequence[Pair]
    a: np.ndarray  # (n,), NaN for an edit without a score
    b: np.ndarray

    @classmethod
    def of(cls, pairs: Sequence[Pair], scores: ItemScores, scorer: str) -> "PairScores":
        left = [pair.left for pair in pairs]
        right = [pair.right for pair in pairs]
        known = scores.known(scorer, left) & scores.known(scorer, right)
        kept = [pair for pair, both in zip(pairs, known, strict=True) if both]
        return cls(kept, scores.array(scorer, left)[known], scores.array(scorer, right)[known])

    @property
    def votes(self) -> list[str]:
        return [pair.vote for pair in self.pairs]

    @property
    def sources(self) -> list[str]:
        return [pair.source for pair in self.pairs]


def pair_table(
    pairs: Sequence[Pair],
    scores: ItemScores,
    ways: dict[str, Ways],
    options: Options,
    rule: Rule | None,
    others: Sequence[Line],
    notes: Sequence[str],
) -> Table:
    """Accuracies of all scorers, of stored decisions and of rules that see no image, and others' rows.

    Args:
        ways: columns by the number of answers that people had.
        rule: as in `accuracy_cell`.
    """
    ids = item_ids(pairs)
    lines = []
    remarks = list(notes)
    if rule is None:
        remarks.append(FITTED)
    for scorer in scores.values:
        pair_scores = PairScores.of(pairs, scores, scorer)
        cells = {column: accuracy_cell(pair_scores, count, options, rule) for column, count in ways.items()}
        lines.append(Line(scorer, cells))
        remarks += constant_note(scorer, pair_scores)
        remarks += shortfall(scores, scorer, ids)
    stored, more = stored_lines(pairs, scores, ways, rule, options)
    lines += [*stored, *baseline_lines(pairs, ways), *others]
    columns = [Column(name, percent=True, digits=2) for name in ways]
    return Table("Accuracy: decisions that are people's", columns, lines, [*remarks, *more])


def accuracy_cell(pair_scores: PairScores, ways: Ways, options: Options, rule: Rule | None = None) -> Cell:
    """The accuracy of a rule's decisions; without a rule, of those by margins that are fitted on the pairs of
    other source images (of 2 ways there are no margins: the higher score wins).
    """
    if not pair_scores.pairs:
        return Cell(n=0, reason="no pair has an entry for both edits")
    a = pair_scores.a
    b = pair_scores.b
    sources = pair_scores.sources
    votes = as_ways(pair_scores.votes, ways)
    if rule is None and ways == 2:
        rule = strict
    if rule is not None:
        return Cell.of(accuracy(rule(a, b), votes, ways, sources, options.seed))
    folds = min(FOLDS, len(set(sources)))
    if folds < 2:
        return Cell(n=len(votes), reason="no margins: all pairs are of one source image")
    decisions, _ = decide_out_of_fold(a, b, votes, sources, ways, folds, options.seed)
    return Cell.of(accuracy(decisions, votes, ways, sources, options.seed))


def baseline_lines(pairs: Sequence[Pair], ways: dict[str, Ways]) -> list[Line]:
    """Rules that see no image, by column; exact."""
    votes = [pair.vote for pair in pairs]
    lines: dict[str, dict[str, Cell]] = {}
    for column, count in ways.items():
        n = len(pairs) if count > 2 else sum(vote in ("a", "b") for vote in votes)
        for name, value in baselines(votes, count).items():
            lines.setdefault(name, {})[column] = Cell(value, n=n)
    return [Line(name, cells, "baseline") for name, cells in lines.items()]


def stored_lines(
    pairs: Sequence[Pair], scores: ItemScores, ways: dict[str, Ways], rule: Rule | None, options: Options
) -> tuple[list[Line], list[str]]:
    """Rows of the decisions that a file of scores stores, and notes on those that its scores give neither by
    the rule nor, without one, by any of `published_rules`.
    """
    lines = []
    notes = []
    for scorer, decisions in scores.decisions.items():
        kept = [pair for pair in pairs if pair.id in decisions]
        if not kept:
            continue
        stored = [decisions[pair.id] for pair in kept]
        votes = [pair.vote for pair in kept]
        sources = [pair.source for pair in kept]
        cells = {}
        for column, count in ways.items():
            cells[column] = Cell.of(accuracy(stored, as_ways(votes, count), count, sources, options.seed))
        lines.append(Line(f"{scorer}: stored decisions", cells, "published", "file of scores"))
        if scorer not in scores.values:
            notes.append(f"{scorer}: decisions without scores cannot be checked")
            continue
        pair_scores = PairScores.of(kept, scores, scorer)
        rules = {"that of --compat": rule} if rule else published_rules(pair_scores, max(ways.values()))
        notes.append(_misdecided(scorer, pair_scores, decisions, rules))
    return lines, notes


def published_rules(pair_scores: PairScores, ways: Ways) -> dict[str, Rule]:
    """Rules by which stored decisions may have been made, by what a note calls them."""
    rules: dict[str, Rule] = {"the higher score wins, else a tie": strict}
    known = np.concatenate([pair_scores.a, pair_scores.b])
    known = known[np.isfinite(known)]
    if len(known) and known.min() >= 0 and known.max() <= 10:
        rules["ADIEE's for scores from 0 to 10"] = partial(adiee, ways=4 if ways == 4 else 3)
    return rules


def _misdecided(
    scorer: str, pair_scores: PairScores, decisions: Mapping[str, str], rules: Mapping[str, Rule]
) -> str:
    """A note on stored decisions that the stored scores give by none of the rules."""
    ids = [pair.id for pair in pair_scores.pairs]
    stored = [decisions[name] for name in ids]
    by_rule: list[dict[Hashable, str]] = []
    for rule in rules.values():
        wrong = misdecided(ids, stored, pair_scores.a, pair_scores.b, rule)
        by_rule.append({one.id: one.by_rule for one in wrong})

    by_all = set(ids).intersection(*by_rule)
    wrong = [name for name in ids if name in by_all]
    checked = f"; by the rule: {', or '.join(rules)}"
    if not wrong:
        return f"{scorer}: all {len(ids)} stored decisions follow from the stored scores{checked}"
    some = []
    for name in wrong[:NAMED]:
        instead = " or ".join(dict.fromkeys(one[name] for one in by_rule))
        some.append(f"{name} ({decisions[name]}; by rule {instead})")
    said = f"{len(wrong)} of {len(ids)} stored decisions do not follow from its scores"
    return f"{scorer}: {said}: {', '.join(some)}{checked}"


def shortfall(scores: ItemScores, scorer: str, ids: Sequence[str]) -> list[str]:
    """A note on a scorer's items that have no entry or no score."""
    known = scores.known(scorer, ids)
    invalid = int((known & np.isnan(scores.array(scorer, ids))).sum())
    absent = int((~known).sum())
    reasons = scores.reasons.get(scorer, {})
    first = next((f": {name}: {reasons[name]}" for name in ids if name in reasons), "")
    parts = []
    if absent:
        parts.append(f"{absent} of {len(ids)} items left out")
    if invalid:
        parts.append(f"{invalid} of {len(ids)} items without a score")
    return [f"{scorer}: {', '.join(parts)}{first}"] if parts else []


def repeated(pairs: Sequence[Pair], keys: Sequence[tuple[str, ...]]) -> list[str]:
    """A note on pairs that several people voted on, which all count.

    Args:
        keys: the same for the same two edits.
    """
    votes: dict[tuple[str, ...], set[str]] = {}
    for pair, key in zip(pairs, keys, strict=True):
        votes.setdefault(key, set()).add(pair.vote)
    repeats = len(pairs) - len(votes)
    unlike = sum(len(ways) > 1 for ways in votes.values())
    return [f"{repeats} pairs repeat another; {unlike} have unlike votes; all count"] if repeats else []


def constant_note(scorer: str, pair_scores: PairScores) -> list[str]:
    """A note on a scorer that tells no two edits apart."""
    if not len(pair_scores.pairs) or np.any(strict(pair_scores.a, pair_scores.b) != TIE):
        return []
    return [f"{scorer}: scores of the two edits of every pair are equal"]
