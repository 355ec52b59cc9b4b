"""The tables of a benchmark as text, JSON, CSV and a page."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardedit.evaluation.protocols.protocol import About, Cell, Column, Line, Table
from rewardedit.files import AnyPath, replaced, write_json
from rewardedit.reports.report import Report

MARKS = {"published": "†", "baseline": "‡", "people": "", "measured": ""}
LEGEND = {"published": "† published by others", "baseline": "‡ a rule that sees no image, exact"}
JSON = "bench.json"
CSV = "bench.csv"
PAGE = "bench.html"


@dataclass(frozen=True)
class Results:
    """Everything that a call of `rewardedit bench` found."""

    name: str
    about: About
    tables: Sequence[Table]
    made_of: Mapping[str, Any]  # settings, and by scorer all that its scores depend on
    notes: Sequence[str] = ()  # that hold for all tables

    def as_dict(self) -> dict[str, Any]:
        about = {name: value for name, value in vars(self.about).items() if name not in ("compat", "heading")}
        tables = list(map(table_dict, self.tables))
        return {
            "benchmark": self.name,
            "about": about,
            "made_of": dict(self.made_of),
            "tables": tables,
            "notes": list(self.notes),
        }


def table_dict(table: Table) -> dict[str, Any]:
    """A table as JSON has it."""
    rows = []
    for line in table.rows:
        cells = {name: cell_dict(cell) for name, cell in line.cells.items()}
        source = {"source": line.source} if line.source else {}
        rows.append({"name": line.name, "kind": line.kind, **source, "cells": cells})
    columns = [column.name for column in table.columns]
    return {"title": table.title, "columns": columns, "rows": rows, "notes": list(table.notes)}


def cell_dict(cell: Cell) -> dict[str, Any]:
    """A cell as JSON has it."""
    reason = {"reason": cell.reason} if cell.reason else {}
    return {"value": cell.value, "ci95": cell.ci95, "n": cell.n, **reason}


def shown(cell: Cell | None, column: Column) -> str:
    """A cell in words: its value and interval; a dash without a value."""
    if cell is None:
        return ""
    if cell.value is None:
        return "–"
    scale = 100 if column.percent else 1
    text = f"{cell.value * scale:.{column.digits}f}"
    if cell.ci95 is None:
        return text
    low, high = cell.ci95
    return f"{text} [{low * scale:.{column.digits}f}, {high * scale:.{column.digits}f}]"


def line_name(line: Line) -> str:
    return f"{line.name} {MARKS[line.kind]}".rstrip()


def as_text(table: Table) -> list[str]:
    """A table as lines of a terminal, with its notes."""
    cells = [["", *(map(_head, table.columns))]]
    for line in table.rows:
        cells.append([line_name(line), *(shown(line.cells.get(c.name), c) for c in table.columns)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [table.title]
    for row in cells:
        lines.append("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    return [*lines, *remarks(table)]


def _head(column: Column) -> str:
    return f"{column.name} (%)" if column.percent else column.name


def remarks(table: Table) -> list[str]:
    """Legend, sources of published rows, notes, and reasons for missing values."""
    kinds = dict.fromkeys(line.kind for line in table.rows)
    lines = [LEGEND[kind] for kind in kinds if kind in LEGEND]
    sources = dict.fromkeys(line.source for line in table.rows if line.source)
    if sources:
        lines.append(f"sources: {'; '.join(sources)}")
    return [*lines, *table.notes, *_reasons(table.rows)]


def _reasons(rows: Sequence[Line]) -> list[str]:
    """Reasons for missing values, each with its rows and columns, without those that only list others."""
    named: dict[tuple[str, str], list[str]] = {}
    for line in rows:
        columns: dict[str, list[str]] = {}
        for name, cell in line.cells.items():
            if cell.reason:
                columns.setdefault(cell.reason, []).append(name)
        for reason, names in columns.items():
            lists_others = any(other in reason for other in columns if other != reason)
            if not lists_others:
                named.setdefault((", ".join(names), reason), []).append(line.name)
    return [f"{', '.join(lines)}, {columns}: {reason}" for (columns, reason), lines in named.items()]


def as_csv(tables: Sequence[Table]) -> str:
    """All cells of all tables, one a row."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["table", "row", "kind", "source", "column", "value", "low", "high", "n", "reason"])
    for table in tables:
        for line in table.rows:
            for name, cell in line.cells.items():
                low, high = cell.ci95 or ("", "")
                value = "" if cell.value is None else cell.value
                n = "" if cell.n is None else cell.n
                head = [table.title, line.name, line.kind, line.source, name]
                writer.writerow([*head, value, low, high, n, cell.reason])
    return file.getvalue()


def write_results(results: Results, out: AnyPath) -> None:
    """Writes `JSON`, `CSV` and `PAGE` into a folder."""
    write_json(out / JSON, results.as_dict())
    with replaced(out / CSV) as aside:
        aside.write_text(as_csv(results.tables), encoding="utf-8")
    write_page(results, out / PAGE)


def write_page(results: Results, path: AnyPath) -> None:
    """Writes the tables as a page."""
    about = results.about
    report = Report(about.heading or f"{about.title}: scores and people")
    report.text(f"{about.paper}; {about.size}; {about.licence}; {about.data}")
    for table in results.tables:
        rows: dict[str, dict[str, float | str | None]] = {}
        for line in table.rows:
            rows[line_name(line)] = {_head(c): shown(line.cells.get(c.name), c) for c in table.columns}
        report.table(table.title, rows)
        for note in remarks(table):
            report.text(note)
    for note in results.notes:
        report.text(note)
    for scorer, settings in results.made_of.get("scorers", {}).items():
        report.table(f"made of: {scorer}", {"": _flat(settings)}, folded=True)
    report.save(path)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, float | str | None]:
    """Nested settings as one row of texts."""
    cells: dict[str, float | str | None] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            cells |= _flat(value, f"{prefix}{name}.")
        else:
            cells[f"{prefix}{name}"] = str(value)
    return cells
