"""`rewardedit score` over folders of edits, and what its results keep of tables."""

import csv
import json
import re
import shutil

import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageEnhance
from skimage import data

from rewardedit import EditBatch, load_image, load_scorer
from rewardedit.cli import main
from rewardedit.evaluation.summary import summarise
from rewardedit.scoring import read_records

PHOTOS = {"cat": data.chelsea, "coffee": data.coffee, "rocket": data.rocket}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Sources, darker edits A, much darker ones B (without the rocket), and their instructions."""
    monkeypatch.chdir(tmp_path)
    for folder in ("S", "A", "B"):
        (tmp_path / folder).mkdir()
    for name, photo in PHOTOS.items():
        image = Image.fromarray(photo()).resize((48, 32))
        image.save(tmp_path / "S" / f"{name}.png")
        ImageEnhance.Brightness(image).enhance(0.8).save(tmp_path / "A" / f"{name}.webp", lossless=True)
        ImageEnhance.Brightness(image).enhance(0.4).save(tmp_path / "B" / f"{name}.png")
    (tmp_path / "B" / "rocket.png").unlink()
    rows = [
        ("name", "instruction", "kind"),
        ("cat.png", "make it dark", "animal"),
        ("coffee", "make it dark", "thing"),
    ]
    with (tmp_path / "said.csv").open("w", newline="") as file:
        csv.writer(file).writerows([*rows, ("S/rocket.jpeg", "make it night", "thing")])
    return tmp_path


def l1(folder, source, edited):
    images = (load_image(folder / path)[None] for path in (source, edited))
    before, after = images
    return float(load_scorer("l1")(EditBatch(before, ["make it dark"], after)).score)


@pytest.mark.parametrize("ending", ["csv", "json", "jsonl", "parquet"])
def test_folders_are_scored_against_their_sources_by_name(folders, ending, capsys):
    out = folders / f"x.{ending}"
    words = [
        "score",
        "A",
        "B",
        "--sources",
        "S",
        "--instructions",
        "said.csv",
        "--scorer",
        "l1",
        "--out",
        str(out),
    ]
    assert main(words) == 0
    read = {
        "csv": lambda: list(csv.DictReader(out.open(encoding="utf-8"))),
        "json": lambda: json.loads(out.read_text()),
        "jsonl": lambda: [json.loads(line) for line in out.read_text().splitlines()],
        "parquet": lambda: read_records(out),
    }[ending]()
    rows = [record if ending == "csv" else record | record["row"] for record in read]
    assert [row["id"] for row in rows] == [
        "A/cat.webp",
        "A/coffee.webp",
        "A/rocket.webp",
        "B/cat.png",
        "B/coffee.png",
    ]
    assert [(row["folder"], row["kind"]) for row in rows][1:4] == [
        ("A", "thing"),
        ("A", "thing"),
        ("B", "animal"),
    ]
    assert rows[2]["instruction"] == "make it night"
    for row in rows:
        assert float(row["score"]) == pytest.approx(l1(folders, row["source"], row["edited"]), abs=1e-6)
    err = capsys.readouterr().err
    assert "B: 2 edits; no edit of 1: rocket" in err
    means = [sum(float(r["score"]) for r in rows if r["folder"] == name) for name in "AB"]
    assert re.search(
        rf"^A  l1  mean {means[0] / 3:.4f} \[.*\] \(95 %, 3 source images\); 3 of 3 valid$", err, re.M
    )
    assert re.search(rf"^B  l1  mean {means[1] / 2:.4f} ", err, re.M)
    difference = (
        sum(float(r["score"]) * (1 if r["folder"] == "A" else -1) for r in rows if "rocket" not in r["id"])
        / 2
    )
    assert re.search(
        rf"^A − B  l1  mean difference \{difference:+.4f} \[.*\] \(95 %, 2 source images\)$", err, re.M
    )


def test_one_folder_and_one_instruction(folders, capsys):
    shutil.copy(folders / "S" / "cat.png", folders / "A" / "dog.png")
    words = [
        "score",
        "A",
        "--sources",
        "S",
        "--instruction",
        "make it dark",
        "--scorer",
        "l1",
        "--size",
        "16",
    ]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert [line.split("  ")[0] for line in out.splitlines()] == ["cat.webp", "coffee.webp", "rocket.webp"]
    assert "A: 3 edits; no source of 1: dog.png" in err
    assert "−" not in err


def test_instructions_may_lie_beside_the_sources(folders, capsys):
    (folders / "S" / "metadata.csv").write_text("file_name,instruction\ncat.png,make it dark\n")
    assert main(["score", "B", "--sources", "S", "--scorer", "l1"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("cat.png  l1  ")
    assert "no instruction for 1: coffee" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["A", "--sources", "S"], "say what was asked: --instructions FILE"),
        (["A", "--sources", "S", "--instruction", "nan"], "--instruction: the instruction is empty"),
        (["A", "--sources", "S", "--instructions", "none.csv"], "none.csv: no such file"),
        (["A", "--sources", "gone", "--instruction", "x"], "gone: expected a folder of images"),
        (["A", "gone", "--sources", "S", "--instruction", "x"], "gone: expected a folder of images"),
        (["A", "B"], "folders of edits with --sources FOLDER"),
        (["A"], "for a folder of edits, name the folder of their"),
        (["said.csv", "--instruction", "x"], "--instruction goes with folders of edits and --sources FOLDER"),
        (["A", "--sources", "S", "--instruction", "x", "--mask", "m.png"], "--mask goes with SOURCE EDITED"),
        (
            ["name=shapes", "limit=2", "--columns", "{source: a}"],
            "--columns goes with a table; a data set takes",
        ),
        (
            ["said.csv", "--columns", "source"],
            "--columns: expected a mapping such as '{source: photo}'; got source",
        ),
        (["A", "--sources", "S", "--instructions", "twice.csv"], "expected each image once; cat comes twice"),
        (
            ["empty", "--sources", "S", "--instruction", "x"],
            "expected images named as those of S; no name",
        ),
    ],
)
def test_requests_that_cannot_be_followed_are_refused_in_a_line(folders, words, message, capsys):
    (folders / "twice.csv").write_text("name,instruction\ncat,a\ncat.png,b\n")
    (folders / "empty").mkdir()
    assert main(["score", *words, "--scorer", "l1"]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_table_s_other_columns_and_files_are_kept_in_the_results(folders, capsys):
    (folders / "rows.csv").write_text(
        "original_image,edited,prompt,model,score\n"
        "S/cat.png,A/cat.webp,make it dark,one,3\nS/cat.png,B/cat.png,make it dark,two,4\n"
        "S/coffee.png,A/gone.png,make it dark,one,5\n"
    )
    assert main(["score", "rows.csv", "--scorer", "l1", "ssim", "--out", "x.csv"]) == 0
    rows = list(csv.DictReader((folders / "x.csv").open(encoding="utf-8")))
    rows = [row for row in rows if row["scorer"] == "l1"]
    assert [(row["id"], row["model"], row["row.score"]) for row in rows] == [
        ("0", "one", "3"),
        ("1", "two", "4"),
        ("2", "one", "5"),
    ]
    assert [row["edited"] for row in rows] == ["A/cat.webp", "B/cat.png", "A/gone.png"]
    assert rows[2]["score"] == ""
    err = capsys.readouterr().err
    mean = (float(rows[0]["score"]) + float(rows[1]["score"])) / 2
    assert f"all  l1  mean {mean:.4f}; 2 of 3 valid" in err, "one source image has no interval"
    assert "all  ssim  mean" in err
    words = ["rows.csv", "--columns", "{source: edited, edited: original_image}", "--scorer", "l1", "--out"]
    assert main(["score", *words, "y.parquet"]) == 0
    assert pq.read_table("y.parquet")["row"][0].as_py()[0] == ("source", "A/cat.webp")


def test_an_interval_is_over_source_images_and_a_difference_over_shared_ones():
    def record(folder, source, score):
        row = {"folder": folder, "source": source}
        return {"scorer": "l1", "row": row, "score": score, "valid": score is not None}

    same = [record("A", source, value) for source, value in (("x", 1.0), ("y", 3.0)) for _ in range(50)]
    (line,) = summarise(same, by_folder=True)
    assert line == "A  l1  mean 2.0000 [1.0000, 3.0000] (95 %, 2 source images); 100 of 100 valid"
    other = [record("B", "x", 3.0), record("B", "y", 5.0), record("B", "z", 9.0), record("B", "w", None)]
    *_, b, difference = summarise(same + other, by_folder=True)
    assert b.endswith("3 of 4 valid")
    assert difference == "A − B  l1  mean difference -2.0000 [-2.0000, -2.0000] (95 %, 2 source images)"
    assert (
        summarise(same[:50] + other, True)[-1]
        == "A − B  l1  no difference: 1 sources have a valid edit in both"
    )
