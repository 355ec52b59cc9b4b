"""Folders of images: which files are taken, and what is said of the others."""

import pytest
from PIL import Image

from rewardedit.data.edit_jobs import read_jobs
from rewardedit.data.folders import by_stem, list_images
from rewardedit.images import load_image
from rewardedit.synthesis.methods import FolderOfOutputs
from rewardedit.untrusted import IMAGE_SUFFIXES, readable_suffixes


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.jfif", "c.AVIF", "d.gif", "e.jp2"):
        Image.new("RGB", (16, 16), "red").save(tmp_path / name, {".jfif": "JPEG"}.get(name[1:]))
    for name in ("._a.png", ".DS_Store", "f.HEIC", "g.heif", "h.eps", "notes.txt", "more.txt", "README"):
        (tmp_path / name).write_bytes(b"no image")
    (tmp_path / "inner.png").mkdir()
    return tmp_path


def test_what_can_be_read_is_listed_and_the_rest_is_counted_in_a_line(folder, capsys):
    assert [path.name for path in list_images(folder)] == ["a.png", "b.jfif", "c.AVIF", "d.gif", "e.jp2"]
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith(f"{folder}: 5 images; files passed over: ")
    for part in ("1 .heic (pip install pillow-heif reads them)", "2 .txt", "1 without an ending", "1 hidden"):
        assert part in err
    assert "DS_Store" not in err
    list_images(folder)
    assert capsys.readouterr().err == "", "once"


def test_a_folder_without_such_files_says_nothing(tmp_path, capsys):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    assert len(list_images(tmp_path)) == 1
    assert capsys.readouterr().err == ""


def test_every_reader_of_folders_takes_the_same_files(folder):
    names = ["a", "b", "c", "d", "e"]
    assert [job.id for job in read_jobs(str(folder), ["make it blue"])] == names
    outputs = FolderOfOutputs(str(folder))
    assert sorted(outputs.outputs) == names
    with pytest.raises(ValueError, match=r"no output a-\w+\.png for row \._a"):
        outputs.find("._a")
    assert {".jfif", ".avif", ".gif", ".heic"} <= set().union(*map(set, IMAGE_SUFFIXES.values()))
    assert {".jfif", ".avif", ".gif"} <= readable_suffixes()


def test_two_files_of_one_name_are_refused(folder):
    Image.new("RGB", (16, 16)).save(folder / "a.webp")
    with pytest.raises(ValueError, match=r"a\.png and a\.webp differ only in their suffix; rename one"):
        by_stem(list_images(folder))


def test_an_image_that_needs_another_package_names_it(folder):
    with pytest.raises(ValueError, match=r"f\.HEIC: HEIC images need pillow-heif; pip install pillow-heif"):
        load_image(folder / "f.HEIC")
