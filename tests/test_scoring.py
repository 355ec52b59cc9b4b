"""`rewardedit score`: a pair, a table, bad rows that are kept, and heat maps."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from rewardedit import EditBatch, Scorer, Scores, load_scorer, scoring
from rewardedit.batch import EditSample
from rewardedit.cli import main
from rewardedit.data.table import Table
from rewardedit.images import load_image, to_pil
from rewardedit.reports.captioned import GAP, TEXT
from rewardedit.reports.heatmap import draw_heat, heat_map
from rewardedit.scorers import load
from rewardedit.scoring import score_rows
from rewardedit.shapes import Shapes


class MaskArea(Scorer):
    """Number of pixels in the mask."""

    required_fields = frozenset({"mask"})

    def score(self, batch, prepared):
        return Scores.make(batch.mask.sum((1, 2, 3)))


WORLD = ("--world", "shapes")


@pytest.fixture
def pair(tmp_path):
    samples = Shapes("val").batch(1, 1)
    for name, image in (("before", samples.source), ("after", samples.target)):
        to_pil(image[0]).save(tmp_path / f"{name}.png")
    return [str(tmp_path / "before.png"), str(tmp_path / "after.png"), samples.instruction[0]]


class SomeRows(Sequence):
    """Edits of one source, some with a mask; None is a row that cannot be read."""

    def __init__(self, masked: list[bool | None]) -> None:
        self.masked = masked

    def __len__(self):
        return len(self.masked)

    def __getitem__(self, row):
        if self.masked[row] is None:
            raise ValueError(f"row {row} is broken")
        samples = Shapes("val").batch(row, 1)
        mask = samples.mask[0] if self.masked[row] else None
        return EditSample(str(row), samples.source[0], "do it", edited=samples.target[0], mask=mask)


@pytest.mark.parametrize("size", [None, 64])
@pytest.mark.parametrize(
    "masked", [[True, False, None, True], [None, True, None, None, False], [True, True, None, True], [None]]
)
def test_rows_that_cannot_be_read_keep_their_places(masked, size):
    scorers = {"l1": load_scorer("l1"), "area": MaskArea()}
    records = [record for found in scoring.score_rows(SomeRows(masked), scorers, size) for record in found]
    for name in scorers:
        own = [record for record in records if record["scorer"] == name]
        assert [int(record["id"]) for record in own] == list(range(len(masked)))
    valid = [record["valid"] for record in records if record["scorer"] == "l1"]
    assert valid == [value is not None for value in masked]
    assert [r["score"] is None for r in records if r["scorer"] == "area"] == [not value for value in masked]


def test_a_pair_as_text_and_as_json(pair, capsys):
    assert main(["score", *pair, *WORLD, "--scorer", "clip_d", "clip_d:0.7,l1:0.3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[1] for line in lines] == ["clip_d", "clip_d:0.7,l1:0.3"]
    assert "l1 0." in lines[1]
    assert main(["score", *pair, "--scorer", "l1", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    source, edited = (load_image(path)[None] for path in pair[:2])
    wanted = load_scorer("l1")(EditBatch(source, pair[2:], edited)).score
    assert record["score"] == pytest.approx(float(wanted))
    assert (record["id"], record["scorer"], record["valid"]) == ("after", "l1", True)


def test_a_parquet_table_that_holds_its_pictures_is_scored(pair, tmp_path):
    images = {
        name: Path(path).read_bytes() for name, path in zip(("source", "edited"), pair[:2], strict=True)
    }
    rows = [{**images, "instruction": pair[2]}, {**images, "edited": b"broken", "instruction": pair[2]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    out = tmp_path / "scores.json"
    assert main(["score", str(tmp_path / "rows.parquet"), "--scorer", "l1", "--out", str(out)]) == 0
    first, second = json.loads(out.read_text())
    source, edited = (load_image(path)[None] for path in pair[:2])
    assert first["score"] == pytest.approx(
        float(load_scorer("l1")(EditBatch(source, pair[2:], edited)).score)
    )
    assert second["reason"].endswith(
        "rows.parquet: row 2: edited: the bytes are not an image that can be read"
    )


def test_a_table_to_parquet_keeps_the_rows_that_cannot_be_scored(pair, tmp_path, capsys):
    (tmp_path / "broken.png").write_text("no image")
    rows = [
        {"source": "before.png", "edited": name, "instruction": pair[2]}
        for name in ("after.png", "broken.png")
    ]
    rows.append({**rows[0], "source_caption": "a circle", "target_caption": "a circle"})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "scores.parquet"
    for more in ([], ["--size", "64"]):
        assert (
            main(["score", str(tmp_path), *WORLD, "--scorer", "clip_d", "clip_i", "--out", str(out), *more])
            == 0
        )
        table = pq.read_table(out).to_pylist()
        reasons = {(row["id"], row["scorer"]): row["reason"] for row in table}
        assert len(table) == 6
        assert reasons["0", "clip_d"] is None
        assert "not an image" in reasons["1", "clip_d"]
        assert "the same: no direction" in reasons["2", "clip_d"]
        assert "needs target" in reasons["0", "clip_i"]
        assert [row["score"] is None for row in table] == [not row["valid"] for row in table]


def test_an_edit_of_another_size_is_brought_to_its_source(pair, tmp_path, capsys):
    image = load_image(pair[1])
    to_pil(torch.nn.functional.interpolate(image[None], (96, 128))[0]).save(tmp_path / "large.png")
    assert main(["score", pair[0], str(tmp_path / "large.png"), pair[2], "--scorer", "l1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["score"] > 0.9


@pytest.fixture
def some_have_captions(tmp_path):
    """Four rows, of which one has no target caption, one no caption at all, and one a mask."""
    samples = Shapes("val").batch(0, 4)
    rows = []
    for i in range(4):
        for name, image in (("source", samples.source), ("target", samples.target), ("mask", samples.mask)):
            to_pil(image[i].expand(3, -1, -1)).save(tmp_path / f"{name}-{i}.png")
        row = {
            "id": str(i),
            "source": f"source-{i}.png",
            "target": f"target-{i}.png",
            "instruction": samples.instruction[i],
        }
        row |= {"source_caption": samples.source_caption[i], "target_caption": samples.target_caption[i]}
        rows.append(row)
    del rows[1]["target_caption"], rows[3]["target_caption"], rows[3]["source_caption"]
    rows[2]["mask"] = "mask-2.png"
    return rows, tmp_path


def test_a_row_s_score_does_not_depend_on_its_neighbours(some_have_captions):
    """By `rewardedit score`, one by one and in a batch; by `rewardedit relabel`,
    whose rows are scored in batches.
    """
    rows, folder = some_have_captions

    def scores(command, rows):
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = ["data.name=table", f"data.path={folder}", "data.size=64"]
        data += ["relabel.scorer={clip_d: {checkpoint: shapes/clip}}", "relabel.scale=range"]
        out = folder / f"{command}-{len(list(folder.iterdir()))}"
        if command == "relabel":
            assert main(["relabel", *data, "--out", str(out)]) == 0
            found = [
                row
                for path in sorted((out / "relabelled").glob("*.parquet"))
                for row in pq.read_table(path).to_pylist()
            ]
        else:
            asked = [*WORLD, "--scorer", "clip_d", "--size", "64"]
            assert main(["score", str(folder), *asked, "--out", f"{out}.parquet"]) == 0
            found = pq.read_table(f"{out}.parquet").to_pylist()
        return {row["id"]: row["score"] for row in found}

    alone = {}
    for row in rows:
        alone |= scores("score", [row])
    assert len({round(score, 3) for score in alone.values()}) == 4
    assert scores("score", rows) == pytest.approx(alone, abs=1e-5)
    assert scores("relabel", rows) == pytest.approx(alone, abs=1e-5)


def test_a_relabelling_that_can_score_no_row_says_why(some_have_captions, capsys):
    rows, folder = some_have_captions
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (rows[0], rows[1])))
    data = [
        "data.name=table",
        f"data.path={folder}",
        "data.size=64",
        f"relabel.scorer={__name__}:MaskArea",
    ]
    assert main(["relabel", *data, "--out", str(folder / "out")]) == 2
    assert "no row can be scored" in capsys.readouterr().err


def test_a_brushed_mask_is_where_it_is_transparent(pair, tmp_path, capsys):
    mask = Image.new("RGBA", (64, 64), (230, 230, 230, 255))
    mask.paste((0, 0, 0, 0), (0, 0, 16, 16))
    mask.save(tmp_path / "mask.png")
    words = [
        "score",
        *pair,
        "--mask",
        str(tmp_path / "mask.png"),
        "--scorer",
        f"{__name__}:MaskArea",
        "--json",
    ]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)[0]["score"] == 256


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.png", "b.png"], "expected SOURCE EDITED"),
        (["a.png", "b.png", "make it blue"], "no such file"),
        (["name=shapes", "limit=2", "--out", "x.txt"], "ends in .parquet, .json, .jsonl, .csv"),
        (["name=shapes", "limit=2", "--heatmap", "x.png"], "expected one edit and one scorer"),
        (["name=shapes", "limit=2", "--scorer", "clip_x"], "no scorer named"),
        (["a.png", "b.png", "make it blue", "--size", "0"], "--size: expected at least 1"),
    ],
)
def test_what_cannot_be_scored_is_said_in_a_line(words, message, capsys):
    assert main(["score", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_nothing_scored_is_an_error(pair, capsys):
    assert main(["score", *pair, *WORLD, "--scorer", "clip_i"]) == 2
    assert "nothing could be scored" in capsys.readouterr().err


def test_the_heat_map_is_drawn_beside_the_pair(pair, tmp_path, capsys):
    out = tmp_path / "heat.png"
    assert main(["score", *pair, *WORLD, "--scorer", "clip_d", "--heatmap", str(out)]) == 0
    _, h, w = load_image(out).shape
    assert w == 3 * 256 + 4 * GAP
    assert h > 256 + 3 * (TEXT + GAP), "with instruction, score and legend below"


def test_heat_adds_up_to_the_change_of_a_linear_score_and_stays_where_pictures_differ():
    samples = Shapes("val").batch(0, 7)
    weights = torch.linspace(-1, 1, 64).expand(64, 64)
    scorer = load_scorer(lambda batch: (batch.edited * weights).sum((1, 2, 3)), differentiable=True)
    batch = EditBatch(samples.source, samples.instruction, samples.target)
    heat = heat_map(scorer, batch, smooth=0)
    untouched = EditBatch(samples.source, samples.instruction, samples.source)
    torch.testing.assert_close(
        heat.sum((1, 2, 3)), scorer(batch).score - scorer(untouched).score, rtol=1e-3, atol=1e-3
    )
    still = (samples.source == samples.target).all(1, keepdim=True)
    assert (heat[still] == 0).all()
    assert heat_map(scorer, batch).shape == (7, 1, 64, 64)
    drawn = draw_heat(batch.edited, heat)
    (up, down) = draw_heat(torch.zeros(1, 3, 1, 2), torch.tensor([[[[1.0, -1.0]]]]))[0, :, 0].T
    assert up[1] > up[0], "what raised the score is green"
    assert down[0] > down[1], "what lowered it is red"
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    with pytest.raises(ValueError, match="no gradient"):
        heat_map(load_scorer(lambda batch: batch.edited.mean((1, 2, 3))), batch)


def test_heat_is_in_units_of_the_score_beside_a_row_that_cannot_be_scored():
    samples = Shapes("val").batch(0, 3)

    def mean(batch: EditBatch) -> torch.Tensor:
        return torch.where(batch.mask.flatten(1).any(1), batch.edited.mean((1, 2, 3)), torch.nan)

    scorer = load_scorer(mean, differentiable=True)
    mask = samples.mask.clone()
    mask[1] = 0
    together = heat_map(scorer, EditBatch(samples.source, samples.instruction, samples.target, mask=mask))
    alone = EditBatch(samples.source[:1], samples.instruction[:1], samples.target[:1], mask=mask[:1])
    torch.testing.assert_close(together[:1], heat_map(scorer, alone))
    assert (together[1] == 0).all()


@pytest.mark.parametrize("spelling", ["table", "json"])
def test_half_a_character_makes_one_row_invalid(spelling, pair, tmp_path):
    rows = [{"source": "before.png", "edited": "after.png", "instruction": pair[2]} for _ in range(3)]
    rows[1]["instruction"] = "make it \ud83d"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / ("out.parquet" if spelling == "table" else "out.json")
    assert main(["score", str(tmp_path), "--scorer", "l1", "--out", str(out)]) == 0
    found = pq.read_table(out).to_pylist() if spelling == "table" else json.loads(out.read_text())
    assert [row["valid"] for row in found] == [True, False, True]
    assert "row 2: instruction: expected text" in found[1]["reason"]


@pytest.mark.parametrize("named", [False, True])
def test_a_table_that_is_written_anew_is_not_taken_for_the_one_before(
    named, pair, tmp_path, capsys, short_shards
):
    table = tmp_path / "rows.jsonl"
    row = {"source": "before.png", "edited": "after.png", "instruction": pair[2]}
    words = ["--scorer", "l1", "--out", str(tmp_path / "scores.parquet")]
    parts = tmp_path / "scores.parquet.parts"

    def begin(instruction: str) -> int:
        table.write_text("".join(json.dumps({**row, "instruction": instruction}) + "\n" for _ in range(70)))
        given = ["name=table", f"path={table}"] if named else [str(tmp_path)]
        return main(["score", *given, *words])

    real = scoring.score_batch

    def interrupted(batch: EditBatch, scorers: dict[str, Scorer]) -> dict[str, Scores]:
        if list(parts.glob("scores-*.parquet")):
            raise KeyboardInterrupt
        return real(batch, scorers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "score_batch", interrupted)
        assert begin(pair[2]) == 130
    capsys.readouterr()
    assert begin("something else") == 2
    assert "made with other settings: files." in capsys.readouterr().err
    assert begin(pair[2]) == 0, "the same content, written again"


@pytest.fixture
def short_shards(monkeypatch):
    """Shards of 64 rows."""
    from rewardedit.data import datasets

    monkeypatch.setattr(datasets, "SHARD_BATCHES", 1)


def test_an_interrupted_scoring_goes_on_with_the_same_command(tmp_path, monkeypatch, short_shards):
    words = ["score", "name=shapes", "limit=150", "size=16", "--scorer", "l1", "--out"]
    assert main([*words, str(tmp_path / "whole.parquet")]) == 0
    out = tmp_path / "scores.parquet"
    scored: list[int] = []

    def interrupted(batch: EditBatch, scorers: dict[str, Scorer]) -> dict[str, Scores]:
        if len(scored) == 2:
            raise KeyboardInterrupt
        scored.append(len(batch))
        return real(batch, scorers)

    real = scoring.score_batch
    monkeypatch.setattr(scoring, "score_batch", interrupted)
    assert main([*words, str(out)]) == 130
    assert not out.exists()
    assert len(list((tmp_path / "scores.parquet.parts").glob("scores-*.parquet"))) == 2

    scored.clear()
    assert main([*words[:-2], "ssim", "--out", str(out)]) == 2  # of another scorer
    with monkeypatch.context() as patch:  # of one whose weights are others now
        patch.setattr(load, "packaged_files", lambda spec, **options: {"shapes/clip": "another"})
        assert main([*words, str(out)]) == 2
    assert main([*words, str(out)]) == 0
    assert scored == [22]
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not (tmp_path / "scores.parquet.parts").exists()


def test_a_row_that_cannot_be_read_is_known_by_its_number_in_the_data_set(tmp_path, pair, short_shards):
    (tmp_path / "broken.png").write_text("no image")
    good = {"source": "before.png", "edited": "after.png", "instruction": pair[2]}
    rows = [good] * 70 + [{**good, "edited": "broken.png"}] + [good] * 3
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "scores.parquet"
    assert main(["score", str(tmp_path), "--scorer", "l1", "--size", "16", "--out", str(out)]) == 0
    table = pq.read_table(out).to_pylist()
    assert [row["id"] for row in table if not row["valid"]] == ["70"]
    assert {row["id"] for row in table} == {str(i) for i in range(74)}


def test_a_row_that_cannot_be_read_keeps_its_own_id(tmp_path, pair):
    (tmp_path / "broken.png").write_text("no image")
    good = {"source": "before.png", "edited": "after.png", "instruction": pair[2]}
    rows = [{**good, "id": 1}, {**good, "id": 2, "edited": "broken.png"}, {**good, "id": 3}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(itertools.chain(*score_rows(Table(str(tmp_path)), {"l1": load_scorer("l1")}, 16)))
    assert [(record["id"], record["valid"]) for record in found] == [("1", True), ("2", False), ("3", True)]


def test_a_part_without_a_value_is_left_out(tmp_path, pair, capsys):
    """NaN is no JSON, and strict readers refuse the whole file."""
    both = ["--source-caption", "a circle", "--target-caption", "a circle"]
    assert main(["score", *pair, *both, *WORLD, "--scorer", "clip_d:0.7,l1:0.3", "--json"]) == 2
    (record,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert record["parts"].keys() == {"l1"}


def test_a_table_s_path_may_have_an_equals_sign(tmp_path, pair, capsys):
    folder = tmp_path / "lr=1e-4"
    folder.mkdir()
    images = [Path(path).rename(folder / Path(path).name).name for path in pair[:2]]
    row = {"source": images[0], "edited": images[1], "instruction": pair[2]}
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["score", str(folder), "--scorer", "l1"]) == 0
    assert "l1" in capsys.readouterr().out


def test_an_interruption_says_what_was_kept(pair, monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scoring, "score_batch", interrupted)
    assert main(["score", *pair, "--scorer", "l1"]) == 130
    assert "only an --out FILE.parquet keeps what was scored" in capsys.readouterr().err


def test_of_selected_rows_one_that_cannot_be_read_is_known_by_its_number_in_the_table(tmp_path, pair):
    (tmp_path / "broken.png").write_text("no image")
    good = {"source": "before.png", "edited": "after.png", "instruction": pair[2]}
    rows = [good] * 5 + [{**good, "edited": "broken.png"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "scores.parquet"
    words = ["name=table", f"path={tmp_path}", "offset=2", "size=16", "--scorer", "l1", "--out", str(out)]
    assert main(["score", *words]) == 0
    assert [row["id"] for row in pq.read_table(out).to_pylist()] == ["2", "3", "4", "5"]


def test_an_instruction_of_ten_thousand_characters_is_cut_and_scored(pair, capsys):
    instruction = "make the circle white and " * 400
    words = ["score", *pair[:2], instruction, *WORLD, "--json"]
    words += ["--scorer", "clip_d", "clip_t", "vifi_clip", "l1"]
    assert main(words) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["valid"] for record in records] == 4 * [True]
