"""`rewardedit compare` over folders, tables and edits by `rewardedit edit`."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from skimage import data

from rewardedit import scoring
from rewardedit.cli import main
from rewardedit.evaluation.editor_records import requests_of
from rewardedit.scoring import read_records
from tests.scorers.test_vlm_pairs import Darker, server

__all__ = ["server"]  # a fixture
PHOTOS = (data.chelsea(), data.coffee(), data.rocket(), data.astronaut())
N = 8
BRIGHTNESS = {"A": 0.5, "B": 0.8, "C": 0.6}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Eight sources of their own; edits by three editors, B nearest to the source."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for folder in ("S", *BRIGHTNESS):
        (tmp_path / folder).mkdir()
    rows = [("name", "instruction", "kind")]
    for i in range(N):
        image = Image.fromarray(PHOTOS[i % 4]).resize((24 + i, 20))
        image.save(tmp_path / "S" / f"photo{i}.png")
        rows.append((f"photo{i}", f"make it darker, {i}", ("light", "colour")[i % 2]))
        for editor, brightness in BRIGHTNESS.items():
            factor = brightness + rng.normal() / 50
            ImageEnhance.Brightness(image).enhance(factor).save(tmp_path / editor / f"photo{i}.png")
    with (tmp_path / "asked.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return tmp_path


def write_instructions(folders, words: str) -> None:
    """Replaces each instruction by one with these words."""
    rows = list(csv.reader((folders / "asked.csv").open()))
    with (folders / "asked.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [rows[0], *([name, f"{words}, {name}", kind] for name, _, kind in rows[1:])]
        )


def compare(*words) -> int:
    asked = ("--sources", "S", "--instructions", "asked.csv")
    return main(["compare", *words, *asked, "--scorer", "l1"])


def test_words_come_first_and_files_are_kept(folders, capsys):
    (folders / "A" / "photo3.png").write_bytes(b"damaged")
    (folders / "C" / "photo4.png").unlink()
    assert compare("A", "B", "C", "--out", "out", "--draw", "photo1") == 0
    told = capsys.readouterr()
    first, *_ = told.out.splitlines()
    assert first.startswith("L1 similarity: B is better than ")
    assert first.endswith("Left out: A 1 without a valid score, C 1 missing.")
    assert "7 of 8 requests have an edit by each of 3 editors" in told.err

    rows = list(csv.DictReader((folders / "out/scores.csv").open()))
    assert len(rows) == 3 * N - 1
    damaged = [row for row in rows if row["valid"] == "False"]
    assert [(row["editor"], row["name"]) for row in damaged] == [("A", "photo3")]
    result = json.loads((folders / "out/comparison.json").read_text())
    assert result["scorers"]["l1"]["requests"] == 6
    assert result["scorers"]["l1"]["editors"]["A"]["invalid"] == 1
    assert list(result["scorers"]["l1"]["kinds"]) == ["colour", "light"]

    page = (folders / "out/report.html").read_text()
    assert page.count("<article") == N
    assert page.count('class="absent"') == 2
    assert "heat map of A" in page
    assert "rewardedit score S/photo0.png A/photo0.png" in page.replace("&#39;", "'")
    assert "no edit of this request" in page
    for file in set(re.findall(r'(?:src|href)="(\./images/[^"]+)"', page)):
        assert (folders / "out" / file).is_file()


def test_another_editor_leaves_the_others_scores(folders, monkeypatch):
    assert compare("A", "B", "--out", "out") == 0
    scored = []
    score_batch = scoring.score_batch
    monkeypatch.setattr(scoring, "score_batch", lambda *given: scored.append(1) or score_batch(*given))
    before = (folders / "out/scores.parquet").read_bytes()
    assert compare("A", "B", "--out", "out") == 0
    assert not scored
    assert (folders / "out/scores.parquet").read_bytes() == before
    assert compare("A", "B", "C", "--out", "out") == 0
    assert len(scored) == N


def test_tables_are_matched_by_image_and_instruction(folders):
    """One table names its images in another order, and copies of the sources."""
    shutil.copytree(folders / "S", folders / "copies")
    for editor, sources, order in (("A", "S", range(N)), ("B", "copies", reversed(range(N)))):
        with (folders / f"{editor}.jsonl").open("w") as file:
            for i in order:
                images = {"source": f"{sources}/photo{i}.png", "edited": f"{editor}/photo{i}.png"}
                file.write(json.dumps({**images, "instruction": "make it dark", "edit_type": "light"}) + "\n")
    assert main(["compare", "A.jsonl", "B.jsonl", "--scorer", "l1", "--out", "tables"]) == 0
    assert compare("A", "B", "--out", "folders") == 0
    found = []
    for folder in ("tables", "folders"):
        requests = requests_of(read_records(folders / folder / "scores.parquet"))
        assert requests.scores.editors == ["A", "B"]
        found.append(requests.scores)
    assert np.allclose(found[0].scores["l1"], found[1].scores["l1"])
    assert set(found[0].kind) == {"light"}


def test_edits_by_the_command_edit_need_no_sources(folders, tiny_editor, capsys):
    for seed in ("0", "1"):
        words = ["edit", "S", "make it red", "--model", tiny_editor, "--out", f"run{seed}", "--seed", seed]
        assert main([*words, "--steps", "1", "--size", "16"]) == 0
    capsys.readouterr()
    assert main(["compare", "run0", "run1", "--scorer", "l1"]) == 0
    assert f"{N} of {N}" in capsys.readouterr().out


def test_other_requests_are_refused(folders, capsys):
    (folders / "other.csv").write_text("source,edited,instruction\nS/photo0.png,A/photo0.png,make it red\n")
    (folders / "mine.csv").write_text("source,edited,instruction\nS/photo0.png,B/photo0.png,make it blue\n")
    assert main(["compare", "other.csv", "mine.csv", "--scorer", "l1"]) == 2
    assert "no request has edits of two of them" in capsys.readouterr().err
    assert main(["compare", "A", "B", "--scorer", "l1"]) == 2
    assert "--sources FOLDER" in capsys.readouterr().err


def test_the_guard_exits_with_one_on_a_drop(folders, capsys):
    assert compare("B", "--out", "base") == 0
    baseline = ("--against", "base/scores.parquet")
    assert compare("B", *baseline) == 0
    capsys.readouterr()
    (folders / "B").rename(folders / "kept")
    (folders / "A").rename(folders / "B")
    assert compare("B", *baseline, "--max-drop", "0.02") == 1
    assert "FAILED  B, l1: −0.1" in capsys.readouterr().out
    assert compare("B", *baseline, "--max-drop", "0.02", "l1=0.5") == 0
    assert compare("B", *baseline, "--max-drop", "0.02", "ssim=0.5") == 2
    assert "no scores by ssim in both" in capsys.readouterr().err


def test_scorers_of_the_baseline_without_scores_are_named(folders, capsys):
    asked = ("--sources", "S", "--instructions", "asked.csv")
    assert main(["compare", "B", *asked, "--scorer", "l1", "ssim", "--out", "base"]) == 0
    capsys.readouterr()
    assert compare("B", "--against", "base/scores.parquet") == 0
    assert "not compared: ssim, scorers of the baseline" in capsys.readouterr().out


def test_scores_by_another_scorer_are_no_baseline(folders, capsys):
    assert compare("B", "--out", "base") == 0
    assert compare("B", "--size", "16", "--against", "base/scores.parquet") == 2
    assert "l1 was another scorer (size: null there, 16 here)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-drop", "0.1"], "--max-drop goes with --against FILE"),
        (["--against", "none.parquet", "--max-drop", "-1"], "--max-drop: expected one number"),
        (["--against", "none.parquet"], "none.parquet: no such file"),
        (["--draw", "3"], "--draw goes with --out FOLDER"),
        (["--out", "out", "--draw", "nobody"], "--draw: expected a number, or names such as photo0"),
        (["--tie", "-1"], "--tie: expected a number of at least 0"),
    ],
)
def test_options_that_cannot_be_followed_are_refused(words, said, folders, capsys):
    assert compare("A", "B", *words) == 2
    assert said in capsys.readouterr().err


def test_pairs_are_judged_in_both_orders(folders, server, capsys):
    (folders / "A" / "photo3.png").write_bytes(b"damaged")
    words = ("A", "B", "--judge-pairs", server, "--out", "out")
    assert compare(*words) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == (
        "Pairs by dark: A is better than B: A wins 100 % [100 to 100] of 7 pairs, a tie counting half; the "
        "orders disagree on 0 of them; 50 % of the answers prefer the edit shown first; 1 pair without a "
        "verdict."
    )
    kept = json.loads((folders / "out/pairs.json").read_text())
    (pair,) = kept["pairs"]
    assert (pair["wins"], pair["ties"], pair["losses"], pair["invalid"]) == (7, 0, 0, 1)
    assert pair["p_holm"] < 0.05
    unread = [verdict for verdict in kept["verdicts"] if verdict["better"] is None]
    assert len(unread) == 1
    assert "photo3.png" in unread[0]["reason"]

    count = len(Darker.seen)
    assert count == 14
    assert compare(*words) == 0  # what was judged is kept
    assert len(Darker.seen) == count
    waits = f"{{checkpoint: '{server}', retries: 1, timeout: 60}}"
    assert compare("C", "B", "A", "--judge-pairs", waits, "--out", "out") == 0
    assert len(Darker.seen) == count + 2 * (7 + 8)  # of C with A and with B
    assert len(json.loads((folders / "out/pairs.json").read_text())["verdicts"]) == 3 * N
    capsys.readouterr()


def test_scores_are_shown_whatever_the_judge_of_pairs_does(folders, server, capsys):
    write_instructions(folders, "busy")
    judge = f"{{checkpoint: '{server}', retries: 0}}"
    assert compare("A", "B", "--judge-pairs", judge, "--out", "out") != 0
    said = capsys.readouterr()
    assert said.out.startswith("L1 similarity: B is better than A")
    assert "503" in said.err
    assert (folders / "out/comparison.json").is_file()


def test_a_judge_with_a_favourite_place_ties(folders, server, capsys):
    write_instructions(folders, "first place")
    assert compare("B", "A", "C", "--judge-pairs", f"{{checkpoint: '{server}', retries: 1}}") == 0
    said = capsys.readouterr().out
    for a, b in (("A", "B"), ("A", "C"), ("B", "C")):
        assert (
            f"Pairs by dark: no difference can be told between {a} and {b}: {a} wins 50 % [50 to 50] of 8 "
            "pairs, a tie counting half; the orders disagree on 8 of them; 100 % of the answers prefer the "
            "edit shown first.\n"
        ) in said
    assert (
        main(["compare", "A", "B", "--judge-pairs", "{model: x}", "--sources", "S", "--instruction", "x"])
        == 2
    )
    assert "--judge-pairs: expected a model, or some of checkpoint, answer" in capsys.readouterr().err
