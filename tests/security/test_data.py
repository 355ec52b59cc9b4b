"""Data sets that a stranger made: nothing of theirs runs, hangs, fills the memory, or reads a file outside of
its folder. Each canary is a bad row with a reason, and the rows beside it are read.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardedit.data import DataConfig, open_rows, read_batches, source_ids
from rewardedit.data.stream import stream_rows
from tests.data.layouts import photograph

INSTRUCTION = "make it night"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """What 🤗 datasets keeps of the files lies beside nothing that is tested."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


# By name, what plants a canary beside a data set's folder, and gives the name that a row calls it by.
PATHS: dict[str, Callable[[Path], str]] = {
    "absolute": lambda folder: str(folder.parent / "secret.png"),
    "parents": lambda folder: "../secret.png",
    "parents within": lambda folder: "inner/../../secret.png",
    "link": lambda folder: linked(folder, "photo.png", folder.parent / "secret.png"),
    "folder that is a link": lambda folder: f"{linked(folder, 'photos', folder.parent)}/secret.png",
    "pipe": lambda folder: pipe(folder, "pipe.png"),
    "endless": lambda folder: "/dev/zero",
    "endless by link": lambda folder: linked(folder, "zero.png", Path("/dev/zero")),
    "folder": lambda folder: "inner",
    "round": lambda folder: linked(folder, "round.png", folder / "round.png"),
    "null": lambda folder: "a\0b.png",
    "long": lambda folder: "x" * 5000,
}


def linked(folder: Path, name: str, target: Path) -> str:
    (folder / name).symlink_to(target)
    return name


def pipe(folder: Path, name: str) -> str:
    os.mkfifo(folder / name)
    return name


def write_table(folder: Path, names: list[str]) -> DataConfig:
    rows = [{"source": name, "target": "good.png", "instruction": INSTRUCTION} for name in names]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataConfig("table", str(folder / "rows.jsonl"), size=16)


def write_parquet_table(folder: Path, names: list[str]) -> DataConfig:
    table = {"source": names, "target": ["good.png"] * len(names), "instruction": [INSTRUCTION] * len(names)}
    pq.write_table(pa.table(table), folder / "rows.parquet")
    return DataConfig("table", str(folder / "rows.parquet"), size=16)


def columns(names: list[str]) -> dict[str, list]:
    """Of InstructPix2Pix's data, with images that are named rather than stored."""
    image = {"bytes": None, "path": "good.png"}
    return {
        "original_prompt": ["a cat" for _ in names],
        "original_image": [{"bytes": None, "path": name} for name in names],
        "edit_prompt": [INSTRUCTION for _ in names],
        "edited_prompt": ["a cat at night" for _ in names],
        "edited_image": [image for _ in names],
    }


def write_hub_parquet(folder: Path, names: list[str]) -> DataConfig:
    pq.write_table(pa.table(columns(names)), folder / "train-00000.parquet")
    return DataConfig("instruct_pix2pix", str(folder), size=16)


def write_arrow(folder: Path, names: list[str]) -> DataConfig:
    table = pa.table(columns(names))
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return DataConfig("instruct_pix2pix", str(folder), size=16)


def write_image_folder(folder: Path, names: list[str]) -> DataConfig:
    rows = columns(names)
    records = [
        {k: v[i]["path"] if isinstance(v[i], dict) else v[i] for k, v in rows.items()}
        for i in range(len(names))
    ]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return DataConfig("instruct_pix2pix", str(folder), size=16)


def write_seed(folder: Path, names: list[str]) -> DataConfig:
    (folder / "annotations").mkdir()
    rows = [{"source_image": name, "target_image": "good.png", "instruction": INSTRUCTION} for name in names]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "annotations" / "split_0001.jsonl").write_text(text)
    return DataConfig("seed_data_edit", str(folder), size=16)


def write_dice(folder: Path, names: list[str]) -> DataConfig:
    rows = [{"original_path": name, "edited_path": "good.png", "gt_prompt": INSTRUCTION} for name in names]
    (folder / "differences.json").write_text(json.dumps(rows))
    return DataConfig("dice_d", str(folder), split="test", size=16)


KINDS = [
    write_table,
    write_parquet_table,
    write_hub_parquet,
    write_arrow,
    write_image_folder,
    write_seed,
    write_dice,
]


@pytest.mark.parametrize("write", KINDS)
def test_rows_name_regular_files_of_their_folder_alone(write, tmp_path):
    photograph("coffee").save(tmp_path / "secret.png")
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    photograph("chelsea").save(folder / "good.png")
    names = [plant(folder) for plant in PATHS.values()]
    data = write(folder, [*names, "good.png", str(folder / "good.png")])
    rows = open_rows(data)
    bad = {row: why for part in read_batches(rows, 16, "crop", 4) for row, why in part.unreadable.items()}
    assert sorted(bad) == list(range(len(names)))
    for name, why in zip(PATHS, bad.values(), strict=True):
        assert why.strip(), name
        if "secret" in why:
            assert "lies outside" in why
    assert len(source_ids(rows)) == len(names) + 2  # which reads files too
    assert sum(hasattr(row, "reason") for row in stream_rows(data)) == len(names)


def test_files_in_the_hub_s_cache_are_links_and_are_read(tmp_path):
    repository = tmp_path / "datasets--me--mine"
    (repository / "blobs").mkdir(parents=True)
    photograph("chelsea").save(repository / "blobs" / "f00", "PNG")
    photograph("coffee").save(tmp_path / "secret.png")
    folder = repository / "snapshots" / "abc" / "data"
    folder.mkdir(parents=True)
    linked(folder, "good.png", Path("../../../blobs/f00"))
    data = write_image_folder(folder, ["good.png", linked(folder, "bad.png", tmp_path / "secret.png")])
    rows = open_rows(data)
    bad = {row: why for part in read_batches(rows, 16, "crop", 4) for row, why in part.unreadable.items()}
    assert list(bad) == [1]
    assert "lies outside" in bad[1]


def test_a_table_names_files_elsewhere_where_the_user_says_so(tmp_path):
    photograph("coffee").save(tmp_path / "photo.png")
    folder = tmp_path / "tables"
    folder.mkdir()
    photograph("chelsea").save(folder / "good.png")
    data = write_table(folder, ["../photo.png", "good.png"])
    with pytest.raises(
        ValueError, match=r"row 1: source: .*photo\.png, which lies outside; data\.root=FOLDER"
    ):
        open_rows(data)[0]
    photograph("chelsea").save(tmp_path / "good.png")
    rows = open_rows(DataConfig("table", data.path, root=str(tmp_path)))
    with pytest.raises(ValueError, match=r"photo\.png is not there"):
        rows[0]
    write_table(folder, ["photo.png"])
    assert len(open_rows(DataConfig("table", data.path, root=str(tmp_path)))) == 1
    with pytest.raises(ValueError, match="root: expected a folder of images"):
        DataConfig("table", data.path, root=str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="root: webdataset rows name no image files"):
        DataConfig("webdataset", data.path, root=str(tmp_path))
