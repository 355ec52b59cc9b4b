import csv
import io
import json
import math
import pickle
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageFile
from torch.utils.data import DataLoader

from rewardedit.config import build, override
from rewardedit.data import DataConfig, held_out_rows, open_rows, read_batches, require_size, source_ids
from rewardedit.data.bad_rows import usable_rows
from rewardedit.data.humanedit import HumanEdit
from rewardedit.data.magicbrush import MagicBrush
from rewardedit.data.table import Table
from rewardedit.data.worlds import WorldConfig
from rewardedit.images import to_tensor
from rewardedit.relabel import RelabelConfig
from rewardedit.trainers import refl, reward_conditioned, vlm_sft
from rewardedit.training.reward import RewardConfig


def save(path, size=(20, 10), colour="red"):
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "a.png")
    save(tmp_path / "b.png", (12, 30), "blue")
    return tmp_path


def test_csv_and_jsonl_give_the_same_rows(folder):
    (folder / "rows.csv").write_text("id,source,instruction,target\nx,a.png,make it blue,b.png\n")
    record = {"id": "x", "source": "a.png", "instruction": "make it blue", "target": "b.png"}
    (folder / "other.jsonl").write_text(json.dumps(record) + "\n")
    one = Table(str(folder))[0]
    two = Table(str(folder / "other.jsonl"))[0]
    assert one.id == two.id == "x"
    assert one.instruction == "make it blue"
    assert torch.equal(to_tensor(one.source, 3), to_tensor(two.source, 3))
    assert one.source.size == (20, 10)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "a.png", "target": "b.png"}', "row 1 has no instruction"),
        ('{"source": "a.png", "instruction": "x"}', "row 1 has neither edited nor target"),
        ('{"source": "c.png", "instruction": "x", "target": "b.png"}', "row 1: source c.png is not there"),
        ('{"source": "a.png", "instruction": "x", "tagret": "b.png"}', "unknown column 'tagret'"),
        ('{"souce": "a.png", "instruction": "x", "target": "b.png"}', "'souce'; did you mean source"),
        (
            '{"source": "a.png", "instructon": "x", "target": "b.png"}',
            "'instructon'; did you mean instruction",
        ),
        (
            '{"source": "a.png", "text": "x", "target": "b.png"}',
            "no column holds the instruction; the others are text",
        ),
        (
            '{"input": "a.png", "before": "a.png", "instruction": "x", "target": "b.png"}',
            "source: expected one column; got input, before; say which by columns={source: input}",
        ),
        ('{"source": "a.png", "instruction": "NaN", "target": "b.png"}', "row 1 has no instruction"),
        ("{", "line 1 is not JSON"),
        ("", "holds no rows"),
        ("\n\n", "holds no rows"),
        ('{"source": "a.png", "instruction": " ", "target": "b.png"}', "row 1 has no instruction"),
        (
            '{"source": "a.png", "instruction": 7, "target": "b.png"}',
            "row 1: instruction: expected text; got 7",
        ),
        ("[1, 2]", "line 1: expected an object"),
    ],
)
def test_bad_tables_are_refused_by_row(folder, line, message):
    (folder / "rows.jsonl").write_text(line)
    with pytest.raises(ValueError, match=message):
        Table(str(folder))


def test_tables_as_programs_write_them(folder):
    """Excel's byte-order mark, quoted line breaks and numbers in CSV;
    U+2028 in a text and empty lines in JSONL.
    """
    head = "id,source,instruction,target,edit_type\r\n"
    csv = head + '007,a.png,"make it blue,\r\nand large",b.png\r\n\r\n8,a.png,0123,b.png,Add\r\n'
    (folder / "rows.csv").write_bytes(b"\xef\xbb\xbf" + csv.encode())
    rows = Table(str(folder / "rows.csv"))
    assert [(row.id, row.instruction, row.edit_type) for row in rows] == [
        ("007", "make it blue,\r\nand large", None),
        ("8", "0123", "Add"),
    ]
    record = {"id": 0, "source": "a.png", "instruction": "say\u2028it\x85twice", "target": "b.png"}
    lines = json.dumps(record, ensure_ascii=False)
    (folder / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + f"{lines}\r\n\r\n{lines}\n\n".encode())
    assert [(row.id, row.instruction) for row in Table(str(folder / "rows.jsonl"))] == [
        ("0", "say\u2028it\x85twice")
    ] * 2


