import dataclasses
import json
from typing import get_args, get_type_hints

import pyarrow.parquet as pq
import pytest

from rewardedit import cli
from rewardedit.batch import EditSample
from rewardedit.data import DataConfig, open_rows, source_ids, stream_rows
from rewardedit.data.adapters import ADAPTERS
from rewardedit.data.reading import Unreadable, read_batches
from rewardedit.data.sources import row_id
from rewardedit.data.stream import stream_files
from rewardedit.data.ultraedit import UltraEdit
from rewardedit.images import to_tensor
from rewardedit.scoring import read_records
from tests.data.layouts import (
    LAYOUTS,
    NOT_AN_IMAGE,
    difference,
    photograph,
    same,
    seed_record,
    write_dice,
    write_layout,
    write_parquet,
    write_seed,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Puts the cache of 🤗 datasets next to the files."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def config(name, path, **more) -> DataConfig:
    return DataConfig(name, str(path), split=LAYOUTS[name]["split"], size=16, **more)


def result(sample: EditSample):
    return sample.edited if sample.edited is not None else sample.target


def facts(sample: EditSample) -> dict:
    """Fields of a sample, with its images as numbers."""
    values = {f.name: getattr(sample, f.name) for f in dataclasses.fields(sample)}
    images = {name: to_tensor(values.pop(name), 3).tolist() for name in ("source",)}
    return values | images | {n: None if values[n] is None else values[n].size for n in ("target", "mask")}


def test_every_data_set_can_be_named_in_a_recipe():
    assert set(get_args(get_type_hints(DataConfig)["name"])) == {*ADAPTERS, "shapes", "table"}


@pytest.mark.parametrize(("name", "column"), [(name, c) for name in LAYOUTS for c in ADAPTERS[name].texts])
def test_a_number_in_the_place_of_a_text_is_refused(name, column, tmp_path):
    rows = open_rows(config(name, write_layout(tmp_path, name, ({column: 3},))))
    with pytest.raises(ValueError, match=f"{column}: expected text; got 3"):
        rows[0]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_row_of_a_data_set_s_own_layout_is_an_edit_of_photographs(name, tmp_path):
    (row,) = open_rows(config(name, write_layout(tmp_path, name)))
    assert same(row.source, "chelsea")
    assert same(result(row), "coffee")
    assert row.instruction == "make it coffee"
    expected = LAYOUTS[name]["expected"]
    assert {field: getattr(row, field) for field in expected} == expected


@pytest.mark.parametrize("name", LAYOUTS)
def test_bad_rows_are_told_with_their_reason_and_the_others_are_read(name, tmp_path):
    layout = LAYOUTS[name]
    source, edited = layout["pictures"][:2]
    bad = {
        1: ({source: None}, f"{source}: the image is missing"),
        2: ({edited: None}, f"{edited}: the image is missing"),
        3: ({edited: NOT_AN_IMAGE}, f"{edited}: the bytes are not an image that can be read"),
        4: ({layout["instruction"]: "  "}, f"{layout['instruction']}: the instruction is missing or empty"),
        5: ({layout["instruction"]: None}, f"{layout['instruction']}: the instruction is missing or empty"),
    }
    data = config(name, write_layout(tmp_path, name, ({}, *(change for change, _ in bad.values()), {})))

    told = {}
    read = []
    for part in read_batches(open_rows(data), data.size, data.resize, 4):
        told |= part.unreadable
        read += [] if part.batch is None else part.numbers
    assert read == [0, 6]
    assert told == {number: reason for number, (_, reason) in bad.items()}

    streamed = list(stream_rows(data))
    assert {number: row.reason for number, row in enumerate(streamed) if isinstance(row, Unreadable)} == told
    assert [type(row) for row in (streamed[0], streamed[-1])] == [EditSample, EditSample]


def test_a_row_that_cannot_be_read_has_its_own_id_also_where_it_is_streamed(tmp_path):
    changes = ({"idx": 11}, {"idx": 12, "instruction": ""}, {"idx": 13})
    data = config("emu_edit_generations", write_layout(tmp_path, "emu_edit_generations", changes))
    assert [row.id for row in stream_rows(data)] == ["11", "12", "13"]
    assert [row_id(open_rows(data), number) for number in range(3)] == ["11", "12", "13"]
    later = open_rows(dataclasses.replace(data, offset=1))
    assert row_id(later, 0) == "12"


def test_a_share_of_the_sources_is_not_streamed(tmp_path):
    data = config(
        "emu_edit_generations", write_layout(tmp_path, "emu_edit_generations", ({}, {})), fraction=0.5
    )
    with pytest.raises(ValueError, match="fraction: streamed rows cannot tell"):
        stream_rows(data)


@pytest.mark.parametrize("name", LAYOUTS)
def test_streamed_rows_are_the_rows(name, tmp_path):
    column = LAYOUTS[name]["instruction"]
    changes = tuple({column: f"edit number {i}"} for i in range(5))
    data = config(name, write_layout(tmp_path, name, changes), offset=1, limit=3)
    opened = [facts(row) for row in open_rows(data)]
    assert [facts(row) for row in stream_rows(data)] == opened
    assert [row["instruction"] for row in opened] == [f"edit number {i}" for i in (1, 2, 3)]


def test_a_streamed_file_that_is_damaged_further_on_is_named_a_damaged_file(tmp_path):
    changes = tuple({"idx": i} for i in range(8))
    data = config("emu_edit_generations", write_layout(tmp_path, "emu_edit_generations", changes))
    (file,) = tmp_path.rglob("*.parquet")
    pq.write_table(pq.read_table(file), file, row_group_size=4)
    group = pq.read_metadata(file).row_group(1)
    content = bytearray(file.read_bytes())
    for i in range(group.num_columns):
        start = group.column(i).data_page_offset
        content[start : start + 24] = bytes(24)
    file.write_bytes(content)
    with pytest.raises(ValueError, match="a file of the streamed table cannot be read to its end"):
        list(stream_rows(data))
    with pytest.raises(ValueError, match="a file of the streamed table cannot be read to its end"):
        stream_files(data).files[0].fetch()


def test_what_emu_edit_made_is_to_be_judged_and_no_target(tmp_path):
    changes = ({"idx": 1}, {"idx": 2, "task": "add"}, {"idx": 3}, {"idx": 4, "task": "add"})
    folder = write_layout(tmp_path, "emu_edit_generations", changes)
    data = config("emu_edit_generations", folder, edit_types=("add",))
    rows = list(open_rows(data))
    assert [row.id for row in rows] == ["2", "4"] == [row.id for row in stream_rows(data)]
    assert [row.target for row in rows] == [None, None]
    later = dataclasses.replace(data, offset=1)
    assert [row.id for row in stream_rows(later)] == ["4"] == [row.id for row in open_rows(later)]


def test_edits_of_one_pair_of_captions_are_held_out_together(tmp_path):
    captions = ["a cat", "a dog", "a cat", "a bird", "a fish"]
    folder = write_layout(tmp_path, "instruct_pix2pix", tuple({"original_prompt": c} for c in captions))
    rows = open_rows(config("instruct_pix2pix", folder, holdout_sources=2))
    left = source_ids(rows)
    assert len(set(left)) == 2
    assert left.count("a cat") in (0, 2)
    with pytest.raises(ValueError, match="holdout_sources, fraction: streamed rows cannot tell"):
        stream_rows(config("instruct_pix2pix", folder, holdout_sources=2))


def test_a_source_image_that_is_missing_is_no_other_row_s(tmp_path):
    folder = write_layout(tmp_path, "aurora", ({}, {"input": None}, {}, {"input": None}))
    ids = source_ids(open_rows(config("aurora", folder)))
    assert ids[0] == ids[2]
    assert len(set(ids)) == 3


def test_ultraedit_has_masks_in_one_of_its_data_sets(tmp_path):
    data = config("ultraedit", write_layout(tmp_path, "ultraedit"))
    (part,) = read_batches(open_rows(data), data.size, data.resize, 4)
    batch = part.batch
    assert batch.mask[0, 0, :, :6].min() == 1
    assert batch.mask[0, 0, :, 10:].max() == 0

    row = LAYOUTS["ultraedit"]["row"] | {"mask_image": None, "edit_object": None}
    for number in (1, 10):
        rows = [{**row, "idx": number}]
        write_parquet(
            tmp_path / f"FreeForm_{number}-00000-of-00001.parquet", rows, LAYOUTS["ultraedit"]["pictures"]
        )
    free = DataConfig("ultraedit", str(tmp_path), split="FreeForm_1")
    (found,) = open_rows(free)
    assert (found.id, found.mask) == ("1", None)
    assert [row.id for row in stream_rows(free)] == ["1"]


def test_ultraedit_s_splits_are_named_where_there_is_none_of_that_name():
    with pytest.raises(ValueError, match="UltraEdit has none called 'train'; expected FreeForm"):
        UltraEdit("BleachNick/UltraEdit_500k", "train")


def test_a_data_set_s_columns_are_read_from_an_image_folder_too(tmp_path):
    for name in ("chelsea", "coffee"):
        photograph(name).save(tmp_path / f"{name}.png")
    record = {"input": "chelsea.png", "output": "coffee.png", "instruction": "make it coffee", "source": "ag"}
    lines = [record, record | {"output": None}]
    (tmp_path / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = DataConfig("aurora", str(tmp_path))
    first, second = stream_rows(data)
    assert same(first.target, "coffee")
    assert second.reason == "output: the image is missing"
    assert same(open_rows(data)[0].source, "chelsea")


def test_what_lacks_columns_is_refused_streamed_or_not(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [{"input": "chelsea", "instruction": "x"}], ("input",))
    for read in (open_rows, stream_rows):
        with pytest.raises(ValueError, match="lacks the columns output, source; it has input, instruction"):
            read(DataConfig("aurora", str(tmp_path)))


def test_seed_data_edit_part_2_is_read_from_its_folder(tmp_path):
    write_seed(tmp_path, [seed_record(), seed_record(source_image="photoshop/coffee.png")])
    for path in (tmp_path, tmp_path / "real_editing"):
        rows = open_rows(DataConfig("seed_data_edit", str(path)))
        assert [row.id for row in rows] == ["split_0001-1", "split_0001-2"]
        assert same(rows[0].source, "chelsea")
        assert same(rows[0].target, "coffee")
        assert rows[0].instruction == "make it coffee"
        assert source_ids(rows) == ["photoshop/chelsea.png", "photoshop/coffee.png"]
        assert [row.id for row in stream_rows(DataConfig("seed_data_edit", str(path), offset=1))] == [
            "split_0001-2"
        ]


def test_images_elsewhere_are_read_where_the_user_names_their_folder(tmp_path):
    folder = tmp_path / "data"
    write_seed(folder, [seed_record(), seed_record(source_image="../../../secret.png")])
    photograph("chelsea").save(tmp_path / "secret.png")
    images = folder / "real_editing" / "images"
    images.rename(tmp_path / "elsewhere")
    images.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"photoshop/chelsea\.png, which lies outside; data\.root="):
        open_rows(DataConfig("seed_data_edit", str(folder)))[0]
    rows = open_rows(DataConfig("seed_data_edit", str(folder), root=str(tmp_path / "elsewhere")))
    assert same(rows[0].source, "chelsea")
    with pytest.raises(ValueError, match=r"secret\.png, which lies outside|secret\.png is not there"):
        rows[1]


def test_bad_lines_of_seed_data_edit_are_told_and_the_others_are_read(tmp_path):
    photograph("rocket").save(tmp_path / "secret.png")
    lines = [
        "{",
        "[1]",
        seed_record(instruction=" "),
        seed_record(target_image=None),
        seed_record(target_image="photoshop/none.png"),
        seed_record(source_image="../../secret.png"),
        seed_record(source_image=str(tmp_path / "secret.png")),
        seed_record(source_image="annotations/split_0001.jsonl"),
        seed_record(),
    ]
    rows = list(stream_rows(DataConfig("seed_data_edit", str(write_seed(tmp_path, lines)))))
    reasons = [
        "split_0001-1 is not JSON",
        "split_0001-2: expected a JSON object",
        "split_0001-3 has no instruction",
        "split_0001-4 has no target_image",
        "photoshop/none.png is not there",
        "got images/../../secret.png, which lies outside; data.root=FOLDER",
        "which lies outside",
        "not an image that can be read",
    ]
    for row, reason in zip(rows[:-1], reasons, strict=True):
        assert reason in row.reason
    assert same(rows[-1].source, "chelsea")


def test_another_split_or_no_annotations_of_seed_data_edit_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected annotations/\*.jsonl, as SEED-Data-Edit Part 2 has them"):
        open_rows(DataConfig("seed_data_edit", str(tmp_path)))
    with pytest.raises(ValueError, match="Part 2 has only train; got 'val'"):
        open_rows(DataConfig("seed_data_edit", str(write_seed(tmp_path, [seed_record()])), split="val"))


def test_an_edit_of_several_differences_is_one_row(tmp_path):
    records = [
        difference(),
        difference(edited_path="rocket.png"),
        difference(operation="REMOVE", complete_difference="REMOVE: cat"),
        difference(gt_prompt="make it tea"),
    ]
    rows = open_rows(DataConfig("dice_d", str(write_dice(tmp_path, records)), split="test"))
    assert [row.instruction for row in rows] == ["make it coffee", "make it coffee", "make it tea"]
    for row, name in zip(rows, ("coffee", "rocket", "coffee"), strict=True):
        assert same(row.edited, name)
    assert all(same(row.source, "chelsea") for row in rows)
    assert set(source_ids(rows)) == {"chelsea.png"}


def test_bad_differences_are_told_and_the_others_are_read(tmp_path):
    records = [
        difference(gt_prompt=""),
        difference(edited_path=None),
        difference(edited_path="../coffee.png"),
        difference(),
    ]
    folder = tmp_path / "dice"
    folder.mkdir()
    write_dice(folder, records)
    photograph("rocket").save(tmp_path / "coffee.png")
    rows = list(stream_rows(DataConfig("dice_d", str(folder), split="test")))
    reasons = [row.reason for row in rows[:-1]]
    assert reasons[:2] == ["edit 0 has no gt_prompt", "edit 1 has no edited_path"]
    assert "got ../coffee.png, which lies outside" in reasons[2]
    assert same(rows[-1].edited, "coffee")


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("{}", "expected a list of records"), ("[]", "expected a list of records")],
)
def test_what_is_no_list_of_differences_is_refused(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        open_rows(DataConfig("dice_d", str(tmp_path), split="test"))
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(ValueError, match=r"expected one .json file with the differences; found 2"):
        open_rows(DataConfig("dice_d", str(tmp_path), split="test"))


def write_files(folder, name, counts):
    """Several Parquet files of one data set; row i of all of them says "edit number i"."""
    column = LAYOUTS[name]["instruction"]
    done = 0
    for file, n in enumerate(counts):
        changes = tuple({column: f"edit number {done + i}"} for i in range(n))
        one = write_layout(folder / f"of-{file}", name, changes)
        (path,) = [one] if one.is_file() else sorted(one.rglob("*.parquet"))
        path.rename(folder / f"{LAYOUTS[name]['split']}-{file:05d}.parquet")
        done += n
    return folder


@pytest.mark.parametrize("name", ["instruct_pix2pix", "ultraedit"])
def test_streamed_files_hold_the_rows_and_are_scored_each_on_its_own(name, tmp_path):
    folder = write_files(tmp_path, name, (3, 1, 2))
    data = config(name, folder, stream=True)
    files = stream_files(data).files
    fetched = [file.rows() for file in files]
    assert [len(rows) for rows in fetched] == [3, 1, 2]
    opened = open_rows(dataclasses.replace(data, stream=False))
    assert [row.instruction for rows in fetched for row in rows] == [row.instruction for row in opened]
    with pytest.raises(ValueError, match="stream: this needs all rows at hand"):
        open_rows(data)

    out = tmp_path / "scores.parquet"
    settings = [f"name={name}", f"path={folder}", f"split={data.split}", "size=16"]
    cli.main(["score", *settings, "stream=true", "--scorer", "l1", "--out", str(out)])
    cli.main(["score", *settings, "--scorer", "l1", "--out", str(tmp_path / "all.parquet")])
    streamed, whole = (read_records(path) for path in (out, tmp_path / "all.parquet"))
    assert [r["score"] for r in streamed] == [r["score"] for r in whole]
    assert [r["instruction"] for r in streamed] == [f"edit number {i}" for i in range(6)]
    if name == "instruct_pix2pix":  # its rows have no names
        assert [r["id"] for r in streamed] == ["0-0", "0-1", "0-2", "1-0", "2-0", "2-1"]


def test_streamed_rows_that_are_bad_are_named_by_file_and_row(tmp_path):
    name = "instruct_pix2pix"
    folder = write_files(tmp_path, name, (2, 2))
    write_layout(tmp_path / "bad", name, ({}, {LAYOUTS[name]["instruction"]: " "}))
    (bad,) = sorted((tmp_path / "bad").rglob("*.parquet"))
    bad.rename(folder / "train-00001.parquet")
    out = tmp_path / "labels"
    settings = [f"data.{s}" for s in (f"name={name}", f"path={folder}", "size=16", "stream=true")]
    cli.main(["relabel", *settings, "relabel.scorer=l1", "--out", str(out)])
    records = [r for part in sorted((out / "relabelled").glob("*.parquet")) for r in read_records(part)]
    assert [(r["id"], r["valid"]) for r in records] == [
        ("0-0", True),
        ("0-1", True),
        ("1-0", True),
        ("1-1", False),
    ]
    assert "the instruction is missing or empty" in records[3]["reason"]


def test_a_part_of_streamed_rows_is_refused(tmp_path, capsys):
    folder = write_layout(tmp_path, "instruct_pix2pix")
    for more in ({"offset": 1}, {"limit": 1}, {"holdout_sources": 2}):
        with pytest.raises(ValueError, match="stream: files are read whole"):
            stream_files(config("instruct_pix2pix", folder, stream=True, **more))
    with pytest.raises(ValueError, match="stream: images of table rows are files of their own"):
        stream_files(DataConfig("table", str(folder), stream=True))
    settings = ["name=instruct_pix2pix", f"path={folder}", "stream=true"]
    assert cli.main(["score", *settings, "--scorer", "l1"]) != 0
    assert "stream: goes with --out FILE.parquet" in capsys.readouterr().err
    candidates = [f"data.{setting}" for setting in (*settings, "size=16")] + [
        "candidates.editors=[shapes/editor]"
    ]
    candidates.append("relabel.scorer=l1")
    assert cli.main(["relabel", *candidates, "--out", str(tmp_path / "out")]) != 0
    assert "stream: this needs all rows at hand" in capsys.readouterr().err


def test_one_of_several_splits_that_were_saved_together(tmp_path):
    from datasets import Dataset, DatasetDict

    table = write_layout(tmp_path / "table", "aurora", ({"source": "kubric"}, {"source": "ag"}))
    rows = Dataset.from_parquet([str(path) for path in table.glob("*.parquet")])
    saved = tmp_path / "saved"
    DatasetDict({"train": rows.select([0]), "val": rows.select([1])}).save_to_disk(str(saved))
    for split, kind in (("train", "kubric"), ("val", "ag")):
        (row,) = open_rows(DataConfig("aurora", str(saved), split=split, size=16))
        assert row.edit_type == kind
    with pytest.raises(ValueError, match="no split 'test'; it has train, val"):
        open_rows(DataConfig("aurora", str(saved), split="test", size=16))


def write_tar(path, rows) -> None:
    """Rows as WebDataset's files: images by their names, texts as JSON."""
    import io
    import tarfile

    with tarfile.open(path, "w") as tar:
        for key, files in rows.items():
            for name, content in files.items():
                if name == "json":
                    stored = json.dumps(content).encode()
                elif isinstance(content, bytes):
                    stored = content
                else:
                    file = io.BytesIO()
                    content.save(file, {"jpg": "jpeg"}.get(name.split(".")[-1], name.split(".")[-1]).upper())
                    stored = file.getvalue()
                entry = tarfile.TarInfo(f"{key}.{name}")
                entry.size = len(stored)
                tar.addfile(entry, io.BytesIO(stored))


def test_rows_of_a_web_dataset_streamed_or_not(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    images = {"source.png": photograph("chelsea"), "target.jpeg": photograph("coffee")}
    said = {"instruction": "make it coffee", "source_caption": "a cat", "edit_type": "replace"}
    for file in range(2):
        rows = {f"{file}{i}": {**images, "json": said} for i in range(2)}
        write_tar(folder / f"train-{file:05d}.tar", rows)
    bad = {"x": {**images, "json": {**said, "instruction": ""}}, "y": {**images, "json": said}}
    bad["y"]["source.png"] = b"no image"
    write_tar(folder / "test-00000.tar", bad)

    data = DataConfig("webdataset", str(folder), size=16)
    rows = open_rows(data)
    assert [row.id for row in rows] == ["00", "01", "10", "11"] == [row.id for row in stream_rows(data)]
    assert same(rows[3].source, "chelsea")
    assert (rows[3].edited, rows[3].mask) == (None, None)
    assert rows[3].target.size == photograph("coffee").size
    texts = {name: getattr(rows[3], name) for name in ("instruction", "source_caption", "target_caption")}
    assert texts == {"instruction": "make it coffee", "source_caption": "a cat", "target_caption": None}
    assert rows[3].edit_type == "replace"
    assert len(set(source_ids(rows))) == 1

    streamed = stream_files(dataclasses.replace(data, stream=True)).files
    assert [[row.id for row in file.rows()] for file in streamed] == [["00", "01"], ["10", "11"]]
    told = [row.reason for row in stream_rows(dataclasses.replace(data, split="test"))]
    assert told == [
        "instruction: the instruction is missing or empty",
        "source: the bytes are not an image that can be read",
    ]


@pytest.mark.parametrize("streamed", [False, True])
def test_masks_and_captions_of_a_web_dataset_may_begin_late(tmp_path, streamed):
    folder = tmp_path / "data"
    folder.mkdir()
    image = photograph("chelsea")
    plain = {"source.png": image, "target.png": image, "json": {"instruction": "x", "source_caption": None}}
    said = {"instruction": "x", "source_caption": "a cat", "edit_type": "replace", "author": "someone"}
    full = {"source.jpg": image, "edited.webp": image, "mask.PNG": image.convert("L"), "json": said}
    write_tar(folder / "train-0.tar", {f"{i}": plain for i in range(6)} | {"6": full})
    data = DataConfig("webdataset", str(folder))
    rows = list(stream_rows(data) if streamed else open_rows(data))
    assert [row.source_caption for row in rows] == [None] * 6 + ["a cat"]
    assert [row.edit_type for row in rows] == [None] * 6 + ["replace"]
    assert [row.mask is not None for row in rows] == [False] * 6 + [True]
    assert [row.edited is not None for row in rows] == [False] * 6 + [True]
    assert [row.target is not None for row in rows] == [True] * 6 + [False]


def test_a_row_of_a_web_dataset_whose_text_is_none_is_told(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    image = photograph("chelsea")
    rows = {
        "0": {"source.png": image, "json": {"instruction": "x"}},
        "1": {"source.png": image, "json": {"instruction": "x", "edit_type": ["a"]}},
        "2": {"source.png": image, "json": {"instruction": 5}},
    }
    write_tar(folder / "train-0.tar", rows)
    told = [getattr(row, "reason", None) for row in stream_rows(DataConfig("webdataset", str(folder)))]
    assert told == [
        None,
        "edit_type: expected text; got ['a']",
        "instruction: the instruction is missing or empty",
    ]


def test_tar_files_without_what_an_edit_needs_are_refused(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    image = photograph("chelsea")
    write_tar(folder / "train-0.tar", {"a": {"before.png": image, "json": {"instruction": "x"}}})
    data = DataConfig("webdataset", str(folder))
    with pytest.raises(ValueError, match=r"expected KEY\.json and KEY\.source\.png.*row a lacks its source"):
        open_rows(data)
    with pytest.raises(ValueError, match=r"no webdataset file of split 'val'; .* such as val-00000\.tar"):
        open_rows(dataclasses.replace(data, split="val"))
    write_tar(folder / "other.tar", {"a": {"source.png": image}})
    with pytest.raises(ValueError, match="row a lacks its json"):
        open_rows(dataclasses.replace(data, path=str(folder / "other.tar")))


def test_streamed_rows_of_a_type_that_there_is_not_are_told(tmp_path, capsys):
    name = "emu_edit_generations"
    folder = write_layout(tmp_path, name)
    settings = [f"path={folder}", f"split={LAYOUTS[name]['split']}", "size=16", "stream=true"]
    types = "edit_types=[nope]"
    out = tmp_path / "scores.parquet"
    words = ["score", f"name={name}", *settings, types, "--scorer", "l1", "--out", str(out)]
    assert cli.main(words) == 2
    assert "there is no row to score" in capsys.readouterr().err
    data = [f"data.{word}" for word in (f"name={name}", *settings, types)]
    assert cli.main(["relabel", *data, "relabel.scorer=l1", "--out", str(tmp_path / "labels")]) == 2
    assert "there is no row to score" in capsys.readouterr().err
