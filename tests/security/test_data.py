"""Data sets that a stranger made: nothing of theirs runs, hangs, fills the memory, or reads a file outside of
its folder. Each canary is a bad row with a reason, and the rows beside it are read.
"""

import io
import json
import os
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardedit.data import DataConfig, open_rows, read_batches, source_ids
from rewardedit.data.stream import stream_rows
from tests import forks
from tests.data.layouts import photograph

INSTRUCTION = "make it night"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Keeps the cache of 🤗 datasets away from the files under test."""
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
    """Columns of InstructPix2Pix's data, with images given by name instead of content."""
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


class Payload:
    """Runs where it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return (Path.touch, (self.canary,))


def png(image: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


GOOD = {
    "source.png": png(photograph("chelsea")),
    "target.png": png(photograph("coffee")),
    "json": json.dumps({"instruction": INSTRUCTION}).encode(),
}


def write_tar(file: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(file, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


# Members of a row of a .tar file, in the place of or beside those of a good one; the reason it is bad.
MEMBERS: dict[str, tuple[dict[str, bytes], str | None]] = {
    "code": (
        {"extra.pyd": b"cposix\nsystem\n", "extra.pth": b"PK", "weights.npz": b"x", "a.mp": b"\xff"},
        None,
    ),
    "number": (
        {"cls": b"no number", "index": b"", "mesh.glb": b"x", "sound.wav": b"x", "t.json.gz": b"x"},
        None,
    ),
    "damaged": ({"json": b"{"}, "json: not JSON"),
    "deep": ({"json": b"[" * 100_000}, "nested too deeply"),
    "bytes": ({"json": b"\xff\xfe\xfd"}, "json: not JSON"),
    "list": ({"json": b"[1]"}, "json: expected an object"),
    "infinite": ({"json": b'{"instruction": 1e999}'}, "json: not JSON"),
    "eps": (
        {"source.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n{ } loop\n"},
        "source: .*not an image",
    ),
}


@pytest.mark.parametrize("streamed", [False, True])
def test_members_of_tar_files_that_are_odd_unused_or_damaged_end_nothing(streamed, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    canary = tmp_path / "canary"
    members = []
    for key, (changes, _) in MEMBERS.items():
        members += [(f"{key}.{name}", content) for name, content in {**GOOD, **changes}.items()]
    members += [(f"pickled.{name}", content) for name, content in GOOD.items()]
    members += [(f"pickled.{end}", pickle.dumps(Payload(canary))) for end in ("pkl", "pyd", "pth", "pickle")]
    members += [("without", b""), (".hidden", b"x"), ("/absolute.txt", b"x"), ("lonely.json", b"{}")]
    members += [(f"last.{name}", content) for name, content in GOOD.items()]
    write_tar(folder / "train-0.tar", members)
    write_tar(folder / "train-1.tar", [(f"cut.{name}", content) for name, content in GOOD.items()])
    content = (folder / "train-1.tar").read_bytes()
    (folder / "train-1.tar").write_bytes(content[:1100])
    (folder / "train-2.tar").write_bytes(b"no archive at all, but long enough to be one" * 20)
    data = DataConfig("webdataset", str(folder), size=16)
    found = {row.id: getattr(row, "reason", None) for row in stream_rows(data)} if streamed else {}
    if not streamed:
        rows = open_rows(data)
        bad = {n: why for part in read_batches(rows, 16, "crop", 4) for n, why in part.unreadable.items()}
        found = {rows.id_of(number): bad.get(number) for number in range(len(rows))}
        assert len(source_ids(rows)) == len(rows)
    for key, (_, reason) in MEMBERS.items():
        assert (found[key] is None) == (reason is None), (key, found[key])
    for key, (_, reason) in MEMBERS.items():
        if reason is not None:
            with pytest.raises(ValueError, match=reason):
                raise ValueError(found[key])
    assert found["pickled"] is found["last"] is None
    assert "cannot be read further" in found["train-1.tar"]
    assert "cannot be read further" in found["train-2.tar"]
    assert not canary.exists()


@pytest.mark.parametrize("damage", [b"x" * 512, b"\xff" * 100])
def test_a_damaged_header_is_not_the_end_of_a_file(damage, tmp_path):
    """Python's `tarfile` takes it for one, and says nothing."""
    members = [(f"{key}.{name}", content) for key in "abc" for name, content in GOOD.items()]
    write_tar(tmp_path / "train-0.tar", members)
    with tarfile.open(tmp_path / "train-0.tar") as tar:
        place = tar.getmember("b.source.png").offset
    content = (tmp_path / "train-0.tar").read_bytes()
    (tmp_path / "train-0.tar").write_bytes(content[:place] + damage + content[place + len(damage) :])
    rows = open_rows(DataConfig("webdataset", str(tmp_path), size=16))
    (part, *others) = read_batches(rows, 16, "crop", 4)
    assert [rows.id_of(number) for number in part.numbers] == ["a"]
    assert all(other.batch is None for other in others)
    told = {n: why for one in (part, *others) for n, why in one.unreadable.items()}
    assert "the file cannot be read further (no header at byte" in told[1]


