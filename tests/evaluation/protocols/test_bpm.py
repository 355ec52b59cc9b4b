import json

import numpy as np
import pytest

from rewardedit.cli import main
from rewardedit.evaluation.decisions import bpm_accuracy, bpm_overall
from rewardedit.evaluation.protocols.bpm import PARTS, BpmAlignment
from rewardedit.evaluation.protocols.protocol import ItemScores, Options, TrainingData
from tests.evaluation.protocols.files import BROKEN, cells_in, noisy, photograph, save

EDITORS = ("mgie", "ft_ip2p", "ip2p", "dalle2")


def entry(index, rng):
    found = {"index": index, "source_image_path": f"real/{index}.png", "instruction": "darker"}
    for i in range(1, 5):
        parts = dict(zip(PARTS, rng.uniform(0.1, 0.9, 4).tolist(), strict=True))
        rating = int(rng.integers(1, 6))
        image = {"image_path": f"edited/{index}-{i}.png", "user_overall_quality": rating, **parts}
        found[f"edited_image{i}"] = image
    return found


@pytest.fixture
def folder(tmp_path):
    """Ten rows in the authors' layout; row 3 lacks an edit, row 5 a rating, and an image cannot be read."""
    rng = np.random.default_rng(0)
    entries = [entry(index, rng) for index in range(10)]
    for one in entries:
        save(tmp_path, one["source_image_path"], photograph(0))
        for i in range(1, 5):
            rating = one[f"edited_image{i}"]["user_overall_quality"]
            save(tmp_path, one[f"edited_image{i}"]["image_path"], photograph(0, 0.4 + rating / 10))
    del entries[3]["edited_image2"]
    entries[5]["edited_image1"]["user_overall_quality"] = None
    entries.append(dict(entries[0]))
    save(tmp_path, "edited/7-4.png", BROKEN)
    (tmp_path / "local_metadata.json").write_text(json.dumps(entries))
    return tmp_path


def test_preferences_are_scored_end_to_end(folder, tmp_path, capsys):
    """The brighter an edit, the better it is rated and the nearer it is to its source."""
    out = tmp_path / "out"
    assert main(["bench", "bpm", str(folder), "--scorer", "psnr", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "row 4 is left out: index 3: expected edited_image1 to edited_image4" in said
    assert "row 11 is left out: id 0 came before; the first is used" in said
    assert "psnr: 1 of 36 items left out: 7-4" in said
    rows = cells_in(out)
    cells = rows["psnr"]
    assert cells["average"]["value"] == 1
    assert cells["mgie vs ip2p"]["n"] <= 8  # of nine rows one lacks a rating
    assert rows["random"]["average"]["value"] == 0.5
    assert rows["BPM"]["dalle2 vs ip2p"]["value"] == 0.943


def test_stored_parts_give_the_paper_s_accuracy(folder):
    """The row of the file's parts is `bpm_accuracy` of `bpm_overall`: the mean of rounded shares."""
    for name in ("local", "global"):
        entries = [entry(index, np.random.default_rng(index)) for index in range(12)]
        file = folder / f"{name}_metadata.json"
        file.write_text(json.dumps(entries))
        benchmark = BpmAlignment(str(file))
        (table,) = benchmark.tables(ItemScores({}), Options("bpm", resamples=5))
        found = next(row for row in table.rows if row.name == "BPM's parts").cells["average"].value

        parts = [
            np.array([[one[f"edited_image{i}"][key] for one in entries] for i in range(1, 5)])
            for key in PARTS
        ]
        overall = bpm_overall(*[part.ravel() for part in parts], alpha=0.7 if name == "local" else 1.0)
        scores = dict(zip(EDITORS, overall.reshape(4, -1), strict=True))
        ratings = {}
        for i, editor in enumerate(EDITORS, 1):
            ratings[editor] = [one[f"edited_image{i}"]["user_overall_quality"] for one in entries]
        assert found == pytest.approx(bpm_accuracy(scores, ratings))


def test_equal_parts_leave_their_row_out(folder):
    file = folder / "local_metadata.json"
    entries = [entry(index, np.random.default_rng(index)) for index in range(3)]
    for one in entries:
        for i in range(1, 5):
            one[f"edited_image{i}"]["preservation"] = 0.5
    file.write_text(json.dumps(entries))
    (table,) = BpmAlignment(str(file)).tables(ItemScores({}), Options(resamples=5))
    assert "BPM's parts" not in [row.name for row in table.rows]
    assert "BPM's parts are left out: one has equal values alone" in table.notes[-1]


def test_a_constant_scorer_s_ties_are_wrong(folder):
    benchmark = BpmAlignment(str(folder))
    ids = dict.fromkeys(benchmark.ids, 1.0)
    (table,) = benchmark.tables(ItemScores({"constant": ids, "none": noisy(ids, 1)}), Options(resamples=5))
    assert table.rows[0].cells["average"].value == 0
    assert 0.1 < table.rows[1].cells["average"].value < 0.9
    assert benchmark.overlap([TrainingData("magicbrush", "dev")]) == ids.keys()


def test_the_kind_of_image_that_is_favoured(tmp_path, capsys):
    """psnr favours what keeps too much; one row is malformed, one has an image that cannot be read."""
    rows = []
    for i in range(4):
        row = {"id": i, "instruction": "darker", "source": save(tmp_path, f"{i}.png", photograph(0))}
        kinds = {"ground_truth": 0.7, "excessively_preserved": 0.98, "excessively_modified": 0.1}
        for kind, brightness in kinds.items():
            row[kind] = save(tmp_path, f"{kind}/{i}.png", photograph(0, brightness))
        rows.append(row)
    rows.append({**rows[0], "id": 9, "ground_truth": ""})
    save(tmp_path, "ground_truth/3.png", BROKEN)
    (tmp_path / "triplets.json").write_text(json.dumps(rows))
    out = tmp_path / "out"
    words = ["bench", "bpm_truth", str(tmp_path / "triplets.json"), "--scorer", "psnr", "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "row 5 is left out: id 9 has no ground_truth" in said
    assert "psnr: 1 of 12 items left out: 3/ground_truth" in said
    rows = cells_in(out)
    assert rows["psnr"]["excessively_preserved"]["value"] == 1
    assert rows["psnr"]["excessively_preserved"]["n"] == 3
    assert rows["always tie"]["ground_truth"]["value"] == 1 / 3
