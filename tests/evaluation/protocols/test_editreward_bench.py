import itertools

import pytest

from rewardedit.cli import main
from rewardedit.evaluation.protocols.editreward_bench import EditRewardBench
from rewardedit.evaluation.protocols.protocol import ItemScores, Options
from tests.evaluation.protocols.files import BROKEN, cells_in, photograph, stored, write_table


def rows_of(group, order, brightness):
    """Pairs of a group in the hub's columns, from its order of best to worst; "=" for a tie of two."""
    rows = []
    letters = sorted(order.replace("=", ""))
    for number, (a, b) in enumerate(itertools.combinations(letters, 2)):
        if "=" in order:
            ranking = f"{a}={b}"
        else:
            ranking = f"{a}>{b}" if order.index(a) < order.index(b) else f"{b}>{a}"
        images = {
            "source_image": stored(photograph(0)),
            "candidate_1": stored(photograph(0, brightness[a])),
            "candidate_2": stored(photograph(0, brightness[b])),
        }
        rows.append({"id": f"{group}_{number}", "instruction": "darker", "ranking": ranking, **images})
    return rows


BRIGHT = {"A": 0.8, "B": 0.6, "C": 0.4, "D": 0.2}


@pytest.fixture
def file(tmp_path):
    """Seven groups of two, one of three, two of four; one pair is repeated with another ranking, one group
    lacks a pair, one row has no ranking, one image cannot be read.
    """
    rows = []
    for number in range(7):
        rows += rows_of(f"two{number}", "AB" if number < 5 else "A=B", BRIGHT)
    rows += rows_of("three", "ABC", BRIGHT)
    rows += rows_of("four", "ABDC", BRIGHT)
    rows += rows_of("good", "ABCD", BRIGHT)
    rows += rows_of("unlike", "AB", BRIGHT) + rows_of("unlike", "BA", BRIGHT)
    rows += rows_of("short", "ABC", BRIGHT)[:2] + rows_of("bad", "AB", BRIGHT)
    rows[-1]["ranking"] = "first"
    rows[0]["candidate_1"] = stored(BROKEN)
    return write_table(tmp_path / "train-00000.parquet", rows)


def test_groups_are_scored_end_to_end(file, tmp_path, capsys):
    """psnr decides every pair but C and D of one group, whose order is turned around."""
    out = tmp_path / "out"
    assert main(["bench", "editreward_bench", str(file), "--scorer", "psnr", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "group unlike is left out: one of its pairs has unlike rankings" in said
    assert "group short is left out: it has 2 pairs of 3 edits" in said
    assert "ranking: expected one such as" in said
    assert "psnr: 2 of 25 items left out: two0-A" in said
    rows = cells_in(out)
    assert rows["psnr"]["K = 2"]["n"] == 6
    assert rows["psnr"]["K = 3"]["value"] == 1
    assert rows["psnr"]["K = 4"]["value"] == 0.5
    assert rows["psnr"]["pairs"]["n"] == 6 + 3 + 12
    assert rows["random order"]["K = 4"]["value"] == pytest.approx(1 / 24)
    assert rows["random order"]["K = 2"]["value"] == pytest.approx(0.5 * 5 / 7)
    assert rows["always tie"]["K = 2"]["value"] == pytest.approx(2 / 7)


def test_rankings_without_images_take_scores_from_a_file(tmp_path):
    """The margin of ties is fitted on the evaluated votes on request, where it makes all of them right."""
    lines = ["id,ranking"]
    values = {}
    for number in range(10):
        tie = number % 2
        lines.append(f"g{number}_0,{'A=B' if tie else 'A>B'}")
        values |= {f"g{number}-A": 0.3 if tie else 1.0, f"g{number}-B": 0.0}
    file = tmp_path / "rankings.csv"
    file.write_text("\n".join(lines))
    benchmark = EditRewardBench(str(file))
    scores = ItemScores({"judge": values, "constant": dict.fromkeys(values, 0.0)})
    (table,) = benchmark.tables(scores, Options("editreward"))
    rows = {row.name: row.cells for row in table.rows}
    assert rows["judge"]["all groups"].value == 1
    assert rows["constant"]["all groups"].value == 0.5
    (table,) = benchmark.tables(scores, Options())
    assert table.rows[0].cells["all groups"].value == 1
    with pytest.raises(ValueError, match="these rankings come without images"):
        benchmark.rows()
