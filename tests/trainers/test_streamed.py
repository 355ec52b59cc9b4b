"""A training whose rows are read file by file, none fetched before it is used."""

import json

import numpy as np
import pytest

from rewardedit.cli import main
from rewardedit.files import read_log
from tests.data.layouts import LAYOUTS, write_layout
from tests.data.test_adapters import own_cache, write_files
from tests.trainers.test_bad_rows import FINETUNE

__all__ = ["own_cache"]  # a fixture that every test here uses
NAME = "instruct_pix2pix"


@pytest.fixture
def files(tmp_path):
    """Three files with six rows, the fourth of which has no instruction."""
    folder = write_files(tmp_path / "data", NAME, (3, 2, 1))
    write_layout(tmp_path / "bad", NAME, ({LAYOUTS[NAME]["instruction"]: " "}, {}))
    (bad,) = sorted((tmp_path / "bad").rglob("*.parquet"))
    bad.rename(folder / "train-00001.parquet")
    return folder


def words(files, editor: str, *more: str) -> list[str]:
    data = [f"data={{name: {NAME}, path: {files}, size: 32}}", "relabel.scorer=l1", "relabel.scale=range"]
    return ["train", "quickstart", *data, f"base={editor}", *FINETUNE, "bad_rows=0.2", *more]


@pytest.mark.usefixtures("unmeasured_memory")
def test_training_on_streamed_rows_is_training_on_the_rows(files, tiny_editor, tmp_path, capsys):
    for name, stream in (("streamed", "true"), ("whole", "false")):
        command = words(files, tiny_editor, f"data.stream={stream}", "train.validation_rows=1")
        validated = ["train.validate_every=2", "--out", str(tmp_path / name)]
        assert main([*command, *validated]) == 0
    streamed, whole = (tmp_path / name for name in ("streamed", "whole"))
    for part in ("edited", "source"):  # encoded in other batches, which changes the last bits
        found, wanted = (np.load(run / "cache" / f"{part}.npy") for run in (streamed, whole))
        assert np.allclose(found, wanted, atol=1e-2)
    said = [
        json.loads((run / "cache" / "rows.json").read_text())["instructions"] for run in (streamed, whole)
    ]
    assert said[0] == said[1]
    losses = [[line["loss"] for line in read_log(run)] for run in (streamed, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert list(streamed.rglob("validation/*/00.png"))
    (bad,) = [json.loads(line) for line in (streamed / "skipped.jsonl").read_text().splitlines()]
    assert bad["row"] == 3

    capsys.readouterr()
    assert main([*words(files, tiny_editor, "data.stream=true"), "--dry-run"]) == 0
    assert "rows: streamed; variants: conditioned" in capsys.readouterr().out


def test_candidates_of_streamed_rows_are_refused(files, tiny_editor, tmp_path, capsys):
    command = words(files, tiny_editor, "data.stream=true", f"candidates.editors=[{tiny_editor}]")
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert "stream: this needs all rows at hand" in capsys.readouterr().err
