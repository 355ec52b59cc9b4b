import json

import pytest

from rewardedit.cli import main
from rewardedit.evaluation.decisions import VOTES
from rewardedit.evaluation.protocols.genai_bench import GenAIBench
from rewardedit.evaluation.protocols.protocol import ItemScores, Options
from tests.evaluation.protocols.files import BROKEN, PUBLIC, photograph, stored, write_table

FILE = PUBLIC / "genai_bench" / "image_edition_votes.csv"


@pytest.fixture(scope="module")
def votes():
    return GenAIBench(str(FILE))


def line(table, name):
    return next(row for row in table.rows if row.name == name)


def test_stored_answers_reach_the_published_accuracies(votes):
    (table,) = votes.tables(ItemScores({}), Options())
    known = {
        "gpt4o": 53.54,
        "gemini-1.5-pro": 55.93,
        "idefics2": 27.31,
        "blip2": 26.01,
        "llavanext": 25.35,
        "minicpm-V-2.5": 25.24,
        "qwenVL": 14.91,
        "mantis-8b-idefics2": 0.0,
    }
    found = {}
    for judge in known:
        row = line(table, judge)
        assert row.kind == "published"
        found[judge] = 100 * row.cells["4 answers"].value
    assert found == pytest.approx(known, abs=0.01)
    assert line(table, "gpt4o").cells["2 answers"].n == 503
    assert line(table, "always both bad").cells["4 answers"].value == 392 / 919
    assert line(table, "random score").cells["2 answers"].value == 0.5


def test_a_scorer_that_knows_the_votes_is_right(votes):
    """Votes as scores: 9 and 9 for two good edits, 0 and 0 for two bad ones."""
    values = {}
    given = {"a": (9.0, 0.0), "b": (0.0, 9.0), "tie": (9.0, 9.0), "both bad": (0.0, 0.0)}
    for pair in votes.pairs:
        values[pair.left], values[pair.right] = given[pair.vote]
    scores = ItemScores({"people": values, "constant": dict.fromkeys(values, 1.0)})
    for compat in (None, "adiee"):
        (table,) = votes.tables(scores, Options(compat))
        people = line(table, "people").cells
        assert [people[name].value for name in ("4 answers", "3 answers", "2 answers")] == [1, 1, 1]
        assert line(table, "constant").cells["2 answers"].value == 0
    assert "constant: scores of the two edits of every pair are equal" in table.notes


def test_stored_decisions_that_scores_do_not_give_are_named(votes, tmp_path, capsys):
    """Two of three stored decisions follow from their scores by ADIEE's rule."""
    file = tmp_path / "scores.csv"
    rows = ["id,scorer,score,decision", "0-left,judge,9,", "0-right,judge,2,", "0,judge,,left"]
    rows += ["1-left,judge,1,", "1-right,judge,2,", "1,judge,,both bad"]
    rows += ["2-left,judge,1,", "2-right,judge,2,", "2,judge,,b"]
    file.write_text("\n".join(rows))
    words = ["--from-scores", str(file), "--compat", "adiee", "--out", str(tmp_path / "out")]
    assert main(["bench", "genai_bench", str(FILE), *words]) == 0
    said = capsys.readouterr().out
    assert "judge: 1 of 3 stored decisions do not follow from its scores: 2 (b; by rule both bad)" in said
    assert "judge: 1832 of 1838 items left out" in said
    table = json.loads((tmp_path / "out" / "bench.json").read_text())["tables"][0]
    rows = {row["name"]: row for row in table["rows"]}
    assert rows["judge"]["cells"]["4 answers"]["n"] == 3
    assert rows["judge: stored decisions"]["source"] == "file of scores"


