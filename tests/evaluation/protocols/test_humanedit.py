import numpy as np
import pytest

from rewardedit.cli import main
from rewardedit.data.humanedit import HumanEdit
from rewardedit.evaluation.protocols.humanedit import HumanEditRetrieval, ranks_of
from rewardedit.evaluation.protocols.protocol import ItemScores, Options
from tests.evaluation.protocols.files import BROKEN, cells_in, photograph, stored, write_table

N = 6


@pytest.fixture
def file(tmp_path):
    """Eight rows in the hub's columns: one has an image that cannot be read, one an instruction that came
    before, one none.
    """
    rows = []
    for i in range(8):
        row = dict.fromkeys(HumanEdit.columns, "")
        row |= {
            "IMAGE_ID": f"id{i}",
            "EDITING_INSTRUCTION": f"make it darker by {i}",
            "EDITING_TYPE": "Replace",
        }
        row |= {name: stored(photograph(i, brightness)) for name, brightness in ARE.items()}
        rows.append(row)
    rows[2]["OUTPUT_IMG"] = stored(BROKEN)
    rows[5]["EDITING_INSTRUCTION"] = rows[0]["EDITING_INSTRUCTION"]
    rows[6]["EDITING_INSTRUCTION"] = ""
    return write_table(tmp_path / "train-00000.parquet", rows)


ARE = {"INPUT_IMG": 1.0, "MASK_IMG": 1.0, "OUTPUT_IMG": 0.6}


def test_all_instructions_are_scored_end_to_end(file, tmp_path, capsys):
    """A scorer that does not read the instruction gives all the same score, which ranks last."""
    out = tmp_path / "out"
    words = ["bench", "humanedit", str(file), "--scorer", "psnr", "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "2 rows left out: without an instruction, or with one that came before" in said
    assert "psnr: 6 of 36 items left out: id2|id0" in said
    rows = cells_in(out)
    assert rows["psnr"]["mean rank"]["value"] == N
    assert rows["psnr"]["mean rank"]["n"] == N - 1
    assert rows["psnr"]["recall@5"]["value"] == 0
    assert rows["random"]["mean rank"]["value"] == (N + 1) / 2
    assert rows["ViFi-CLIP"]["median rank"]["value"] == 29.6
    assert main([*words, "--limit", "3"]) == 2  # other items than those that are there
    assert main([*words[:-1], str(tmp_path / "few"), "--limit", "3"]) == 0
    assert "Rank of an edit's own instruction among 3" in capsys.readouterr().out


def test_ranks_follow_from_scores_by_hand(file):
    """Own scores stand on the diagonal: ranks 1, 3 (one better, one equal), 3 (no score)."""
    values = np.array([[3.0, 2, 1], [2, 2, 5], [1, 1, np.nan]])
    known = np.ones((3, 3), dtype=bool)
    assert ranks_of(values, known).tolist() == [1, 3, 3]
    known[0, 1] = False
    assert np.isnan(ranks_of(values, known)[0])

    benchmark = HumanEditRetrieval(str(file))
    scores = {}
    for name in benchmark.ids:
        edit, _, text = name.partition("|")
        scores[name] = float(edit == text)
    (table,) = benchmark.tables(ItemScores({"perfect": scores}), Options())
    cells = table.rows[0].cells
    assert (cells["mean rank"].value, cells["median rank"].value, cells["recall@1"].value) == (1, 1, 1)


def test_rows_carry_no_caption_of_their_edit(file):
    rows = HumanEditRetrieval(str(file)).rows()
    sample = rows[N + 2]
    assert rows.id_of(N + 2) == sample.id == "id1|id2"
    assert sample.instruction == "make it darker by 2"
    assert sample.source_caption is None
    assert sample.target_caption is None
