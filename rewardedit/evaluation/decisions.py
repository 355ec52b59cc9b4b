"""Decisions between two edits of one source: from scores by published rules, and how often they are people's.

A decision or a person's vote is `A`, `B`, `TIE` (both good, or equal) or `BAD` (both bad). An edit without a
score is worse than any that has one.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rewardedit.evaluation.preferences import alignment_of_editors
from rewardedit.evaluation.statistics import Estimate, clustered_mean

Values = Sequence[float] | np.ndarray
Labels = Sequence[str] | np.ndarray
Ways = Literal[2, 3, 4]  # answers that people could give: A, B; and a tie; and both bad apart from it
Rule = Callable[[Values, Values], np.ndarray]

A = "a"
B = "b"
TIE = "tie"
BAD = "both bad"
EQUAL = "equal"  # a judge's [[A=B]], right for both kinds of tie
UNREADABLE = "unreadable"  # never right

# people's votes and judges' answers in GenAI-Bench's files
VOTES = {"leftvote": A, "rightvote": B, "tievote": TIE, "bothbad_vote": BAD}
ANSWERS = {"[[A>B]]": A, "[[B>A]]": B, "[[A=B=Good]]": TIE, "[[A=B=Bad]]": BAD, "[[A=B]]": EQUAL}


def read_answer(answer: str | None) -> str:
    """A judge's decision; `UNREADABLE` where its answer is none of GenAI-Bench's, or several of them."""
    return ANSWERS.get((answer or "").strip(), UNREADABLE)


def strict(score_a: Values, score_b: Values) -> np.ndarray:
    """The edit with the higher score, else a tie."""
    return three_way(score_a, score_b, 0.0)


def three_way(score_a: Values, score_b: Values, margin: float) -> np.ndarray:
    """The edit with the higher score; a tie where the scores differ by no more than the margin."""
    difference = _difference(score_a, score_b)
    better = np.where(difference > 0, A, B)
    return np.where(np.abs(difference) <= margin, TIE, better)


def four_way(score_a: Values, score_b: Values, margin: float, good: float) -> np.ndarray:
    """As `three_way`, but a tie is "both bad" where the lower score is below `good`."""
    decisions = three_way(score_a, score_b, margin)
    lower = np.minimum(_scores(score_a), _scores(score_b))
    return np.where((decisions == TIE) & (lower < good), BAD, decisions)


def adiee(score_a: Values, score_b: Values, ways: Literal[3, 4] = 4) -> np.ndarray:
    """The rule of ADIEE's released code for scores from 0 to 10: score / 5 is rounded, halves to the even
    number, and the edit of the higher class is better. Of one class, both are good where both scores are at
    least 9, both bad elsewhere (GenAI-Bench, 4 ways), or it is a tie (AURORA-Bench, 3 ways).
    """
    decisions = strict(np.round(_scores(score_a) / 5), np.round(_scores(score_b) / 5))
    if ways == 3:
        return decisions
    both_good = np.minimum(_scores(score_a), _scores(score_b)) >= 9
    return np.where((decisions == TIE) & ~both_good, BAD, decisions)


def viescore(semantic: Values, quality: Values, seed: int) -> np.ndarray:
    """VIEScore's overall score √(SC · PQ), 0 to 10. An answer that cannot be read, NaN, becomes a random
    whole number from 0 to 10, as in the released code after one retry.

    Args:
        semantic: (n,) the lowest number of each semantic answer, 0 to 10.
        quality: (n,) the lowest number of each answer about quality, 0 to 10.
        seed: of the random numbers; the semantic answers' come first.
    """
    rng = np.random.default_rng(seed)
    guessed = []
    for values in (semantic, quality):
        values = np.asarray(values, dtype=float)
        guessed.append(np.where(np.isnan(values), rng.integers(0, 11, size=len(values)), values))
    return np.sqrt(guessed[0] * guessed[1])


def bpm_overall(
    modify: Values,
    preserve: Values,
    size: Values,
    position: Values,
    alpha: float = 0.7,
    normalise: Literal["batch"] | None = "batch",
) -> np.ndarray:
    """BPM's overall score α (modify + preserve) + (1 − α) (size + position), as its evaluation computes it.

    Args:
        modify: (n,) this part of all edits of the evaluated file, by all editors.
        preserve: (n,) this part of the same edits.
        size: (n,) this part of the same edits.
        position: (n,) this part of the same edits.
        normalise: "batch" brings the two first to 0 and 1 by the least and the largest value of the file.
            As in the released code, preservations of exactly 0 and −1 (edits of the whole image, failures)
            have no part in these ends and may come to lie outside. None takes the parts as they are.
    """
    parts = [np.asarray(values, dtype=float) for values in (modify, preserve, size, position)]
    if normalise == "batch":
        parts[0] = _between_ends(parts[0], parts[0])
        parts[1] = _between_ends(parts[1], parts[1][(parts[1] != 0) & (parts[1] != -1)])
    return alpha * (parts[0] + parts[1]) + (1 - alpha) * (parts[2] + parts[3])


def _between_ends(values: np.ndarray, counted: np.ndarray) -> np.ndarray:
    if not len(counted) or np.ptp(counted) == 0:
        raise ValueError("normalise: expected values that vary over the file, got equal ones; use None")
    return (values - counted.min()) / np.ptp(counted)


def bpm_accuracy(scores: Mapping[str, Values], ratings: Mapping[str, Values]) -> float:
    """The accuracy of BPM's human alignment test: over every two editors (six pairs for four) the mean of the
    shares of rows in which the metric prefers what people prefer, each rounded to three digits. Rows that
    people rate equal are dropped, the metric's ties are wrong.

    Args:
        scores: (n,) scores of each editor's edits of the same rows.
        ratings: (n,) people's ratings of the same edits.
    """
    pairs = alignment_of_editors(scores, ratings).values()
    return float(np.mean([round(pair.share, 3) for pair in pairs if pair.n]))


@dataclass(frozen=True)
class Margins:
    """Thresholds of a scorer, on the scale of its scores."""

    tie: float = 0.0  # scores that differ by no more than this are equal
    good: float = float("-inf")  # two equal edits are both good where the lower score is at least this


def decide(score_a: Values, score_b: Values, margins: Margins, ways: Ways) -> np.ndarray:
    """Decisions as people could vote: `strict` for two ways, `three_way` or `four_way`."""
    if ways == 2:
        return strict(score_a, score_b)
    if ways == 3:
        return three_way(score_a, score_b, margins.tie)
    return four_way(score_a, score_b, margins.tie, margins.good)


def fit_margins(
    score_a: Values, score_b: Values, votes: Labels, ways: Ways, candidates: int = 400
) -> Margins:
    """The margins with the highest accuracy on these votes; of equal ones the smallest `tie`, then the
    smallest `good`.

    Args:
        score_a: (n,) scores of the first edit of each pair.
        score_b: (n,) scores of the second edit of each pair.
        votes: (n,) people's.
        candidates: thresholds that are tried of each kind: all that differ if there are no more, else these
            many of them, evenly over the sorted values.
    """
    if ways == 2:
        return Margins()
    votes = as_ways(votes, ways)
    difference = _difference(score_a, score_b)
    lower = np.minimum(_scores(score_a), _scores(score_b))
    ties = _thresholds(np.abs(difference), 0.0, candidates)
    goods = _thresholds(lower, float("-inf"), candidates) if ways == 4 else np.array([float("-inf")])

    # A pair is apart up to the threshold before its column, and good up to the one before its row's.
    tied_from = np.searchsorted(ties, np.abs(difference), side="left")
    good_before = np.searchsorted(goods, lower, side="right")
    apart = (votes == np.where(difference > 0, A, B)) & (difference != 0)
    right = np.bincount(tied_from[apart], minlength=len(ties) + 1)
    right_apart = right.sum() - np.cumsum(right)[: len(ties)]
    shape = (len(ties) + 1, len(goods) + 1)
    tie = _table(tied_from, good_before, votes == TIE, shape)
    bad = _table(tied_from, good_before, votes == BAD, shape)
    tied_good = tie.sum(1, keepdims=True) - np.cumsum(tie, axis=1)
    tied_bad = np.cumsum(bad, axis=1)
    right_tied = np.cumsum(tied_good + tied_bad, axis=0)[: len(ties), : len(goods)]
    best = np.argmax(right_apart[:, None] + right_tied)
    row, column = np.unravel_index(best, right_tied.shape)
    return Margins(float(ties[row]), float(goods[column]))


def _table(rows: np.ndarray, columns: np.ndarray, kept: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    flat = np.bincount(rows[kept] * shape[1] + columns[kept], minlength=shape[0] * shape[1])
    return flat.reshape(shape)


def _thresholds(values: np.ndarray, first: float, most: int) -> np.ndarray:
    """Thresholds half-way between neighbouring values, after `first`, and one above all."""
    distinct = np.unique(values[np.isfinite(values)])
    between = (distinct[1:] + distinct[:-1]) / 2
    if len(between) > most:
        between = between[np.linspace(0, len(between) - 1, most).round().astype(int)]
    above = np.nextafter(distinct[-1:], np.inf)
    return np.unique(np.concatenate([[first], between[between > first], above[above > first]]))


def decide_out_of_fold(
    score_a: Values,
    score_b: Values,
    votes: Labels,
    cluster: Sequence[Hashable] | np.ndarray,
    ways: Ways,
    folds: int = 5,
    seed: int = 0,
) -> tuple[np.ndarray, list[Margins]]:
    """Decisions of all pairs, each with margins fitted on the other folds' votes, and each fold's margins.

    Args:
        cluster: (n,) the source image of each pair; all pairs of one are in one fold.
        folds: sets of source images of nearly equal number, by the seed.

    Raises:
        ValueError: on fewer source images than folds.
    """
    score_a = _scores(score_a)
    score_b = _scores(score_b)
    votes = np.asarray(votes)
    distinct = list(dict.fromkeys(cluster))
    if not 2 <= folds <= len(distinct):
        raise ValueError(f"folds: expected 2 to {len(distinct)}, the number of source images; got {folds}")
    order = np.random.default_rng(seed).permutation(len(distinct)) % folds
    fold_of = dict(zip(distinct, order, strict=True))
    fold = np.array([fold_of[name] for name in cluster])
    decisions = np.full(len(fold), UNREADABLE, dtype=object)
    fitted = []
    for held_out in range(folds):
        in_fold = fold == held_out
        margins = fit_margins(score_a[~in_fold], score_b[~in_fold], votes[~in_fold], ways)
        decisions[in_fold] = decide(score_a[in_fold], score_b[in_fold], margins, ways)
        fitted.append(margins)
    return decisions.astype(str), fitted


def as_ways(votes: Labels, ways: Ways) -> np.ndarray:
    """Votes as if people had had fewer answers: of 3 ways both bad is a tie. For 2 ways ties stay, and
    `accuracy` leaves them out.
    """
    votes = np.asarray(votes).astype(str)
    return votes if ways == 4 else np.where(votes == BAD, TIE, votes)


def accuracy(
    decisions: Labels,
    votes: Labels,
    ways: Ways,
    cluster: Sequence[Hashable] | np.ndarray | None = None,
    seed: int = 0,
) -> Estimate:
    """The share of decisions that are people's votes; for 2 ways of the pairs of which people prefer one."""
    votes = as_ways(votes, ways)
    decisions = as_ways(decisions, ways)
    right = (decisions == votes) | ((decisions == EQUAL) & np.isin(votes, (TIE, BAD)))
    counted = np.isin(votes, (A, B)) | (ways > 2)
    return clustered_mean(np.where(counted, right, np.nan), cluster, seed)


