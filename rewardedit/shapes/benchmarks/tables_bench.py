"""Tables of `rewardedit bench shapes`: every scorer on one page, and what attacks do to each."""

from typing import Any

from table_parts import Result, markdown, measured

from rewardedit.evaluation.robustness import tables as robustness
from rewardedit.shapes.bench.compare import MILLISECONDS, PASSING
from rewardedit.shapes.bench.figures import ACROSS, RETRIEVED, SEEDS, TRUTH, WITHIN

SHARES = (SEEDS, RETRIEVED, TRUTH, *PASSING)


def bench(result: Result) -> str:
    """Agreement of every scorer with the exact ratings, and the failed edits that pass, in usual wordings."""
    return _scorers(result, "usual", (WITHIN, *SHARES[:3], ACROSS, *PASSING, MILLISECONDS))


def bench_reserved(result: Result) -> str:
    """The same in wordings that no scorer was trained on."""
    return _scorers(result, "reserved", (WITHIN, *SHARES[:3], ACROSS))


def _scorers(result: Result, wordings: str, columns: tuple[str, ...]) -> str:
    table = next(one for one in result["tables"] if f"{wordings} wordings" in one["title"])
    rows = []
    for row in table["rows"]:
        name = f"`{row['name']}`" if row["kind"] == "measured" else row["name"]
        rows.append((name, *(_shown(row["cells"].get(column), column) for column in columns)))
    below = f"n = {result['n']} held-out sources. {measured(result)}"
    return markdown(("scorer", *columns), rows, below)


def _shown(cell: dict[str, Any] | None, column: str) -> str:
    """A cell with its interval; a dash where it is undefined."""
    if cell is None:
        return ""
    if cell["value"] is None:
        return "–"
    if column == MILLISECONDS:
        return f"{cell['value']:.1f}"
    share = column in SHARES
    ends = [cell["value"], *(cell["ci95"] or ())]
    value, *interval = [f"{100 * end:.0f}" if share else f"{end:.2f}" for end in ends]
    unit = " %" if share else ""
    return f"{value}{unit} [{', '.join(interval)}]" if interval else f"{value}{unit}"


def bench_attacks(result: Result) -> str:
    """Shares of failed edits that pass for good ones, before and after each attack."""
    tables = {one["title"]: one for one in result["tables"]}
    table = tables[robustness.PASSING]
    rows = []
    for before, after in zip(tables[robustness.BEFORE]["rows"], table["rows"], strict=True):
        cells = []
        for column in table["columns"]:
            ends = (_share(row["cells"].get(column)) for row in (before, after))
            cells.append(" → ".join(ends))
        rows.append((f"`{after['name']}`", *cells))
    return markdown(("scorer", *table["columns"]), rows, measured(result))


def bench_transfer(result: Result) -> str:
    """Additional failed edits that pass after gradient steps within 8/255 for another scorer."""
    table = next(one for one in result["tables"] if one["title"].endswith("within 8/255"))
    rows = []
    for row in table["rows"]:
        cells = [row["cells"].get(column) for column in table["columns"]]
        rows.append((f"`{row['name']}`", *(_share(cell, "+") for cell in cells)))
    head = ("steps made for", *(f"`{name}`" for name in table["columns"]))
    return markdown(head, rows, measured(result))


def _share(cell: dict[str, Any] | None, sign: str = "") -> str:
    if cell is None or cell["value"] is None:
        return "–"
    return f"{100 * cell['value']:{sign}.0f} %"


def bench_editors(result: Result) -> str:
    """Mean exact ratings of the editors."""
    table = next(one for one in result["tables"] if one["title"] == "Editors")
    rows = []
    for row in table["rows"]:
        rows.append((row["name"], _shown(row["cells"]["rating"], "rating")))
    return markdown(("editor", "mean rating, 0 to 10"), rows, measured(result))
