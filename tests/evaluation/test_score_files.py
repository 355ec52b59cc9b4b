"""Scores that were computed elsewhere."""

import json

import pytest

from rewardedit.data.table import write_records
from rewardedit.evaluation.score_files import read_scores

VALUES = {"judge": {"a": 1.0, "b": None, "c": 0.25}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.json", json.dumps(VALUES)),
        ("x.csv", "id,judge\na,1\nb,\nc,0.25\n"),
        ("x.csv", "id,scorer,score\na,judge,1\nb,judge,\nc,judge,0.25\n"),
        ("x.jsonl", '{"id": "a", "judge": 1}\n{"id": "b", "judge": NaN}\n{"id": "c", "judge": 0.25}\n'),
        ("x.json", json.dumps([{"id": name, "judge": value} for name, value in VALUES["judge"].items()])),
    ],
)
def test_all_layouts_give_the_same_scores(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_scores(tmp_path / name).values == VALUES


def test_what_rewardedit_score_writes_is_read(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from rewardedit.scoring import write_records as write_scores

    found = []
    for name, value in VALUES["judge"].items():
        reason = None if value is not None else "no object"
        record = {"id": name, "instruction": "x", "scorer": "judge", "score": value}
        found.append({**record, "valid": value is not None, "reason": reason, "parts": {"p": 1.0}})
    write_scores(found, tmp_path / "x.parquet")
    scores = read_scores(tmp_path / "x.parquet")
    assert scores.values == VALUES
    assert scores.reasons == {"judge": {"b": "no object"}}
    pq.write_table(pa.table({"id": ["a", "b", "c"], "judge": [1.0, None, 0.25]}), tmp_path / "y.parquet")
    assert read_scores(tmp_path / "y.parquet").values == VALUES


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "id,judge\na,1\na,2\n", "expected each id once for a scorer; a comes twice"),
        ("x.csv", "id,judge\na,high\n", "a: expected a number; got high"),
        ("x.json", '{"judge": {"a": true}}', "a: expected a number; got True"),
        ("x.json", '{"judge": 3}', "judge: expected scores by id"),
        ("x.json", "[]", "expected rows with ids and scores"),
        ("x.csv", "name,judge\na,1\n", "lacks the column id; it has name, judge"),
        ("x.csv", "id,scorer,score,decision\n1,judge,,maybe\n", "decision: expected one of a, b, tie"),
        ("x.txt", "", "expected a file that ends in .json"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_scores(tmp_path / name)
    write_records(tmp_path / "z.jsonl", [{"id": 1, "judge": 2}])
    assert read_scores(tmp_path / "z.jsonl").values == {"judge": {"1": 2.0}}