def baselines(votes: Labels, ways: Ways) -> dict[str, float]:
    """Expected accuracies of rules that see no image, exactly.

    "random answer" draws one of the answers, "random score" decides by `strict` between two random numbers;
    "always equal" gives GenAI-Bench's [[A=B]], right for both kinds of tie.
    """
    votes = as_ways(votes, ways)
    preferred = np.isin(votes, (A, B))
    if ways == 2:
        return {"always tie": 0.0, "random answer": 0.5, "random score": 0.5}
    shares = {
        "always tie": float((votes == TIE).mean()),
        "random answer": 1 / ways,
        "random score": float(preferred.mean() / 2),
    }
    if ways == 4:
        shares["always both bad"] = float((votes == BAD).mean())
        shares["always equal"] = float(1 - preferred.mean())
    return shares


@dataclass(frozen=True)
class Misdecided:
    """A stored decision that its stored scores do not give."""

    id: Hashable
    stored: str
    by_rule: str


def misdecided(
    ids: Sequence[Hashable], stored: Labels, score_a: Values, score_b: Values, rule: Rule
) -> list[Misdecided]:
    """Stored decisions that the stored scores do not give by their rule, with the ids of their rows."""
    by_rule = rule(score_a, score_b)
    if not len(ids) == len(stored) == len(by_rule):
        raise ValueError(
            f"expected (n,) ids, decisions, scores; got {len(ids)}, {len(stored)}, {len(by_rule)}"
        )
    decided = zip(ids, map(str, stored), map(str, by_rule), strict=True)
    return [Misdecided(*row) for row in decided if row[1] != row[2]]


def _scores(values: Values) -> np.ndarray:
    """Scores (n,), the lowest of all for an edit without one."""
    return np.nan_to_num(np.asarray(values, dtype=float), nan=-np.inf, posinf=np.inf, neginf=-np.inf)


def _difference(score_a: Values, score_b: Values) -> np.ndarray:
    """Score differences (n,), 0 where both edits have no score."""
    a = _scores(score_a)
    b = _scores(score_b)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"expected two times (n,) scores; got {a.shape}, {b.shape}")
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, a - b)