def test_columns_that_nothing_reads_are_not_decoded(tmp_path, monkeypatch):
    """🤗 datasets would open an image of any format by itself, an EPS file by Ghostscript."""
    canary = tmp_path / "canary"
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {canary}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    from datasets import Dataset, Features, Image, Value

    eps = {"bytes": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nx\n", "path": None}
    good = {"bytes": GOOD["source.png"], "path": None}
    row = {
        "original_prompt": "a cat",
        "original_image": good,
        "edit_prompt": INSTRUCTION,
        "edited_prompt": "a dog",
        "edited_image": good,
        "thumbnail": eps,
    }
    kinds = {name: Image() if isinstance(value, dict) else Value("string") for name, value in row.items()}
    table = Dataset.from_list([row, {**row, "edited_image": eps}], features=Features(kinds))
    (tmp_path / "data").mkdir()
    table.to_parquet(str(tmp_path / "data" / "train-0.parquet"))
    data = DataConfig("instruct_pix2pix", str(tmp_path / "data"), size=16)
    told = [getattr(row, "reason", None) for row in stream_rows(data)]
    assert told[0] is None
    assert "edited_image: the bytes are not an image" in told[1]
    bad = {n for part in read_batches(open_rows(data), 16, "crop", 4) for n in part.unreadable}
    assert bad == {1}
    assert not canary.exists()


def test_deep_json_is_a_bad_row_or_an_error_in_a_line(tmp_path):
    photograph("chelsea").save(tmp_path / "good.png")
    data = write_seed(tmp_path, ["good.png"])
    file = tmp_path / "annotations" / "split_0001.jsonl"
    file.write_bytes(b"[" * 100_000 + b"\n" + b'{"source_image": "\xff"}\n' + file.read_bytes())
    told = [getattr(row, "reason", "") for row in stream_rows(data)]
    assert "nested too deeply" in told[0]
    assert told[1]
    assert told[2] == ""
    for name, config in {"rows.jsonl": "table", "differences.json": "dice_d"}.items():
        (tmp_path / name).write_text("[" * 100_000)
        split = "test" if config == "dice_d" else "train"
        with pytest.raises(ValueError, match=r"nested too deeply|not JSON that can be read"):
            open_rows(DataConfig(config, str(tmp_path / name), split=split, size=16))


def bomb(width: int, height: int, depth: int = 1) -> bytes:
    """A PNG of zeros, small as a file."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8 if depth > 1 else 1, {1: 0, 3: 2, 4: 6}[depth], 0, 0, 0)
    row = bytes(1 + (width * depth if depth > 1 else (width + 7) // 8))
    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(row * 64) for _ in range(height // 64)) + packer.compress(
        row * (height % 64)
    )
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", rows + packer.flush())
        + chunk(b"IEND", b"")
    )


BOUNDED = """
import resource, sys
from rewardedit.data import DataConfig, open_rows, read_batches
from rewardedit.images import load_image
held = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
load_image(sys.argv[1] + "/small.png")
resource.setrlimit(resource.RLIMIT_AS, ((held + 2**20) * 1024,) * 2)
rows = open_rows(DataConfig("table", sys.argv[1], size=16))
for part in read_batches(rows, 16, "crop", 1):
    for number in part.numbers:
        print(number, "good")
    for number, why in part.unreadable.items():
        print(number, why)
"""


def test_reading_takes_less_than_a_gibibyte(tmp_path):
    """One process for all: bombs are refused, and the largest image that is not one is read."""
    photograph("chelsea").save(tmp_path / "small.png")
    sizes = {"square.png": (13300, 13300), "line.png": (1_000_000, 1), "tall.png": (1, 1_000_000)}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bomb(*size))
    assert (tmp_path / "square.png").stat().st_size < 200_000
    (tmp_path / "large.png").write_bytes(bomb(8192, 6144, 4))
    (tmp_path / "text.png").write_bytes(with_text_bomb(GOOD["source.png"]))
    write_table(tmp_path, [*sizes, "text.png", "small.png", "large.png"])
    text = (tmp_path / "rows.jsonl").read_text().replace('"good.png"', '"small.png"')
    (tmp_path / "rows.jsonl").write_text(text)
    script = tmp_path / "bounded.py"
    script.write_text(BOUNDED)
    ended = forks.run(script, str(tmp_path))
    assert ended.statuses == [0], ended.output
    lines = [line for line in ended.output.splitlines() if line[:1].isdigit()]
    assert len(lines) == 6
    for line, reason in zip(lines, ["pixels", "sides", "sides", "not an image", "good", "good"], strict=True):
        assert reason in line


def with_text_bomb(image: bytes) -> bytes:
    """A PNG with a compressed text of 100 MB before its pixels."""
    content = b"Comment\0\0" + zlib.compress(bytes(100_000_000), 9)
    chunk = struct.pack(">I", len(content)) + b"zTXt" + content
    return image[:33] + chunk + struct.pack(">I", zlib.crc32(b"zTXt" + content)) + image[33:]
