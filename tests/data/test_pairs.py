import dataclasses
import math

import pytest
from datasets import Dataset, Features, List, Value
from datasets import Image as ImageFeature

from rewardedit.batch import EditPair, EditSample
from rewardedit.data import PairsConfig, open_pairs, stream_pairs
from rewardedit.data.reading import Unreadable
from tests.data.layouts import photograph, same, write_parquet

DATA = ("source_img", "left_output_image", "right_output_image")
BENCH = ("source_image", "candidate_1", "candidate_2")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def data_row(**changes):
    """A row of EditReward-Data."""
    return {
        "key": "k",
        "unique_key": "k-0",
        "pair_index": 0,
        "instruction": "make it coffee",
        "source_img": "chelsea",
        "left_output_image": "coffee",
        "right_output_image": "rocket",
        "left_model": "a",
        "right_model": "b",
        "left_overall_score": 8.0,
        "right_overall_score": 3.5,
        "vote_type": "leftvote",
        **changes,
    }


def bench_row(**changes):
    """A row of EditReward's benchmark."""
    return {
        "id": "12_AvsB",
        "dataset": "3pair",
        "instruction": "make it coffee",
        "source_image": "chelsea",
        "candidate_1": "coffee",
        "candidate_2": "rocket",
        "ranking": "A>B",
        **changes,
    }


def write_editscore(folder, rows):
    """EditScore's benchmark: Arrow files with a list of two images a row."""
    features = Features(
        {
            "key": List(Value("string"), length=2),
            "instruction": Value("string"),
            "input_image": ImageFeature(),
            "output_images": List(ImageFeature()),
            "task_type": Value("string"),
            "dimension": Value("string"),
        }
    )
    Dataset.from_list(rows, features=features).save_to_disk(str(folder))


def editscore_row(**changes):
    return {
        "key": ["k1", "k2"],
        "instruction": "make it coffee",
        "input_image": photograph("chelsea"),
        "output_images": [photograph("coffee"), photograph("rocket")],
        "task_type": "subject-replace",
        "dimension": "consistency",
        **changes,
    }


def sample(name, **more):
    return EditSample(name, photograph("chelsea"), "make it coffee", **more)


def test_a_pair_has_two_edits_by_one_instruction():
    good = sample("a", edited=photograph("coffee"))
    with pytest.raises(ValueError, match="pair 1: expected two edited images; one is missing"):
        EditPair("1", good, sample("b", target=photograph("rocket")), "left")
    with pytest.raises(ValueError, match="pair 1: expected one instruction; got 'make it coffee' and 'x'"):
        EditPair("1", good, dataclasses.replace(good, instruction="x"), "left")


@pytest.mark.parametrize(
    ("vote", "preferred"),
    [
        ("leftvote", "left"),
        ("rightvote", "right"),
        ("tie", "tie"),
        ("tievote", "tie"),
        ("bothbad_vote", "tie"),
    ],
)
def test_votes_of_editreward_are_preferences(vote, preferred, tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [data_row(vote_type=vote)], DATA)
    (pair,) = open_pairs(PairsConfig("editreward", str(tmp_path)))
    assert (pair.id, pair.preferred, pair.aspect) == ("k-0", preferred, None)
    assert same(pair.left.source, "chelsea")
    assert same(pair.right.source, "chelsea")
    assert same(pair.left.edited, "coffee")
    assert same(pair.right.edited, "rocket")
    assert pair.left.instruction == pair.right.instruction == "make it coffee"


def test_overall_scores_of_editreward_are_labels_from_0_to_10(tmp_path):
    rows = [data_row(), data_row(left_overall_score=2.0, right_overall_score=math.nan)]
    write_parquet(tmp_path / "train-0.parquet", rows, DATA)
    first, second = open_pairs(PairsConfig("editreward", str(tmp_path)))
    assert (first.left.label, first.right.label) == (10, 2.5)
    assert (second.left.label, second.right.label) == (0, None)


