"""Tables as text, JSON, CSV and a page."""

import csv
import io

from rewardedit.evaluation.bench_report import Results, as_csv, as_text, write_results
from rewardedit.evaluation.protocols.protocol import About, Cell, Column, Line, Table

ABOUT = About("A benchmark", "Someone 2025", "3 pairs", "MIT", "someone/data", "small")
TABLE = Table(
    "Accuracy",
    [Column("share", percent=True, digits=1), Column("ρ", digits=2)],
    [
        Line("mine", {"share": Cell(0.5, (0.25, 0.75), 4), "ρ": Cell(reason="undefined: all equal")}),
        Line("<theirs>", {"share": Cell(0.654)}, "published", "Someone 2025, Table 1"),
        Line("random", {"share": Cell(0.5), "ρ": Cell(reason="undefined: all equal")}, "baseline"),
    ],
    ["a note"],
)


def test_a_table_says_what_is_published_and_why_cells_are_empty():
    lines = as_text(TABLE)
    assert [line.split() for line in lines[2:5]] == [
        ["mine", "50.0", "[25.0,", "75.0]", "–"],
        ["<theirs>", "†", "65.4"],
        ["random", "‡", "50.0", "–"],
    ]
    assert "sources: Someone 2025, Table 1" in lines
    assert lines[-2:] == ["a note", "mine, random, ρ: undefined: all equal"]


def test_csv_has_a_row_for_each_cell():
    rows = list(csv.DictReader(io.StringIO(as_csv([TABLE]))))
    assert len(rows) == 5
    first = {"table": "Accuracy", "row": "mine", "kind": "measured", "column": "share", "value": "0.5"}
    assert first.items() <= rows[0].items()
    assert (rows[0]["low"], rows[0]["high"], rows[0]["n"]) == ("0.25", "0.75", "4")
    assert rows[1]["reason"] == "undefined: all equal"
    assert rows[2]["source"] == "Someone 2025, Table 1"


def test_the_page_has_tables_and_what_scores_were_made_of(tmp_path):
    made_of = {"scorers": {"mine": {"scorer": "vlm_judge", "fingerprint": {"prompt": "abc"}}}}
    write_results(Results("name", ABOUT, [TABLE], made_of, ["trained on it"]), tmp_path)
    page = (tmp_path / "bench.html").read_text()
    assert "&lt;theirs&gt; †" in page
    assert "50.0 [25.0, 75.0]" in page
    assert "fingerprint.prompt" in page
    assert "trained on it" in page
