"""Pairs of edits from tables, data sets of pairs, and scored edits."""

import json
from dataclasses import replace

import pytest

from rewardedit.batch import EditPair, EditSample
from rewardedit.data import DataConfig, held_out_rows, open_rows
from rewardedit.data.bad_rows import ValidatedRows
from rewardedit.data.preferences import PairRows, instructions_of, preferences, refuse_candidates
from tests.data.layouts import NOT_AN_IMAGE, photograph, same, write_layout, write_parquet
from tests.data.test_adapters import write_tar
from tests.data.test_pairs import DATA, data_row

IMAGES = ("chelsea", "coffee", "rocket")


def write_table(folder, rows):
    """A table whose images are files beside it."""
    for name in IMAGES:
        photograph(name).save(folder / f"{name}.png")
    file = folder / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return DataConfig("table", str(file), size=32)


def pair_row(**changes):
    row = {"source": "chelsea.png", "instruction": "make it coffee"}
    return {**row, "winner": "coffee.png", "loser": "rocket.png", **changes}


def scored_row(edited, score, **changes):
    row = {"source": "chelsea.png", "instruction": "make it coffee"}
    return {**row, "edited": f"{edited}.png", "score": score, **changes}


@pytest.mark.parametrize(
    ("winner", "loser"), [("winner", "loser"), ("chosen_image", "rejected_image"), ("edited", "loser")]
)
def test_a_table_holds_preferred_and_rejected_edits(winner, loser, tmp_path):
    row = {"source": "chelsea.png", "instruction": "make it coffee"}
    rows = open_rows(write_table(tmp_path, [{**row, winner: "coffee.png", loser: "rocket.png"}]))
    (pair,) = preferences(rows).pairs
    assert same(pair.left.edited, "coffee")
    assert same(pair.right.edited, "rocket")
    assert same(pair.right.source, "chelsea")
    assert same(rows[0].edited, "coffee")


def test_a_label_called_winner_is_no_image(tmp_path):
    rows = [{"source": "chelsea.png", "instruction": "x", "edited": "coffee.png", "winner": "left"}]
    assert same(open_rows(write_table(tmp_path, rows))[0].edited, "coffee")


def test_malformed_pairs_are_told_by_their_rows(tmp_path):
    rows = [pair_row(), pair_row(loser=None), pair_row(loser="gone.png"), pair_row(winner=None)]
    pairs = preferences(open_rows(write_table(tmp_path, [*rows, pair_row(loser="coffee.png")]))).pairs
    assert pairs[0].preferred == "left"
    with pytest.raises(ValueError, match="row 2 has no loser, the rejected edit"):
        pairs[1]
    with pytest.raises(ValueError, match=r"row 3: loser gone\.png is not there"):
        pairs[2]
    with pytest.raises(ValueError, match="row 4 has neither edited nor target"):
        pairs[3]
    with pytest.raises(ValueError, match="expected two different edits; both are the same image"):
        PairRows(pairs)[4]


def test_pairs_of_two_sources_and_ties_are_refused():
    one = EditSample("a", photograph("chelsea"), "x", edited=photograph("coffee"))
    other = EditSample("b", photograph("coffee"), "x", edited=photograph("rocket"))
    with pytest.raises(ValueError, match="pair p: expected two edits of one source image; got two sources"):
        PairRows([EditPair("p", one, other, "left")])[0]
    alike = EditSample("b", photograph("chelsea"), "x", edited=photograph("rocket"))
    with pytest.raises(ValueError, match="pair p: expected one of the edits to be preferred; got a tie"):
        PairRows([EditPair("p", one, alike, "tie")])[0]
    row = PairRows([EditPair("p", alike, one, "right")])[0]
    assert same(row.edited, "coffee")
    assert same(row.target, "rocket")


def test_the_best_and_the_worst_of_scored_edits_are_a_pair(tmp_path):
    rows = [
        scored_row("rocket", 0.2),
        scored_row("coffee", 3),
        scored_row("chelsea", 0.5),
        scored_row("coffee", 1.0, instruction="another"),
        scored_row("rocket", 9.0, source="coffee.png"),  # another source: never in the first one's group
        scored_row("rocket", None, source="coffee.png"),
        scored_row("rocket", 2.0, source="rocket.png"),
        scored_row("coffee", 2.0, source="rocket.png"),
    ]
    found = preferences(open_rows(write_table(tmp_path, rows)))
    (pair,) = found.pairs
    assert same(pair.left.edited, "coffee")
    assert same(pair.right.edited, "rocket")
    assert same(pair.right.source, "chelsea")
    assert str(found) == (
        "pairs: 1 of 4 sources with their instructions; left out: 1 without spread, 2 with fewer than two "
        "scored edits"
    )