def test_bad_pairs_of_editreward_are_told_and_the_others_are_read(tmp_path):
    bad = {
        1: ({"vote_type": "left"}, "vote_type: expected one of leftvote, rightvote, tie"),
        2: ({"source_img": None}, "source_img: the image is missing"),
        3: ({"right_output_image": None}, "right_output_image: the image is missing"),
        4: ({"instruction": ""}, "instruction: the instruction is missing or empty"),
        5: ({"left_overall_score": 9.0}, "overall score: expected 2 to 8; got 9"),
    }
    rows = [data_row(), *(data_row(**change) for change, _ in bad.values()), data_row(unique_key="k-1")]
    write_parquet(tmp_path / "train-0.parquet", rows, DATA)
    found = list(stream_pairs(PairsConfig("editreward", str(tmp_path))))
    told = {int(pair.id): pair.reason for pair in found if isinstance(pair, Unreadable)}
    assert told.keys() == bad.keys()
    for number, (_, reason) in bad.items():
        assert told[number].startswith(reason)
    assert [pair.id for pair in found if isinstance(pair, EditPair)] == ["k-0", "k-1"]
    pairs = open_pairs(PairsConfig("editreward", str(tmp_path)))
    with pytest.raises(ValueError, match="source_img: the image is missing"):
        pairs[2]


@pytest.mark.parametrize(
    ("ranking", "preferred"),
    [
        ("A>B", "left"),
        ("B>A", "right"),
        ("A=B", "tie"),
        ("A>C", "left"),
        ("D>B", "right"),
        ("C>D", "left"),
    ],
)
def test_rankings_of_editreward_s_benchmark_are_preferences(ranking, preferred, tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [bench_row(ranking=ranking)], BENCH)
    (pair,) = open_pairs(PairsConfig("editreward_bench", str(tmp_path)))
    assert pair.preferred == preferred
    assert same(pair.left.edited, "coffee")


@pytest.mark.parametrize("ranking", ["A>A", "A<B", "left", "A>E", ""])
def test_another_ranking_is_refused(ranking, tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [bench_row(ranking=ranking)], BENCH)
    with pytest.raises(ValueError, match='ranking: expected one such as "A>B"'):
        open_pairs(PairsConfig("editreward_bench", str(tmp_path)))[0]


def test_the_first_edit_of_editscore_s_benchmark_is_the_better_one(tmp_path):
    rows = [editscore_row(), editscore_row(dimension="overall", key=["k2", "k1"])]
    write_editscore(tmp_path / "bench", rows)
    pairs = open_pairs(PairsConfig("editscore_bench", str(tmp_path / "bench")))
    assert [pair.id for pair in pairs] == ["k1-k2-consistency", "k2-k1-overall"]
    assert [(pair.preferred, pair.aspect) for pair in pairs] == [("left", "consistency"), ("left", "overall")]
    assert same(pairs[0].left.edited, "coffee")
    assert same(pairs[0].right.edited, "rocket")
    assert same(pairs[0].left.source, "chelsea")
    assert pairs[0].right.edit_type == "subject-replace"


def test_bad_pairs_of_editscore_are_told_and_the_others_are_read(tmp_path):
    rows = [
        editscore_row(output_images=[photograph("coffee")]),
        editscore_row(output_images=[photograph("coffee"), None]),
        editscore_row(input_image=None),
        editscore_row(instruction=None),
        editscore_row(),
    ]
    write_editscore(tmp_path / "bench", rows)
    *bad, good = stream_pairs(PairsConfig("editscore_bench", str(tmp_path / "bench")))
    assert [pair.reason for pair in bad] == [
        "output_images: expected two; got 1",
        "output_images: an image is missing",
        "input_image: the image is missing",
        "instruction: the instruction is missing or empty",
    ]
    assert same(good.right.edited, "rocket")


def test_streamed_pairs_are_the_pairs(tmp_path):
    rows = [bench_row(id=str(i), ranking="B>A" if i % 2 else "A>B") for i in range(5)]
    write_parquet(tmp_path / "train-0.parquet", rows, BENCH)
    config = PairsConfig("editreward_bench", str(tmp_path), offset=1, limit=3)
    opened = [(pair.id, pair.preferred) for pair in open_pairs(config)]
    assert opened == [("1", "right"), ("2", "left"), ("3", "right")]
    assert [(pair.id, pair.preferred) for pair in stream_pairs(config)] == opened


def test_pairs_beyond_the_last_and_no_pairs_are_refused(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [bench_row()], BENCH)
    with pytest.raises(ValueError, match="offset: expected a pair below 1"):
        open_pairs(PairsConfig("editreward_bench", str(tmp_path), offset=1))
    with pytest.raises(ValueError, match="limit, offset: expected at least 1 and at least 0; got 0, 0"):
        PairsConfig("editreward_bench", str(tmp_path), limit=0)
    with pytest.raises(ValueError, match="lacks the columns"):
        open_pairs(PairsConfig("editreward", str(tmp_path)))
