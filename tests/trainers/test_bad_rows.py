"""Rows that cannot be read, in every training on a data set: left out, counted and listed, or too many."""

import json
from pathlib import Path

import numpy as np
import pytest

from rewardedit.cli import main
from rewardedit.data import DataConfig, open_rows, source_ids
from rewardedit.data.sources import hold_out
from rewardedit.data.table import Table
from rewardedit.diffusion.editors import load_editor
from rewardedit.relabel import RelabelConfig, relabel
from rewardedit.scoring import read_records
from rewardedit.training.latents import cache_sources, make_cache
from rewardedit.training.monitor import MonitorConfig
from tests.trainers.test_adiee_data import table

SHORT = [
    "train.max_steps=2",
    "train.batch_size=8",
    "train.mixed_precision=no",
    "train.log_every=1",
]
FINETUNE = [*SHORT, "train.lr_warmup_steps=1", "train.tracker=none", "evaluate=null"]
REFL = "variants=[refl]"
RUNS = {
    "quickstart": [*FINETUNE, "relabel.scorer=l1", "relabel.scale=range"],
    "shapes/refl": [
        *FINETUNE,
        "reward.scorer=l1",
        "monitor.held_out={vifi_clip: {checkpoint: shapes/vifi-clip}}",
        "monitor.n=2",
        "monitor.num_inference_steps=1",
        "reward.num_inference_steps=[2]",
        "variants=[refl]",
    ],
    "shapes/vifi-clip": [*SHORT, "held_out=null"],
}


def words(recipe: str, path: str, editor: str, *more: str, seed: int = 3) -> list[str]:
    """By default seed holds out rows that can be read."""
    data = f"data={{name: table, path: {path}, size: 32, seed: {seed}}}"
    base = [] if recipe == "shapes/vifi-clip" else [f"base={editor}"]
    return ["train", recipe, data, *base, *RUNS[recipe], *more]


@pytest.mark.parametrize("recipe", RUNS)
def test_too_many_bad_rows_stop_a_run_before_it_trains(recipe, tiny_editor, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*words(recipe, table(tmp_path / "data", 1), tiny_editor), "--out", str(out)]) == 2
    assert "1 of" in (said := capsys.readouterr().err)
    assert "more than bad_rows=0.01 allows" in said
    (record,) = [json.loads(line) for line in (out / "skipped.jsonl").read_text().splitlines()]
    assert "0-source.jpg" in record["reason"]
    assert not list(out.rglob("*.safetensors"))


def test_a_bad_row_is_left_out_of_training(tiny_editor, tmp_path):
    """Its label stays empty, its latents are zero, and no step draws it."""
    out = tmp_path / "out"
    path = table(tmp_path / "data", 1)
    command = words("quickstart", path, tiny_editor, "bad_rows=0.2", "train.batch_size=64")
    assert main([*command, "--out", str(out)]) == 0
    assert (out / "pipeline").is_dir()
    (shard,) = (out / "relabelled").glob("*.parquet")
    records = read_records(shard)
    assert [record["label"] is None for record in records] == [True] + 7 * [False]
    assert "0-source.jpg" in records[0]["reason"]
    (record,) = [json.loads(line) for line in (out / "skipped.jsonl").read_text().splitlines()]
    assert record["row"] == 0


def test_a_bad_row_among_the_watched_ones_is_left_out_of_them(tiny_editor, tmp_path):
    path = table(tmp_path / "data", 1)
    config = MonitorConfig(n=2)
    held_out = {
        seed: hold_out(source_ids(open_rows(DataConfig("table", path))), config.n, seed)[1]
        for seed in range(9)
    }
    seed = next(seed for seed, rows in held_out.items() if 0 in rows)
    out = tmp_path / "out"
    assert main([*words("shapes/refl", path, tiny_editor, seed=seed), "--out", str(out)]) == 0
    assert (out / "skipped.jsonl").read_text() == ""


def test_every_row_has_its_own_label_where_rows_between_are_bad(tmp_path):
    data, whole = (DataConfig("table", table(tmp_path / name, 0), size=32) for name in ("data", "whole"))
    for row in (3, 6):
        path = Path(data.path) / f"{row}-source.jpg"
        path.write_bytes(path.read_bytes()[:200])
    config = RelabelConfig(scorer="l1", scale="range")
    found, wanted = (relabel(config, open_rows(d), d, Path(d.path) / "relabelled") for d in (data, whole))
    assert [row for row, label in enumerate(found.label) if label is None] == [3, 6]
    for row in {*range(8)} - {3, 6}:
        assert found.score[row] == pytest.approx(wanted.score[row]), row


def test_the_caches_keep_every_row_in_its_place(tiny_editor, tmp_path):
    data = DataConfig("table", table(tmp_path / "data", 2), size=32)
    rows = open_rows(data)
    cache = make_cache(rows, data, load_editor(tiny_editor), tmp_path / "cache", batch_size=3)
    assert sorted(cache.unreadable) == [0, 1]
    assert cache.instructions == ["", "", *(f"make it {i}" for i in range(2, 8))]
    assert cache.ids == ["", "", *(str(i) for i in range(2, 8))]
    assert [bool(np.abs(row).sum()) for row in cache.source] == [False, False] + 6 * [True]
    whole = DataConfig("table", table(tmp_path / "whole", 0), size=32)
    same = make_cache(open_rows(whole), whole, load_editor(tiny_editor), tmp_path / "same", batch_size=3)
    assert np.allclose(cache.edited[2:], same.edited[2:], atol=1e-3)
    images, captions = cache_sources(rows, data, tmp_path / "sources")
    assert [bool(image.any()) for image in images] == [False, False] + 6 * [True]
    assert captions == {}
    records = [json.loads(line) for line in (tmp_path / "whole" / "rows.jsonl").read_text().splitlines()]
    records[3] |= {"source_caption": "a cat", "target_caption": "a dog"}
    (tmp_path / "whole" / "rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    _, captions = cache_sources(open_rows(whole), whole, tmp_path / "captioned")
    assert captions["source_caption"] == ["", "", "", "a cat", "", "", "", ""], (
        "one without takes none from others"
    )


def test_a_row_that_lacks_something_is_told_when_it_is_read(tmp_path):
    folder = tmp_path / "data"
    table(folder, 0, n=1)
    good = (folder / "rows.jsonl").read_text()
    bad = json.dumps({**json.loads(good), "source": "gone.png"}) + "\n"
    (folder / "rows.jsonl").write_text(good + bad + good)
    rows = Table(str(folder))
    assert rows[2].id == "2"
    with pytest.raises(ValueError, match=r"row 2: source gone.png is not there"):
        rows[1]
    assert len(set(rows.source_ids())) == 2
    (folder / "rows.jsonl").write_text(bad + bad)
    with pytest.raises(ValueError, match=r"row 1: source gone.png is not there"):
        Table(str(folder))


def test_missing_files_count_as_bad_rows(tiny_editor, tmp_path):
    path = Path(table(tmp_path / "data", 0))
    (path / "3-source.jpg").unlink()
    out = tmp_path / "out"
    assert main([*words("quickstart", str(path), tiny_editor, "bad_rows=0.2"), "--out", str(out)]) == 0
    (record,) = [json.loads(line) for line in (out / "skipped.jsonl").read_text().splitlines()]
    assert record["row"] == 3
    assert "is not there" in record["reason"]
