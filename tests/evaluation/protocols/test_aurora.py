import json

import pytest

from rewardedit.cli import main
from rewardedit.evaluation.protocols.aurora import AuroraPointwise
from rewardedit.evaluation.protocols.aurora_pairs import AuroraPairwise
from rewardedit.evaluation.protocols.protocol import ItemScores, Options, TrainingData
from tests.evaluation.protocols.files import BROKEN, cells_in, photograph, save

MODELS = ("mgie", "genhowto")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two tasks of four sources by two editors, in ADIEE's layouts. A score is missing, one is out of range,
    one row comes twice, one image cannot be read; one pair has an unknown winner.
    """
    folder = tmp_path_factory.mktemp("aurora")
    rated = []
    pairs = []
    for i in range(8):
        task = "emu" if i < 4 else "whatsup"
        place = f"human_ratings/{task}/{i}"
        source = save(folder, f"{place}/input.png", photograph(0))
        gens = []
        for model in MODELS:
            brightness = 0.95 - i / 20 if model == "mgie" else 0.45 - i / 20
            gens.append(save(folder, f"{place}/{model}.png", photograph(0, brightness)))
            score = 2 - i / 4 if model == "mgie" else 0.2
            row = {"input": source, "gen": gens[-1], "prompt": "darker", "model": model}
            rated.append({**row, "score": score, "task": task})
        pair = {"input": source, "gens": gens, "prompt": "darker", "models": list(MODELS), "task": task}
        pairs.append({**pair, "winner": "tie" if i == 1 else "mgie"})
    save(folder, rated[14]["gen"], BROKEN)
    rated += [dict(rated[0]), {**rated[0], "gen": "x.png", "score": 3}, {**rated[0], "gen": "y.png"}]
    del rated[-1]["score"]
    pairs += [dict(pairs[0]), {**pairs[0], "winner": "nobody"}]
    (folder / "human_ratings_updated_prompt.json").write_text(json.dumps(rated))
    (folder / "human_ratings_pairwise.json").write_text(json.dumps(pairs))
    return folder


def test_single_edits_are_scored_end_to_end(folder, tmp_path, capsys):
    words = ["--scorer", "psnr", "--out", str(tmp_path)]
    assert main(["bench", "aurora", str(folder), *words]) == 0
    said = capsys.readouterr().out
    assert "row 17 is left out: id human_ratings/emu/0/mgie.png came before; the first is used" in said
    assert "row 18 is left out: score: expected 0 to 2; got 3" in said
    assert "row 19 is left out: score: expected 0 to 2; got None" in said
    assert "psnr: 1 of 16 items left out: human_ratings/whatsup/7/mgie.png" in said
    rows = cells_in(tmp_path)
    assert rows["psnr"]["all edits"]["n"] == 15
    assert rows["psnr"]["emu"]["value"] > 0.9
    assert rows["psnr"]["within editors"]["value"] == pytest.approx(1)  # genhowto's are rated alike
    assert rows["GPT-4o"]["all edits"] == {"value": 0.4038, "ci95": None, "n": 2000}


def test_pairs_are_scored_end_to_end(folder, tmp_path, capsys):
    words = ["--scorer", "psnr", "--out", str(tmp_path)]
    assert main(["bench", "aurora_pairs", str(folder), *words]) == 0
    said = capsys.readouterr().out
    assert "row 10 is left out: winner: expected one of the models, or tie; got 'nobody'" in said
    assert "1 pairs repeat another; 0 have unlike votes; all count" in said
    cells = cells_in(tmp_path)["psnr"]
    assert cells["2 answers"]["value"] == 1  # the brighter edit is nearer to its source
    assert cells["2 answers"]["n"] == 7
    assert cells["3 answers"]["n"] == 8


def test_image_with_another_prompt_is_another_item(folder, tmp_path):
    file = folder / "human_ratings_pairwise.json"
    rows = json.loads(file.read_text())[:2]
    rows.append({**rows[0], "prompt": "brighter"})
    (tmp_path / file.name).write_text(json.dumps(rows))
    benchmark = AuroraPairwise(str(tmp_path))
    benchmark.folder = folder
    gens = rows[0]["gens"]
    last = benchmark.pairs[2]
    assert (last.left, last.right) == (f"{gens[0]}#2", f"{gens[1]}#2")
    items = benchmark.rows()
    assert len(items) == 6
    prompts = {items[i].id: items[i].instruction for i in range(6)}
    assert prompts[gens[0]] == "darker"
    assert prompts[f"{gens[0]}#2"] == "brighter"


def test_adiee_s_rule_has_three_answers(folder):
    """0 and 4 are of two classes; 5.1 and 7 of one, which is a tie."""
    pairs = AuroraPairwise(str(folder))
    values = {}
    for number, pair in enumerate(pairs.pairs):
        values[pair.left], values[pair.right] = (7.0, 5.1) if number == 1 else (4.0, 0.0)
    (table,) = pairs.tables(ItemScores({"judge": values}), Options("adiee"))
    cells = table.rows[0].cells
    assert cells["3 answers"].value == 1
    assert cells["2 answers"].value == 1


def test_tasks_that_were_trained_on_overlap(folder):
    benchmark = AuroraPointwise(str(folder))
    found = benchmark.overlap([TrainingData("emu_edit", "test")])
    assert found == {edit.id for edit in benchmark.edits if edit.task == "emu"}
    assert not benchmark.overlap([TrainingData("magicbrush", "train")])


def test_without_its_file_nothing_is_guessed(tmp_path, capsys):
    assert main(["bench", "aurora", str(tmp_path), "--scorer", "l1", "--out", str(tmp_path / "o")]) == 2
    assert "expected human_ratings_updated_prompt.json of ADIEE's assets/AURORA" in capsys.readouterr().err
