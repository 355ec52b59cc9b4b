"""Tables of scorers: their cost, and their agreement with the oracle."""

from typing import Any

from table_parts import (
    Result,
    difference,
    markdown,
    measured,
)

from rewardedit.shapes import EDIT_TYPES

ASPECTS_OF_RATING = {
    "overall": "score",
    "alignment": "alignment",
    "consistency": "consistency",
    "quality": "quality",
}
RETRIEVAL = {
    "recall@1": "recall@1",
    "recall@5": "recall@5",
    "recall@10": "recall@10",
    "recall@50": "recall@50",
    "median_rank": "median rank",
    "mean_rank": "mean rank",
    "swap": "swap test won",
    "identity": "identity test won",
}


def retrieval(result: Result) -> str:
    """Mean and temporal pooling compared."""
    test = result["test"]
    rows = [
        (words, *(f"{r[key]:.1f}" if "rank" in key else f"{100 * r[key]:.1f} %" for r in test.values()))
        for key, words in RETRIEVAL.items()
    ]
    versus = result["recall@1_temporal_minus_mean"]
    times = versus["mean_a"] / max(versus["mean_b"], 1e-9)
    gain = f"Recall@1, temporal − mean: {difference(versus, 3)}, {times:.1f} times"
    n = f"n = {versus['n']} held-out edits, all instructions distinct"
    by_type = [f"{kind} {100 * r['recall@1']:.0f} %" for kind, r in test["temporal"].get("kinds", {}).items()]
    head = ("", *(f"{pooling} pooling" for pooling in test))
    below = f"{gain}; {n}. Temporal recall@1 by kind: {', '.join(by_type)}. {measured(result)}"
    return markdown(head, rows, below)


def agreement(result: Result) -> str:
    """Spearman's ρ of every scorer with the oracle, by the inputs that a scorer may use."""

    def shown(estimate: dict[str, Any]) -> str:
        return f"{estimate['rho']:.2f} [{estimate['ci95'][0]:.2f}, {estimate['ci95'][1]:.2f}]"

    rows = [
        (
            group,
            name,
            *(shown(row["all"][aspect]) for aspect in ASPECTS_OF_RATING.values()),
            shown(row["extremes"]["score"]),
        )
        for group, name, row in _by_rho(result)
    ]
    n = f"n = {result['n']} edits of {result['sources']} held-out sources"
    extremes = f"{result['extremes']} of them extremes (rated at most 1, or at least 9)"
    head = ("may look at", "scorer", *ASPECTS_OF_RATING, "extremes")
    return markdown(head, rows, f"{n}, {extremes}. {measured(result)}")


def agreement_by_edit_type(result: Result) -> str:
    """Spearman's ρ with the overall rating, for each kind of instruction."""
    rows = [
        (group, name, *(f"{row['kinds'][kind]['rho']:.2f}" for kind in EDIT_TYPES))
        for group, name, row in _by_rho(result)
    ]
    return markdown(("may look at", "scorer", *EDIT_TYPES), rows)


def _by_rho(result: Result) -> list[tuple[str, str, dict[str, Any]]]:
    """Groups, scorers and rows; the best first within each group."""
    return [
        (group, name, row)
        for group, rows in result["rho"].items()
        for name, row in sorted(rows.items(), key=lambda item: -item[1]["all"]["score"]["rho"])
    ]


def heat(result: Result) -> str:
    """Share of heat maps' strongest pixels that lie in a planted defect."""
    rows = [
        (
            f"`{name}`",
            f"{100 * record['share']:.1f} %",
            f"{100 * record['area']:.1f} %",
            f"{record['times']:.1f}",
        )
        for name, record in result["scorers"].items()
    ]
    head = ("scorer", "share of the strongest 5 % in the defect", "area of the defect", "times")
    return markdown(head, rows, f"n = {result['n']} held-out edits. {measured(result)}")
