"""Results in an object store, through fsspec: the same files as in a folder."""

import fsspec
import pyarrow.parquet as pq
import pytest

from rewardedit.cli import main
from rewardedit.files import create, rename, replaced, to_path
from rewardedit.stages.stage import stage


@pytest.fixture
def store():
    """fsspec's store in memory."""
    found = fsspec.filesystem("memory")
    yield found
    found.store.clear()
    found.pseudo_dirs[:] = [""]


def test_a_data_set_is_labelled_into_a_store_as_into_a_folder(store, tmp_path):
    words = [
        "relabel",
        "data.name=shapes",
        "data.limit=40",
        "relabel.scorer=l1",
        "relabel.batch_size=1",
        "--out",
    ]
    assert main([*words, str(tmp_path / "out")]) == 0
    assert main([*words, "memory://bucket/out"]) == 0
    names = sorted(path.name for path in (tmp_path / "out" / "relabelled").iterdir())
    found = {path.rsplit("/", 1)[1]: path for path in store.ls("/bucket/out/relabelled", detail=False)}
    assert sorted(found) == names
    for name, path in found.items():
        assert store.cat_file(path) == (tmp_path / "out" / "relabelled" / name).read_bytes()
    store.rm(found["part-00001.parquet"])  # the whole stage stands in made_of.json: it is not made again
    assert main([*words, "memory://bucket/out"]) == 2


def test_scores_are_written_into_a_store(store, tmp_path):
    words = ["score", "name=shapes", "limit=3", "--scorer", "l1", "--out"]
    assert main([*words, str(tmp_path / "scores.parquet")]) == 0
    assert main([*words, "memory://bucket/scores.parquet"]) == 0
    assert store.ls("/bucket", detail=False) == ["/bucket/scores.parquet"]
    with store.open("/bucket/scores.parquet") as file:
        assert pq.read_table(file).equals(pq.read_table(tmp_path / "scores.parquet"))


def test_what_is_half_written_never_stands_in_a_store(store):
    path = to_path("memory://bucket/a.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    create(path, "before")

    def interrupted() -> None:
        with replaced(path) as aside:
            aside.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "before"
    with pytest.raises(FileExistsError):
        create(path, "again")
    rename(path, "b.txt")
    assert store.ls("/bucket", detail=False) == ["/bucket/b.txt"]


def test_shards_that_are_folders_are_refused_by_a_store(store):
    with pytest.raises(ValueError, match="an object store holds only files"):
        stage(to_path("memory://bucket/s"), {}, lambda number, path: path.mkdir(), 1)


def test_what_other_processes_write_is_seen():
    """Stores that remember what a folder held are told not to."""
    assert to_path("memory://bucket/out").storage_options["use_listings_cache"] is False


def test_a_store_whose_package_is_missing_is_told(capsys):
    assert main(["score", "name=shapes", "limit=2", "--scorer", "l1", "--out", "s3://bucket/x.parquet"]) == 2
    assert "s3fs" in capsys.readouterr().err