ROW = ["p1", "a.png", "plus foncé; et grand, très", "b.png"]
NAMES = ["id", "source", "instruction", "edited"]
TUTORIAL = ["id", "original_image", "edit_prompt", "edited_image"]


def written(names, separator=",", index=None, more=()):
    """A CSV file of one row with these names of columns."""
    cells = [*([] if index is None else [(index, "0")]), *zip(names, ROW, strict=True), *more]
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=separator).writerows([[name for name, _ in cells], [cell for _, cell in cells]])
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.csv", written(TUTORIAL).encode(), "source from original_image"),
        (
            "rows.csv",
            written(["ID", "input image", "Prompt", "Output-Path"]).encode(),
            "instruction from Prompt",
        ),
        (
            "rows.csv",
            written(["id", "file_name", "instruction", "edited_file_name"]).encode(),
            "source from file",
        ),
        (
            "rows.csv",
            written(["id", "original_image_file_name", "instruction", "file_name"]).encode(),
            "edited from",
        ),
        ("rows.csv", written(["id", "file_name", "edit_prompt", "after"]).encode(), "edited from after"),
        ("rows.csv", written(NAMES, index="").encode(), None),
        ("rows.csv", written(NAMES, index="Unnamed: 0").encode(), None),
        ("rows.csv", written(NAMES, ";").encode("utf-8-sig"), None),
        ("rows.csv", ("sep=|\r\n" + written(NAMES, "|")).encode(), None),
        ("rows.tsv", written(NAMES, "\t").encode("utf-16"), None),
        ("rows.CSV", written(TUTORIAL, ";").encode("utf-32"), "edited from edited_image"),
        ("rows.csv", written(NAMES).encode("cp1252"), "read as Windows-1252, such as p1,a.png"),
        (
            "rows.csv",
            written(NAMES, more=[("seed", "7"), ("task", "add")]).encode(),
            "other columns: seed, task",
        ),
        (
            "rows.jsonl",
            json.dumps({**dict(zip(TUTORIAL, ROW, strict=True)), "score": math.nan}).encode("utf-16"),
            "score",
        ),
    ],
)
def test_tables_of_others_give_the_rows_of_the_canonical_one(folder, name, content, said, capsys):
    (folder / "canonical.csv").write_text(written(NAMES), encoding="utf-8")
    (folder / name).write_bytes(content)
    canonical = Table(str(folder / "canonical.csv"))
    assert capsys.readouterr().err == ""
    rows = Table(str(folder / name))
    err = capsys.readouterr().err
    assert (said in err and err.count("\n") == 1) if said else not err
    assert rows.source_ids() == canonical.source_ids()
    row, other = rows[0], canonical[0]
    assert (row.id, row.instruction, row.target) == (other.id, other.instruction, other.target)
    for image in ("source", "edited"):
        assert torch.equal(to_tensor(getattr(row, image), 3), to_tensor(getattr(other, image), 3))


def test_columns_are_named_by_a_setting(folder, capsys):
    (folder / "rows.csv").write_text("input,before,text,target\nb.png,a.png,make it blue,b.png\n")
    words = ["name=table", f"path={folder}", "columns={source: before, instruction: text}"]
    row = open_rows(build(DataConfig, override({}, words)))[0]
    assert (row.source.size, row.instruction) == ((20, 10), "make it blue")
    for columns, message in (
        ({"sorce": "before"}, "columns: sorce is not a field of a row; did you mean source"),
        ({"source": "photo"}, "columns: no column photo for source; it has input, before, text, target"),
    ):
        with pytest.raises(ValueError, match=message):
            Table(str(folder), columns)
    with pytest.raises(ValueError, match="columns: magicbrush rows have columns of their own"):
        DataConfig("magicbrush", "x", columns={"source": "before"})


