"""`rewardedit bench NAME --editors A B …` on a copy of ImagenHub with three sources."""

import io
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageEnhance
from skimage import data

from rewardedit import SamplingConfig
from rewardedit.cli import main
from rewardedit.cli.bench_editors import editor_names
from rewardedit.diffusion.saving import save_settings

UIDS = ("sample_1_1", "sample_2_1", "sample_3_1")
PHOTOS = (data.chelsea(), data.coffee(), data.rocket())


def png(image) -> dict:
    file = io.BytesIO()
    image.save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


@pytest.fixture
def imagenhub(tmp_path, monkeypatch):
    """Ratings and sources in the public files' columns, and folders of edits: dark, and darker."""
    monkeypatch.chdir(tmp_path)
    hub = tmp_path / "hub"
    hub.mkdir()
    for rater in (1, 2, 3):
        lines = ["uid\tMagicBrush\tSDEdit", *(f"{uid}.jpg\t[1, 1]\t[0, 0.5]" for uid in UIDS)]
        (hub / f"Text-Guided_IE_rater{rater}.tsv").write_text("\n".join(lines) + "\n")
    rows = []
    for number, (uid, photo) in enumerate(zip(UIDS, PHOTOS, strict=True), 1):
        image = Image.fromarray(photo).resize((40, 32))
        row = {"img_id": str(number), "turn_index": 1, "instruction": f"make photo {number} dark"}
        captions = {"source_global_caption": "a photo", "target_global_caption": "a dark photo"}
        rows.append({**row, **captions, "source_img": png(image), "target_img": png(image)})
        for folder, brightness in (("dark", 0.7), ("darker", 0.3)):
            (tmp_path / folder).mkdir(exist_ok=True)
            ImageEnhance.Brightness(image).enhance(brightness).save(tmp_path / folder / f"{uid}.png")
    pq.write_table(pa.Table.from_pylist(rows), hub / "filtered-00000.parquet")
    return tmp_path


def bench(*editors, scorers=("l1", "ssim")) -> int:
    return main(["bench", "imagenhub", "hub", "--editors", *editors, "--scorer", *scorers, "--out", "out"])


def test_folders_are_compared_in_the_papers_tables(imagenhub, capsys):
    assert bench("dark", "darker") == 0
    told = capsys.readouterr().out
    assert told.startswith("L1 similarity: dark is rated highest")
    result = json.loads((imagenhub / "out/bench.json").read_text())
    means, wins, strengths, agreement = result["tables"]
    assert means["columns"] == ["l1", "rank by l1", "ssim", "rank by ssim"]
    ranks = {row["name"]: row["cells"]["rank by l1"]["value"] for row in means["rows"]}
    assert ranks == {"dark": 1, "darker": 2}
    assert [row["cells"]["ssim"]["value"] for row in wins["rows"]] == [1.0, 0.0]
    assert strengths["rows"][0]["cells"]["l1"]["value"] == pytest.approx(
        0.97295, abs=1e-4
    )  # ln(3.5 / .5) / 2
    assert "too few to correlate" in agreement["notes"][1]
    assert (imagenhub / "out/report.html").is_file()
    made = json.loads((imagenhub / "out/requests.jsonl").read_text().splitlines()[0])
    assert made == {
        "id": "sample_1_1",
        "source": "sources/sample_1_1.png",
        "instruction": "make photo 1 dark",
    }


def test_changed_source_is_not_taken_for_the_scored_one(imagenhub, capsys):
    assert bench("dark", "darker", scorers=("l1",)) == 0
    table = pq.read_table(imagenhub / "hub/filtered-00000.parquet")
    rows = table.to_pylist()
    rows[0]["source_img"] = png(Image.new("RGB", (40, 32)))
    pq.write_table(pa.Table.from_pylist(rows), imagenhub / "hub/filtered-00000.parquet")
    capsys.readouterr()
    assert bench("dark", "darker", scorers=("l1",)) == 2
    assert "files.out/sources" in capsys.readouterr().err


def test_a_model_makes_its_edits_once(imagenhub, tiny_editor, capsys):
    shutil.copytree(tiny_editor, imagenhub / "editor")
    save_settings(imagenhub / "editor", SamplingConfig(num_inference_steps=1))
    model = "tiny=editor"
    assert bench(model, "dark", scorers=("l1",)) == 0
    edits = sorted((imagenhub / "out/edits/tiny").glob("sample_?_1.png"))
    assert [edit.stem for edit in edits] == list(UIDS)
    made = [edit.stat().st_mtime_ns for edit in edits]
    first = capsys.readouterr().out
    assert "tiny" in first
    assert bench(model, "dark", scorers=("l1",)) == 0
    assert [edit.stat().st_mtime_ns for edit in edits] == made
    assert capsys.readouterr().out == first


def test_other_options_and_names_are_refused(imagenhub, capsys):
    words = ["bench", "imagenhub", "hub", "--editors", "dark", "--compat", "viescore"]
    assert main(words) == 2
    assert "--compat: does not go with --editors" in capsys.readouterr().err
    assert editor_names(["runs/a/result", "runs/b/result"]) == {
        "runs-a-result": "runs/a/result",
        "runs-b-result": "runs/b/result",
    }
    with pytest.raises(ValueError, match="expected each editor once"):
        editor_names(["a=x", "a=y"])
