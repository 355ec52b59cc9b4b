"""Known answers of public rating files: tests/data/public."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from rewardedit.evaluation.decisions import VOTES, accuracy, baselines, read_answer
from rewardedit.evaluation.statistics import correlation_by_group, rater_agreement, reliability, spearman

PUBLIC = Path(__file__).parents[1] / "data" / "public"


def table(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def overall(cell: str) -> float:
    """√(SC · PQ) of a cell "[SC, PQ]"."""
    semantic, quality = json.loads(cell)
    return (semantic * quality) ** 0.5


@pytest.fixture(scope="module")
def imagenhub() -> tuple[np.ndarray, list[str], list[str]]:
    """Overall ratings (n, three raters) of text-guided edits, the editor of each, and its source."""
    files = [table(PUBLIC / "imagenhub" / f"Text-Guided_IE_rater{rater}.tsv", "\t") for rater in (1, 2, 3)]
    editors = [name for name in files[0][0] if name != "uid"]
    uids = [row["uid"] for row in files[0]]
    for rows in files:
        assert [row["uid"] for row in rows] == uids
    ratings = [[overall(row[editor]) for editor in editors for row in rows] for rows in files]
    return np.array(ratings).T, [editor for editor in editors for _ in uids], uids * len(editors)


def test_imagenhub_s_mean_ratings(imagenhub):
    ratings, editors, _ = imagenhub
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
    found = {editor: ratings[np.array(editors) == editor].mean() for editor in dict.fromkeys(editors)}
    assert found == pytest.approx(known, abs=0.001)


def test_imagenhub_s_raters_agree_by_both_averages(imagenhub):
    """.4184 is published (VIEScore, ADIEE), .5446 the average by Fisher's z, .5029 the plain mean. Imagic,
    which all rate 0, is left out.
    """
    ratings, editors, uids = imagenhub
    found = rater_agreement(ratings, editors, uids, resamples=100)
    assert found.average.value == pytest.approx(0.5446, abs=5e-5)
    assert found.average.ci95[0] < 0.5446 < found.average.ci95[1] < 0.7
    assert found.average.clusters == 179
    assert found.average.n == 8 * 179
    undefined, resamples = found.average.reason.split("; ")
    assert undefined == "Imagic: undefined: all first and all second values are equal"
    assert resamples.startswith("|ρ| = 1 left out in ")
    published = rater_agreement(ratings, editors, uids, compat="viescore", resamples=1)
    assert published.average.value == pytest.approx(0.4184, abs=5e-5)

    others = [np.delete(ratings, rater, axis=1).mean(1) for rater in range(3)]
    each = [
        correlation_by_group(ratings[:, rater], others[rater], editors, resamples=1) for rater in range(3)
    ]
    assert np.mean([one.mean for one in each]) == pytest.approx(0.5029, abs=5e-5)
    of = {name: [one.groups[name].value for one in each] for name in ("InstructPix2Pix", "MagicBrush")}
    assert of["InstructPix2Pix"] == pytest.approx([0.771, 0.808, 0.779], abs=5e-4)
    assert of["MagicBrush"] == pytest.approx([0.757, 0.781, 0.681], abs=5e-4)
    assert [one.groups["Text2Live"].value for one in each] == pytest.approx([0.12, 0.15, 0.19], abs=0.005)


def test_imagenhub_s_raters_are_as_reliable_as_pingouin_finds(imagenhub):
    """pingouin 0.7.0, rows ICC(A,1) and ICC(A,k) of MagicBrush's 179 edits, made as in test_raters.py."""
    ratings, editors, _ = imagenhub
    found = reliability(ratings[np.array(editors) == "MagicBrush"], compat="f")
    assert found.single.value == pytest.approx(0.6754603844175459, rel=1e-8)
    assert found.single.ci95 == pytest.approx((0.6076244913, 0.7367899469), abs=1e-7)
    assert found.average.value == pytest.approx(0.8619521253609636, rel=1e-8)
    assert found.average.ci95 == pytest.approx((0.822875211, 0.8935914487), abs=1e-7)


def test_genai_bench_s_judges_reach_the_published_accuracies():
    rows = table(PUBLIC / "genai_bench" / "image_edition_votes.csv")
    votes = [VOTES[row["human_vote"]] for row in rows]
    known = {
        "gpt4o": 53.54,
        "gemini-1.5-pro": 55.93,
        "idefics2": 27.31,
        "blip2": 26.01,
        "llavanext": 25.35,
        "minicpm-V-2.5": 25.24,
        "qwenVL": 14.91,
        "mantis-8b-idefics2": 0.0,
    }
    sources = [row["source_prompt"] for row in rows]
    found = {}
    for judge in known:
        decisions = [read_answer(row[f"vote_{judge}"]) for row in rows]
        found[judge] = accuracy(decisions, votes, 4, sources)
    values = {judge: 100 * one.value for judge, one in found.items()}
    assert values == pytest.approx(known, abs=0.01)
    assert found["gpt4o"].ci95[0] < 0.5354 < found["gpt4o"].ci95[1]
    assert found["mantis-8b-idefics2"].ci95 == (0, 0)
    expected = {"always tie": 24, "always both bad": 392, "always equal": 416, "random score": 503 / 2}
    assert baselines(votes, 4) == pytest.approx(
        {name: n / 919 for name, n in expected.items()} | {"random answer": 0.25}
    )


def test_imagenworld_s_judge_ranks_the_models_as_people_do():
    rows = json.loads((PUBLIC / "imagenworld" / "human_auto_summary.json").read_text())
    editing = [row for row in rows if row["task"] == "TIE"]
    human = [row["human_overall_mean"] for row in editing]
    automatic = [row["auto_overall_mean"] for row in editing]
    found = spearman(human, automatic, resamples=50)
    assert found.n == 8
    assert found.value == pytest.approx(0.976, abs=5e-4)