@pytest.mark.parametrize("word", ["", "  ", "nan", "NaN", "None", "null", "<NA>"])
def test_texts_that_say_nothing_are_none_wherever_rows_are_made(folder, word):
    (folder / "rows.csv").write_text(
        "id,source,instruction,target,source_caption,target_caption,edit_type\n"
        f"{word},a.png,make it blue,b.png,{word},a cat,{word}\nx,a.png,{word},b.png,,,\n"
    )
    rows = Table(str(folder))
    row = rows[0]
    assert (row.id, row.source_caption, row.target_caption, row.edit_type) == ("0", None, "a cat", None)
    with pytest.raises(ValueError, match="row 2 has no instruction"):
        rows[1]
    record = {"IMAGE_ID": 3, "EDITING_TYPE": "Add", "EDITING_INSTRUCTION": "add a hat", "INPUT_IMG": "a.png"}
    record |= {"MASK_IMG": "a.png", "OUTPUT_IMG": "b.png", "INPUT_CAPTION_BY_LLAMA": word}
    records = [record | {"OUTPUT_CAPTION_BY_LLAMA": "a man"}]
    records.append(records[0] | {"EDITING_INSTRUCTION": word})
    (folder / "metadata.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    others = HumanEdit(str(folder))
    assert (others[0].source_caption, others[0].target_caption) == (None, "a man")
    with pytest.raises(ValueError, match=r"expected an instruction|instruction is missing"):
        others[1]


def test_empty_columns_at_a_table_s_end_are_none(folder):
    """As spreadsheets write them."""
    (folder / "rows.csv").write_text("source,instruction,target,,\na.png,make it blue,b.png,,\n")
    assert Table(str(folder / "rows.csv"))[0].instruction == "make it blue"
    (folder / "rows.csv").write_text("source,instruction,target,,\na.png,make it blue,b.png,,lost\n")
    with pytest.raises(ValueError, match="row 1 has a cell in a column without a name"):
        Table(str(folder / "rows.csv"))
    (folder / "rows.csv").write_text("source,instruction,target,target\na.png,make it blue,b.png,a.png\n")
    with pytest.raises(ValueError, match="expected columns of different names"):
        Table(str(folder / "rows.csv"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            b"source,instruction,target\na.png,make it blue, please,b.png\n",
            "row 1 has more cells than there are columns",
        ),
        (b'source,instruction,target\na.png,"make it" blue,b.png\n', "row 1 is not CSV"),
        # UTF-8 that is damaged, letters of another script, and what is no text are not taken for Windows-1252
        ("source,instruction,target\na.png,plus foncé ".encode() + b"\xe9t,b.png\n", "expected UTF-8 text"),
        ("source,instruction,target\na.png,сделай синим,b.png\n".encode("cp1251"), "expected UTF-8 text"),
        (b"source,instruction,target\na.png,\x9dmake it blue,b.png\n", "expected UTF-8 text"),
        (b"source,instruction,target\na.png,make\0it blue,b.png\n", "got null characters"),
        ("source,instruction,target\na.png,make it blue,b.png\n".encode("utf-16-le"), "got null characters"),
    ],
)
def test_bad_csv_is_refused(folder, text, message):
    (folder / "rows.csv").write_bytes(text)
    with pytest.raises(ValueError, match=message):
        Table(str(folder))


def test_a_brushed_mask_of_a_table_marks_the_brushed_place(folder):
    mask = Image.new("RGBA", (20, 10), (230, 230, 230, 255))
    mask.paste((0, 0, 0, 0), (0, 0, 4, 3))
    mask.save(folder / "m.png")
    (folder / "rows.csv").write_text("source,instruction,target,mask\na.png,make it blue,b.png,m.png\n")
    assert to_tensor(Table(str(folder))[0].mask, 1).sum() == 12


def test_rows_beyond_the_last_are_refused(folder):
    (folder / "rows.csv").write_text("source,instruction,target\na.png,make it blue,b.png\n")
    with pytest.raises(ValueError, match=r"data.offset: expected a row below 1, as many as .* holds; got 1"):
        open_rows(DataConfig("table", str(folder), offset=1))


def test_parts_of_rows_know_their_sources_and_can_be_read_by_workers(folder):
    for i in range(6):
        save(folder / f"{i}.png", colour=(40 * i, 0, 0))
    lines = [f"{i},{i % 6}.png,make it blue,b.png\n" for i in range(12)]
    (folder / "rows.csv").write_text("id,source,instruction,target\n" + "".join(lines))
    data = DataConfig("table", str(folder), offset=1, holdout_sources=2)
    rest = open_rows(data)
    gone = held_out_rows(data)
    held = {int(row.id) % 6 for row in gone}
    assert [int(row.id) for row in rest] == [i for i in range(1, 12) if i % 6 not in held]
    ids = source_ids(Table(str(folder)))
    assert source_ids(rest) == [ids[int(row.id)] for row in rest]
    assert set(source_ids(rest)).isdisjoint(source_ids(gone))
    read = DataLoader(rest, batch_size=4, num_workers=1, collate_fn=lambda rows: [row.id for row in rows])
    assert [row for batch in read for row in batch] == [row.id for row in rest]


