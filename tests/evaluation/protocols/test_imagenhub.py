import json
import shutil

import pytest

from rewardedit.cli import main
from rewardedit.evaluation.protocols.imagenhub import ImagenHub
from rewardedit.evaluation.protocols.imagenhub_ratings import image_of, overall, uid_of
from rewardedit.evaluation.protocols.protocol import ItemScores, Options, TrainingData
from rewardedit.evaluation.statistics import clustered_mean
from tests.evaluation.protocols.files import (
    BROKEN,
    PUBLIC,
    cells_in,
    noisy,
    photograph,
    save,
    stored,
    write_table,
)

FOLDER = PUBLIC / "imagenhub"


@pytest.fixture(scope="module")
def benchmark():
    return ImagenHub(str(FOLDER))


def test_people_s_means_are_the_published_ones(benchmark):
    """Mean over raters and items; the paper rounds to two digits."""
    _, means = benchmark.tables(ItemScores({}), Options(resamples=5))
    known = {
        "MagicBrush": 0.467,
        "InstructPix2Pix": 0.271,
        "Prompt2prompt": 0.154,
        "CycleDiffusion": 0.139,
        "SDEdit": 0.041,
        "Text2Live": 0.023,
        "DiffEdit": 0.010,
        "Pix2PixZero": 0.009,
        "Imagic": 0.0,
    }
    found = {name: cell.value for name, cell in means.rows[0].cells.items()}
    assert found == pytest.approx(known, abs=0.001)


def test_turns_of_a_photograph_are_one_cluster(benchmark):
    assert len({item.source for item in benchmark.items}) == 116
    assert len(benchmark.people.uids) == 179
    assert image_of("sample_12_3.jpg") == image_of("sample_12_1.jpg") == "sample_12"
    assert {uid_of(item) for item in benchmark.items} == set(benchmark.people.uids)
    _, means = benchmark.tables(ItemScores({}), Options(resamples=5))
    low, high = means.rows[0].cells["MagicBrush"].ci95
    per_item = [item.rating for item in benchmark.items if item.group == "MagicBrush"]
    alone = clustered_mean(per_item).ci95
    assert (low, high) != alone


def test_people_agree_by_both_averages(benchmark):
    for compat, known in ((None, 0.5446), ("viescore", 0.4184)):
        table, _ = benchmark.tables(ItemScores({}), Options(compat, resamples=5))
        people, *others = table.rows
        assert people.name == "human-human"
        assert people.cells["average"].value == pytest.approx(known, abs=5e-5)
        assert "Imagic: undefined" in people.cells["average"].reason
        assert people.cells["Imagic"].value is None
    published = next(row for row in others if row.name == "human-human")
    assert published.kind == "published"
    assert published.cells["average"].value == 0.4184


def test_a_constant_scorer_has_no_correlation(benchmark):
    ratings = {item.id: item.rating for item in benchmark.items}
    scores = ItemScores({"noisy": noisy(ratings, 0.3), "constant": dict.fromkeys(ratings, 5.0)})
    table, _ = benchmark.tables(scores, Options(resamples=5))
    rows = {row.name: row.cells for row in table.rows if row.kind == "measured"}
    assert 0.2 < rows["noisy"]["average"].value < 1
    assert rows["constant"]["average"].value is None
    assert "all scores are equal" in rows["constant"]["MagicBrush"].reason


def test_items_of_magicbrush_s_dev_split_overlap(benchmark):
    assert len(benchmark.overlap([TrainingData("magicbrush", "dev")])) == 9 * 179
    assert not benchmark.overlap([TrainingData("magicbrush", "train"), TrainingData("humanedit", "train")])


@pytest.mark.parametrize("cell", [None, "", "[0.5]", "[1, 2]", "[x, 0]", "1", "[0.5, 1, 0]"])
def test_a_cell_that_is_no_rating_is_missing(cell):
    assert overall(cell) != overall(cell)
    assert overall("[0.5,0.5]") == 0.5


@pytest.fixture
def small(tmp_path):
    """Six sources by two editors, three raters: one rating is missing, one is no rating, one uid comes twice,
    one edited image cannot be read, and one is not there.
    """
    folder = tmp_path / "data"
    folder.mkdir()
    sources = []
    for i in range(6):
        for editor, brightness in (("A", 0.95 - i / 10), ("B", 0.5 + i / 20)):
            save(tmp_path / editor, f"sample_{i}_1.jpg", photograph(0, brightness))
        row = {"img_id": str(i), "turn_index": 1, "instruction": "darker"}
        captions = {"source_global_caption": "a photograph", "target_global_caption": "a dark one"}
        images = {"source_img": stored(photograph(0)), "target_img": stored(photograph(0, 0.5))}
        sources.append({**row, **captions, **images})
    write_table(folder / "filtered-00000.parquet", sources)
    (tmp_path / "A" / "sample_4_1.jpg").write_bytes(BROKEN)
    (tmp_path / "B" / "sample_5_1.jpg").unlink()
    grades = ["[1, 1]", "[1, 0.5]", "[0.5, 0.5]", "[0.5,0]", "[0, 0]", "[0, 1]"]
    for rater in (1, 2, 3):
        lines = [f"sample_{i}_1.jpg\t{grades[i]}\t{grades[5 - i]}" for i in range(6)]
        if rater == 2:
            lines[0] = "sample_0_1.jpg\t\t[3, 1]"
            lines.append("sample_1_1.jpg\t[0, 0]\t[0, 0]")
        text = "\n".join(["uid\tA\tB", *lines])
        (folder / f"Text-Guided_IE_rater{rater}.tsv").write_text(text + "\n")
    return folder


def test_folders_of_edits_are_scored(small, tmp_path, capsys):
    edits = [f"{name}={tmp_path / name}" for name in ("A", "B")]
    out = tmp_path / "out"
    words = ["bench", "imagenhub", str(small), "--edits", *edits, "--scorer", "psnr", "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "rater2.tsv: sample_0_1.jpg, A: no rating ('')" in said
    assert "rater2.tsv: sample_0_1.jpg, B: no rating ('[3, 1]')" in said
    assert "rater2.tsv: row 7 is left out: sample_1_1.jpg came before" in said
    assert "psnr: 2 of 12 items left out" in said
    rows = cells_in(out)
    assert rows["psnr"]["A"]["n"] == 5
    # darker edits are rated lower; by hand, with ratings (1, .71, .5, 0, 0) and (0, 0, 0, .5, .71)
    assert rows["psnr"]["A"]["value"] == pytest.approx(9.5 / 95**0.5)
    assert rows["l1"]["B"]["value"] == pytest.approx(8 / 80**0.5)
    made_of = json.loads((out / "bench.json").read_text())["made_of"]
    assert made_of["scorers"]["psnr"]["rows"] == 12


def test_what_is_missing_is_named(small, tmp_path, capsys):
    words = ["--scorer", "psnr", "--out", str(tmp_path / "out")]
    assert main(["bench", "imagenhub", str(small), *words]) == 2
    assert "the ratings come without the edited images; give --edits EDITOR=FOLDER" in capsys.readouterr().err
    assert main(["bench", "imagenhub", str(small), *words, "--edits", f"C={tmp_path}"]) == 2
    assert "--edits: expected editors A, B; got C" in capsys.readouterr().err
    shutil.rmtree(small)
    assert main(["bench", "imagenhub", str(small), *words]) == 2
    assert "expected a folder with Text-Guided_IE_rater*.tsv" in capsys.readouterr().err
