"""Parts of labelled rows: by source image and by the rule that gave the label."""

import pyarrow.parquet as pq
import pytest
import torch

from rewardedit.data import DataConfig, open_rows, source_ids
from rewardedit.data.labelled import LabelledEdit, encode_png, write_labelled


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Nine sources with three rows each, by three rules."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    image = encode_png(torch.zeros(3, 8, 8))
    rows = [
        LabelledEdit(f"{i}/{rule}", image, image, "do it", 5.0, rule, source_id=f"source {i}")
        for rule in ("target", "source", "turns")
        for i in range(9)
    ]
    (tmp_path / "rows").mkdir()
    write_labelled(rows, tmp_path / "rows" / "train-00000.parquet")
    return str(tmp_path / "rows")


def test_a_share_is_of_the_sources_with_all_their_rows(folder):
    rows = open_rows(DataConfig("labelled", folder, fraction=1 / 3))
    sources = source_ids(rows)
    assert len(rows) == 9
    assert {sources.count(name) for name in sources} == {3}
    assert len(set(sources)) == 3
    larger = source_ids(open_rows(DataConfig("labelled", folder, fraction=2 / 3)))
    assert set(sources) < set(larger)
    other = source_ids(open_rows(DataConfig("labelled", folder, fraction=1 / 3, seed=1)))
    assert set(other) != set(sources)


def test_rows_of_some_rules_alone(folder):
    rows = open_rows(DataConfig("labelled", folder, edit_types=("target", "turns"), fraction=1 / 3))
    assert sorted(row.id.split("/")[1] for row in rows) == 3 * ["target"] + 3 * ["turns"]
    with pytest.raises(ValueError, match="has no row of nope; it has source, target, turns"):
        open_rows(DataConfig("labelled", folder, edit_types=("nope",)))


@pytest.mark.parametrize(
    "wrong", [{"fraction": 0.0}, {"fraction": 1.5}, {"name": "shapes", "path": "", "fraction": 0.5}]
)
def test_a_share_that_cannot_be_taken_is_refused(wrong):
    with pytest.raises(ValueError, match="fraction: "):
        DataConfig(**{"name": "table", "path": "x", **wrong})


def test_an_image_that_rows_share_is_stored_once(tmp_path):
    image, other = (encode_png(torch.rand(3, 64, 64)) for _ in range(2))
    rows = [LabelledEdit(str(i), image, other, "do it", 5.0, "target", source_id="source") for i in range(40)]
    path = tmp_path / "train-00000.parquet"
    write_labelled(rows, path)
    assert path.stat().st_size < 2 * (len(image) + len(other))
    assert {row["source"] for row in pq.read_table(path).to_pylist()} == {image}