def test_mixed_sizes_come_out_as_one(folder):
    records = [
        {"source": "a.png", "instruction": "x", "target": "b.png"},
        {"source": "b.png", "instruction": "y", "target": "a.png"},
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    data = DataConfig("table", str(folder), size=16, resize="pad")
    (part,) = read_batches(open_rows(data), data.size, data.resize, 8)
    assert (part.numbers, part.ids) == ([0, 1], ["0", "1"])
    assert part.batch.source.shape == (2, 3, 16, 16)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("size", "said"),
    [(None, "each edited image is stretched to its source"), (16, "resize=pad; crop or stretch may")],
)
def test_edits_of_another_shape_are_told_of_once(folder, size, said, workers, capsys):
    """Also where other processes read; not where an editor rounded the sides."""
    save(folder / "c.png", (21, 10))
    line = "{},make it blue,{}\n".format
    head = "source,instruction,target\n"

    def read(*edits):
        (folder / "rows.csv").write_text(head + "".join(line("a.png", edit) for edit in edits))
        for _ in read_batches(Table(str(folder)), size, "pad", 2, workers=workers):
            pass
        return [line for line in capsys.readouterr().err.splitlines() if "differ in shape" in line]

    assert read("a.png", "c.png") == []
    (told,) = read("a.png", "b.png", "c.png", "b.png")
    assert "such as 20 x 10 and 12 x 30 pixels" in told
    assert said in told
    assert read("b.png") == [], "once a run"


@pytest.mark.parametrize("workers", [0, 1])
def test_masks_and_targets_of_another_shape_are_told_of(folder, workers, capsys):
    head = "source,edited,target,mask,instruction\n"
    Image.new("L", (12, 30), 255).save(folder / "mask.png")
    (folder / "rows.csv").write_text(f"{head}a.png,a.png,b.png,mask.png,make it blue\n")
    for _ in read_batches(Table(str(folder)), None, "crop", 2, workers=workers):
        pass
    told = [line for line in capsys.readouterr().err.splitlines() if "differ in shape" in line]
    for line, name in zip(told, ("target", "mask"), strict=True):
        assert f"source and {name} images differ in shape, such as 20 x 10 and 12 x 30 pixels" in line


def test_the_check_before_a_training_tells_of_edits_of_another_shape(folder, tmp_path, capsys):
    (folder / "rows.csv").write_text("source,instruction,target\na.png,make it blue,b.png\n")
    data = DataConfig("table", str(folder), size=16)
    usable_rows(open_rows(data), data, lambda row: None, tmp_path / "run", 0.0)
    assert "source and edited images differ in shape" in capsys.readouterr().err


def test_magicbrush_reads_a_folder_and_parquet_alike(folder):
    import datasets

    Image.new("RGBA", (20, 10), (0, 0, 0, 0)).save(folder / "m.png")
    record = {
        "img_id": "7",
        "turn_index": 2,
        "source_img": "a.png",
        "mask_img": "m.png",
        "target_img": "b.png",
    }
    (folder / "metadata.jsonl").write_text(json.dumps({**record, "instruction": "make it blue"}) + "\n")
    one = MagicBrush(str(folder))
    assert one[0].id == "7-2"
    table = datasets.Dataset.from_list(
        [
            {
                **record,
                **{k: str(folder / v) for k, v in record.items() if k.endswith("img")},
                "instruction": "make it blue",
            }
        ]
    )
    for column in ("source_img", "mask_img", "target_img"):
        table = table.cast_column(column, datasets.Image())
    (folder / "data").mkdir()
    table.to_parquet(folder / "data" / "train-00000.parquet")
    parquet = str(folder / "data" / "train-00000.parquet")
    with pytest.raises(ValueError, match=r"source_img: expected a file inside of .*/data; got .*a\.png"):
        MagicBrush(parquet)[0]
    two = MagicBrush(parquet, root=str(folder))
    assert two[0].instruction == one[0].instruction
    assert two[0].source.size == one[0].source.size == (20, 10)
    part = open_rows(DataConfig("magicbrush", str(folder / "data"), limit=1, size=16))
    assert len(part) == 1


