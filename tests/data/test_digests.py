"""Digests of inputs: pictures that change, in folders and where a table or a file of ratings names them."""

import json
import os

import pytest

from rewardedit.data.digests import BLOCK, file_digests

CONTENT = bytes(range(256)) * (3 * BLOCK // 256)


def changed(content: bytes, place: int) -> bytes:
    """Content of the same size with another byte."""
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("place", [0, len(CONTENT) // 2, len(CONTENT) - 1])
def test_picture_of_the_same_size_is_another_one(tmp_path, place):
    file = tmp_path / "cat.png"
    file.write_bytes(CONTENT)
    before = file_digests({"path": str(tmp_path)}, pictures=True)
    os.utime(file, (0, 0))
    assert file_digests({"path": str(tmp_path)}, pictures=True) == before
    trained_on = file_digests({"path": str(tmp_path)})
    file.write_bytes(changed(CONTENT, place))
    assert file_digests({"path": str(tmp_path)}) == trained_on, "a training's data are not read twice"
    assert file_digests({"path": str(tmp_path)}, pictures=True) != before


TABLES = {
    "edits.csv": "source,edited,instruction\ncats/a.jpg,cats/b.jpg,make it red\n",
    "metadata.jsonl": json.dumps({"source": "cats/a.jpg", "edited": "cats/b.jpg"}),
    "ratings.json": json.dumps([{"input": "cats/a.jpg", "edits": [{"image_path": "cats/b.jpg"}]}]),
}


@pytest.mark.parametrize("name", TABLES)
def test_pictures_that_rows_name_are_part_of_a_table(tmp_path, name):
    (tmp_path / "cats").mkdir()
    for picture in "abc":
        (tmp_path / "cats" / f"{picture}.jpg").write_bytes(CONTENT)
    table = tmp_path / name
    table.write_text(TABLES[name])
    before = file_digests({"path": str(table)}, pictures=True)
    (tmp_path / "cats" / "c.jpg").write_bytes(b"of no row")
    assert file_digests({"path": str(table)}, pictures=True) == before
    (tmp_path / "cats" / "b.jpg").write_bytes(changed(CONTENT, 5))
    after = file_digests({"path": str(table)}, pictures=True)
    assert after != before
    (tmp_path / "cats" / "a.jpg").unlink()
    assert file_digests({"path": str(table)}, pictures=True) not in (before, after)


def test_pictures_lie_in_the_folder_that_settings_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images" / "cats").mkdir(parents=True)
    (tmp_path / "table").mkdir()
    for picture in "ab":
        (tmp_path / "images" / "cats" / f"{picture}.jpg").write_bytes(CONTENT)
    (tmp_path / "table" / "edits.csv").write_text(TABLES["edits.csv"])
    settings = {"path": "table/edits.csv", "root": "images"}
    before = file_digests(settings, pictures=True)
    (tmp_path / "images" / "cats" / "b.jpg").write_bytes(changed(CONTENT, 5))
    assert file_digests(settings, pictures=True) != before
