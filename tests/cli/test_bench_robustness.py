"""`rewardedit bench robustness` on a table of pictures, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
import torch

from rewardedit.cli import main
from rewardedit.images import to_pil


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Four edits of pictures of two sizes, two good and two failed."""
    lines = ["source,edited,instruction,good"]
    for number in range(4):
        size = (3, 24, 32) if number % 2 else (3, 32, 24)
        generator = torch.Generator().manual_seed(number)
        source = torch.rand(size, generator=generator)
        for name, image in (("source", source), ("edited", source / (1 + number))):
            to_pil(image).save(tmp_path / f"{name}{number}.png")
        lines.append(f"source{number}.png,edited{number}.png,make it dark,{number < 2}")
    file = tmp_path / "edits.csv"
    file.write_text("\n".join(lines))
    return file


def test_table_of_pictures_gives_all_tables(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    words = ["attack.attacks=[blur, JPEG]", "attack.steps=2", "attack.combinations=[[l1, ssim]]"]
    main(["bench", "robustness", str(table), *words, "--scorer", "l1", "ssim", "--out", str(out)])
    assert "Failed edits that pass for good ones" in capsys.readouterr().out
    found = json.loads((out / "bench.json").read_text())
    assert [one["title"] for one in found["tables"]] == [
        "Before attacks",
        "Rise of the score",
        "Failed edits that pass for good ones",
        "The same edits before the attack",
        "Change of the share that passes",
        "Transfer of gradient steps within 2/255",
        "Transfer of gradient steps within 8/255",
    ]
    names = ["l1", "ssim", "lower_of(l1, ssim)"]
    assert [row["name"] for row in found["tables"][2]["rows"]] == names
    assert found["made_of"]["settings"]["attack"]["steps"] == 2
    assert (out / "bench.html").is_file()


def test_changed_picture_is_not_taken_for_the_scored_one(table: Path, tmp_path: Path, capsys):
    words = [str(table), "attack.attacks=[blur]", "attack.bounds=[]", "--scorer", "l1", "--out"]
    assert main(["bench", "robustness", *words, str(tmp_path / "out")]) == 0
    to_pil(torch.zeros(3, 32, 24)).save(tmp_path / "edited2.png")
    assert main(["bench", "robustness", *words, str(tmp_path / "out")]) == 2
    assert re.search(r"files\..*edits\.csv: \"\w+\" there", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scorer", "l1"], "expected a table with a column good"),
        (["TABLE"], "expected --scorer NAME"),
        (["TABLE", "--scorer", "l1", "--compat", "viescore"], "--compat goes with published benchmarks"),
        (["TABLE", "attack.step=2", "--scorer", "l1"], "did you mean attack.steps"),
        (["TABLE", "attack.attacks=[fog]", "--scorer", "l1"], "attacks: expected some of .*; got fog"),
        (["TABLE", "attack.combinations=[[l1, l2]]", "--scorer", "l1"], "combinations: expected some of l1"),
    ],
)
def test_mistakes_are_named(
    table: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    words = [str(table) if word == "TABLE" else word for word in words]
    assert main(["bench", "robustness", *words, "--out", str(tmp_path / "out")]) == 2
    assert re.search(message, capsys.readouterr().err)