def test_stored_decisions_may_follow_by_either_published_rule(votes):
    """Of two bad edits, of nearly equal ones and of equal ones; the last is the worse edit by both rules."""
    given = {"0": (1, 2, "both bad"), "1": (6, 7, "b"), "2": (9, 9, "tie"), "3": (9, 2, "b")}
    values = {}
    for name, (left, right, _) in given.items():
        values |= {f"{name}-left": float(left), f"{name}-right": float(right)}
    decisions = {"judge": {name: decision for name, (_, _, decision) in given.items()}}
    (table,) = votes.tables(ItemScores({"judge": values}, decisions=decisions), Options(resamples=5))
    (note,) = [one for one in table.notes if "stored decisions" in one]
    assert note.startswith("judge: 1 of 4 stored decisions do not follow from its scores: 3 (b; by rule a); ")
    assert note.endswith("by the rule: the higher score wins, else a tie, or ADIEE's for scores from 0 to 10")
    beyond = {name: 11 * value for name, value in values.items()}
    (table,) = votes.tables(ItemScores({"judge": beyond}, decisions=decisions), Options(resamples=5))
    (note,) = [one for one in table.notes if "stored decisions" in one]
    assert "0 (both bad; by rule b), 3 (b; by rule a); by the rule: the higher score wins, else a tie" in note
    (table,) = votes.tables(ItemScores({}, decisions=decisions), Options(resamples=5))
    assert "judge: decisions without scores cannot be checked" in table.notes


@pytest.fixture
def hub_copy(tmp_path):
    """Twelve comparisons in the hub's columns: row 4 has no vote, row 6 an image that cannot be read, rows 8
    and 9 show the same two edits with unlike votes.
    """
    rows = []
    for i in range(12):
        number = 8 if i == 9 else i
        row = {
            "source_prompt": f"photograph {number // 2}",
            "target_prompt": "darker",
            "instruct_prompt": "make it darker",
            "source_image": stored(photograph(number // 2)),
            "left_model": "A",
            "left_output_image": stored(photograph(number // 2, 0.9)),
            "right_model": "B" if number % 2 else "C",
            "right_output_image": stored(photograph(number // 2, 0.3 if number % 2 else 0.5)),
            "vote_type": list(VOTES)[i % 4],
        }
        rows.append(row)
    rows[4]["vote_type"] = "neither"
    rows[6]["right_output_image"] = stored(BROKEN)
    write_table(tmp_path / "data" / "test_v1-00000.parquet", rows)
    return tmp_path / "data"


def test_the_hub_s_layout_is_scored_once(hub_copy, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["bench", "genai_bench", str(hub_copy), "--out", str(out), "--scorer"]
    assert main([*words, "psnr"]) == 0
    said = capsys.readouterr().out
    assert "row 5 is left out: vote_type: expected one of leftvote" in said
    assert "psnr: 2 of 22 items left out: 6-left: right_output_image: the bytes are not an image" in said
    assert "1 pairs repeat another; 1 have unlike votes; all count" in said
    table = json.loads((out / "bench.json").read_text())["tables"][0]
    rows = {row["name"]: row["cells"] for row in table["rows"]}
    assert rows["psnr"]["2 answers"] == rows["l1"]["2 answers"]  # both prefer what is left as it was
    assert rows["psnr"]["4 answers"]["n"] == 10

    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    files = {name: (out / name).read_bytes() for name in ("bench.json", "bench.csv", "bench.html")}
    assert main([*words, "psnr"]) == 0
    assert {name: (out / name).read_bytes() for name in files} == files
    assert main([*words, "psnr", "l2"]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(list(out.rglob("*.parquet"))) == 3


def test_votes_alone_cannot_be_scored(tmp_path, capsys):
    words = ["--scorer", "l1", "--out", str(tmp_path / "out")]
    assert main(["bench", "genai_bench", str(FILE), *words]) == 2
    assert "these votes come without images" in capsys.readouterr().err
    assert main(["bench", "genai_bench", str(FILE), "--compat", "bpm", *words]) == 2
    assert "--compat: expected one of adiee; got 'bpm'" in capsys.readouterr().err