def test_the_least_gap_is_enough_and_equal_scores_are_not(tmp_path):
    rows = [scored_row("rocket", 0.5), scored_row("coffee", 3)]
    rows += [scored_row(edited, 1.0, source="coffee.png") for edited in ("coffee", "rocket")]
    data = open_rows(write_table(tmp_path, rows))
    assert str(preferences(data, min_gap=2.5)) == str(preferences(data))
    assert len(preferences(data).pairs) == 1
    with pytest.raises(ValueError, match=r"two edits whose scores differ by at least 2\.6"):
        preferences(data, min_gap=2.6)
    with pytest.raises(ValueError, match=r"two edits whose scores differ \(1 without spread"):
        preferences(data, [1.0, 1.0, float("nan"), 1.0])


def test_settings_that_pairs_would_leave_without_effect(tmp_path):
    pairs = open_rows(write_table(tmp_path, [pair_row()]))
    with pytest.raises(ValueError, match=r"preference\.min_gap: has no effect on pairs that the data holds"):
        preferences(pairs, min_gap=0.5)
    for rows in (pairs, open_rows(write_table(tmp_path, [scored_row("coffee", 1)]))):
        with pytest.raises(ValueError, match="candidates: the data has pairs or scores of its own"):
            refuse_candidates(rows)
    refuse_candidates(open_rows(write_table(tmp_path, [scored_row("coffee", None)])))


def test_two_columns_of_preferred_edits_are_refused(tmp_path):
    data = write_table(tmp_path, [pair_row(edited="chelsea.png")])
    with pytest.raises(ValueError, match=r"beside loser; got edited and winner; .* columns=\{edited: winner"):
        open_rows(data)
    for name, expected in (("winner", "coffee"), ("edited", "chelsea")):
        (pair,) = preferences(open_rows(replace(data, columns={"edited": name}))).pairs
        assert same(pair.left.edited, expected)
        assert same(pair.right.edited, "rocket")


def test_instructions_are_read_without_images(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    changes: tuple = ({}, {"original_image": NOT_AN_IMAGE}, {"edit_prompt": None})
    folder = write_layout(tmp_path / "table", "instruct_pix2pix", changes)
    data = DataConfig("instruct_pix2pix", str(folder), size=16)
    assert instructions_of(open_rows(data)) == ["make it coffee", "make it coffee", None]

    folder = tmp_path / "tar"
    folder.mkdir()
    files = {"source.png": b"no image", "json": {"instruction": "x"}}
    write_tar(folder / "train-0.tar", {"a": files, "b": {**files, "json": {"instruction": 5}}, "c": files})
    assert instructions_of(open_rows(DataConfig("webdataset", str(folder)))) == ["x", None, "x"]


def test_an_unreadable_row_has_no_instruction():
    edits = [EditSample(str(i), photograph("chelsea"), "x", edited=photograph("coffee")) for i in range(2)]
    assert instructions_of(ValidatedRows(edits, refuse_the_first)) == [None, "x"]


def refuse_the_first(sample):
    if sample.id == "0":
        raise ValueError("no image")


def test_rows_without_preferences_or_scores_are_refused(tmp_path):
    data = write_table(tmp_path, [scored_row("coffee", None), scored_row("rocket", None)])
    with pytest.raises(ValueError, match=r"data: expected preferences or scores; .* columns source"):
        preferences(open_rows(data))
    (pair,) = preferences(open_rows(data), [0.0, 1.0]).pairs
    assert same(pair.left.edited, "rocket")
    data = write_table(tmp_path, [scored_row("coffee", "good"), scored_row("rocket", 1)])
    with pytest.raises(ValueError, match="row 1: score: expected a number; got good"):
        preferences(open_rows(data))


def test_preferred_edits_of_editreward_are_rows(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    votes = ("leftvote", "tie", "rightvote", "leftvote")
    sources = ("chelsea", "chelsea", "coffee", "rocket")
    rows = []
    for number, (vote, source) in enumerate(zip(votes, sources, strict=True)):
        rows.append(data_row(unique_key=f"k-{number}", vote_type=vote, source_img=source))
    write_parquet(tmp_path / "train-0.parquet", rows, DATA)
    data = DataConfig("editreward", str(tmp_path), size=32)
    pairs = preferences(open_rows(data)).pairs
    assert [pair.id for pair in pairs] == ["k-0", "k-2", "k-3"]
    assert same(pairs[1].left.edited, "rocket")
    assert same(pairs[1].right.edited, "coffee")
    held_out = DataConfig("editreward", str(tmp_path), size=32, holdout_sources=2)
    kept, gone = open_rows(held_out), held_out_rows(held_out)
    assert (len(kept), len(gone)) == (1, 2)
    assert {preferences(kept).pairs[0].id, *(row.id.rpartition("-")[0] for row in gone)} == {
        "k-0",
        "k-2",
        "k-3",
    }