def test_only_the_pictures_that_are_used_are_decoded(folder, monkeypatch):
    save(folder / "m.png")
    record = {
        "img_id": "7",
        "turn_index": 2,
        "source_img": "a.png",
        "mask_img": "m.png",
        "target_img": "b.png",
    }
    (folder / "metadata.jsonl").write_text(json.dumps({**record, "instruction": "make it blue"}) + "\n")
    decoded = set()
    load = ImageFile.ImageFile.load

    def seen(image):
        decoded.add(Path(image.filename).name)
        return load(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", seen)
    data = DataConfig("magicbrush", str(folder), size=16)
    assert len(list(read_batches(open_rows(data), data.size, data.resize, 8, fields=()))) == 1
    assert decoded == {"a.png", "b.png"}  # source and target


def test_what_is_no_magicbrush_is_refused(folder):
    (folder / "metadata.jsonl").write_text('{"img_id": "7"}\n')
    with pytest.raises(ValueError, match=r"lacks instruction, mask_img, source_img, target_img, turn_index"):
        MagicBrush(str(folder))
    with pytest.raises(ValueError, match="path: magicbrush rows need one"):
        DataConfig("magicbrush")


def test_humanedit_brings_captions_and_the_type_of_edit(folder):
    Image.new("RGBA", (20, 10), (0, 0, 0, 0)).save(folder / "m.png")
    record = {"IMAGE_ID": 3, "EDITING_TYPE": "Add", "EDITING_INSTRUCTION": "add a hat", "INPUT_IMG": "a.png"}
    record |= {"MASK_IMG": "m.png", "OUTPUT_IMG": "b.png", "INPUT_CAPTION_BY_LLAMA": "a man"}
    (folder / "metadata.jsonl").write_text(
        json.dumps({**record, "OUTPUT_CAPTION_BY_LLAMA": "a man in a hat"}) + "\n"
    )
    row = open_rows(DataConfig("humanedit", str(folder)))[0]
    assert (row.id, row.edit_type, row.instruction) == ("3", "Add", "add a hat")
    assert (row.source_caption, row.target_caption) == ("a man", "a man in a hat")
    assert row.target is not None
    (folder / "metadata.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(ValueError, match="lacks OUTPUT_CAPTION_BY_LLAMA"):
        HumanEdit(str(folder))


def test_draws_are_other_edits_of_the_same_sources():
    rows = open_rows(
        DataConfig(
            "shapes", limit=8, offset=2, shapes=WorldConfig(quality_mix={"right": 1.0}, edits_per_source=2)
        )
    )
    for i in range(0, 8, 2):
        assert torch.equal(rows[i].source, rows[i + 1].source)
        assert rows[i].edit_type != rows[i + 1].edit_type
        assert rows[i].id != rows[i + 1].id
    plain = open_rows(DataConfig("shapes", limit=4, offset=1, shapes=WorldConfig(quality_mix={"right": 1.0})))
    assert [rows[i].id for i in range(0, 8, 2)] == [plain[i].id for i in range(4)]
    assert torch.equal(rows[2].target, plain[1].target)


def with_stored_pictures(folder, name, *columns):
    """A Parquet table of one row whose named columns hold the bytes of images, as 🤗 datasets writes them."""
    import datasets

    record = {"id": 7, "source": "a.png", "instruction": "make it blue", "target": "b.png", "mask": "m.png"}
    row = datasets.Dataset.from_list([{k: str(folder / v) if k in columns else v for k, v in record.items()}])
    for column in columns:
        row = row.cast_column(column, datasets.Image())
    row.to_parquet(folder / name)
    return record


def test_parquet_gives_the_rows_of_jsonl_whether_it_holds_paths_or_pictures(folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    mask = Image.new("RGBA", (20, 10), (230, 230, 230, 255))
    mask.paste((0, 0, 0, 0), (0, 0, 4, 3))
    mask.save(folder / "m.png")
    record = with_stored_pictures(folder, "images.parquet", "source", "target", "mask")
    with_stored_pictures(folder, "paths.parquet")
    (folder / "rows.jsonl").write_text(json.dumps(record) + "\n")
    contents = {
        name: (folder / file).read_bytes() for name, file in record.items() if file in ("a.png", "m.png")
    }
    pq.write_table(pa.Table.from_pylist([record | contents]), folder / "bytes.parquet")
    structs = {
        "source": {"bytes": None, "path": "a.png"},
        "target": {"bytes": (folder / "b.png").read_bytes()},
    }
    pq.write_table(pa.Table.from_pylist([record | structs]), folder / "structs.parquet")

    told = Table(str(folder / "rows.jsonl"))
    for name in ("images", "paths", "bytes", "structs"):
        rows = Table(str(folder / f"{name}.parquet"))
        assert rows.source_ids() == told.source_ids(), name
        assert (rows[0].id, rows[0].instruction, rows[0].edit_type) == ("7", "make it blue", None), name
        for image in ("source", "target", "mask"):
            channels = 1 if image == "mask" else 3
            read = [to_tensor(getattr(row, image), channels) for row in (rows[0], told[0])]
            assert torch.equal(*read), (name, image)
    assert pickle.loads(pickle.dumps(rows))[0].id == "7"  # as workers that read rows are given it


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": b"no image"}, "row 2: source: the bytes are not an image"),
        ({"source": None}, "row 2 has no source"),
        ({"target": None}, "row 2 has neither edited nor target"),
        ({"instruction": b"make it blue"}, "row 1: instruction: expected text"),
        ({"source": {"width": 3}}, "row 1: source: expected text; got {"),
        ({"edited_imge": b"x", "target": None}, "unknown column 'edited_imge'; did you mean edited"),
    ],
)
def test_bad_parquet_is_refused_by_row_and_column(folder, change, message):
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = (folder / "a.png").read_bytes()
    record = {"source": content, "instruction": "make it blue", "target": content}
    first = {
        **record,
        **{key: value for key, value in change.items() if value is not None and key != "source"},
    }
    first |= {key: value for key, value in change.items() if isinstance(value, dict)}
    pq.write_table(pa.Table.from_pylist([first, record | change]), folder / "rows.parquet")
    with pytest.raises(ValueError, match=message):
        Table(str(folder))[1]


def test_what_only_is_named_parquet_is_refused(folder):
    (folder / "rows.parquet").write_text("source,instruction,target\n")
    with pytest.raises(ValueError, match=r"rows.parquet: is not Parquet that can be read"):
        Table(str(folder))
    with pytest.raises(ValueError, match=r"none.parquet: no such file"):
        Table(str(folder / "none.parquet"))


def test_an_image_folder_is_a_table(folder):
    (folder / "metadata.csv").write_text(
        "source_file_name,instruction,edited_file_name\na.png,make it blue,b.png\n"
    )
    assert Table(str(folder))[0].edited.size == (12, 30)


def test_a_picture_that_cannot_be_read_is_named_by_row_and_column(folder):
    (folder / "c.png").write_text("no image")
    (folder / "rows.csv").write_text(
        "source,instruction,target\na.png,make it blue,b.png\na.png,make it blue,c.png\n"
    )
    with pytest.raises(ValueError, match=r"rows.csv: row 2: target: .*c.png: not an image that can be read"):
        Table(str(folder))[1]


def test_images_keep_their_size_where_none_is_given_and_trainings_ask_for_one(tmp_path):
    assert DataConfig("shapes").size == 64
    table = DataConfig("table", str(tmp_path))
    assert table.size is None
    with pytest.raises(ValueError, match=r"data\.size: .* give pixels a side"):
        require_size(table)
    more = {refl: (RewardConfig("l1"),), reward_conditioned: (RelabelConfig("l1"),)}
    for trainer, settings in more.items():
        with pytest.raises(ValueError, match=r"data\.size"):
            trainer.Config("own", table, *settings)
    with pytest.raises(ValueError, match=r"data\.size"):
        vlm_sft.Config("own", {"captions": table})


def test_rows_of_a_table_are_selected_by_their_type_of_edit(folder):
    record = {"source": "a.png", "instruction": "make it blue", "target": "b.png"}
    path = folder / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({**record, "edit_type": kind}) + "\n" for kind in ("add", "remove", "add"))
    )
    rows = open_rows(DataConfig("table", str(folder), edit_types=("add",)))
    assert [row.id for row in rows] == ["0", "2"]
    with pytest.raises(ValueError, match="has no row of move; it has add, remove"):
        open_rows(DataConfig("table", str(folder), edit_types=("move",)))
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(ValueError, match="table rows do not say their type"):
        open_rows(DataConfig("table", str(folder), edit_types=("add",)))
