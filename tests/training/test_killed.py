"""Runs that were killed, or that are asked for something else than what their folder was made of."""

import json
import signal
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rewardedit import scoring
from rewardedit.cli import main
from rewardedit.config import build, load_yaml
from rewardedit.data import DataConfig, open_rows
from rewardedit.diffusion.editors import load_editor
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.files import read_log
from rewardedit.trainers.reward_conditioned import Config, train
from rewardedit.training import run
from rewardedit.training.latents import LatentCache
from rewardedit.training.trainable import RewardLabels
from tests import forks

DATA = ["data.limit=40", "data.size=32", "relabel.scorer=l1", "relabel.batch_size=2"]
KILLED = """
import os, signal, sys
from rewardedit.cli import main
from rewardedit import scoring
from rewardedit.synthesis import outputs

module, name = {"candidates": (outputs, "encode_png"), "scores": (scoring, "write_records")}[sys.argv[1]]
real, calls = getattr(module, name), 0

def kill(*args):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)

setattr(module, name, kill)
main(sys.argv[3:])
"""


def files(folder: Path, pattern: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob(pattern))}


def stamps(folder: Path) -> dict[Path, int]:
    found = [path for path in folder.rglob("*.parquet") if not path.name.startswith(".")]
    return {path: path.stat().st_mtime_ns for path in found}


@pytest.fixture(scope="module")
def relabelled(tiny_editor, tmp_path_factory) -> tuple[list[str], Path]:
    """The words of a relabelling with candidates, and its folder."""
    folder = tmp_path_factory.mktemp("relabelled")
    words = [
        "relabel",
        "data.name=shapes",
        *DATA,
        f"candidates.editors=[{tiny_editor}]",
        "candidates.num_inference_steps=1",
        "candidates.batch_size=2",
    ]
    assert main([*words, "--out", str(folder / "whole")]) == 0
    return words, folder / "whole"


def test_a_killed_relabelling_goes_on_from_its_whole_shards(relabelled, tmp_path, monkeypatch):
    """Killed among the candidates, killed again among the scores."""
    words, whole = relabelled
    out = tmp_path / "killed"
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    kept: dict[Path, int] = {}
    for where, calls in (("candidates", 36), ("scores", 3)):
        ended = forks.run(script, where, str(calls), *words, "--out", str(out))
        assert ended.statuses == [-signal.SIGKILL], ended.output[-2000:]
        assert kept.items() <= stamps(out).items()
        kept = stamps(out)
    shards = ["part-00000", "part-00001", "scores-00000", "scores-00001"]
    assert sorted(path.stem for path in kept) == shards
    scored = []
    score_rows = scoring.score_rows
    monkeypatch.setattr(scoring, "score_rows", lambda *args: scored.append(args) or score_rows(*args))

    assert main([*words, "--out", str(out)]) == 0
    assert len(scored) == 2  # of four shards
    candidates = {path: stamp for path, stamp in kept.items() if path.stem.startswith("part")}
    assert candidates.items() <= stamps(out).items()
    for pattern in ("part-*.parquet", "scale.json", "made_of.json"):
        assert files(out, pattern) == files(whole, pattern), pattern
    rows = [pq.read_table(path).num_rows for path in sorted((out / "relabelled").glob("part-*.parquet"))]
    assert rows == [32] * 3 + [24]  # 40 rows with 3 candidates each; no shard holds more than 16 batches of 2


def test_shares_of_a_relabelling_make_what_one_command_makes(relabelled, tmp_path, capsys):
    words, whole = relabelled
    out = ["--out", str(tmp_path / "shares")]
    for share, told in (("2/2", "1 of 2 shards"), ("1/2", "2 of 4 shards"), ("2/2", "all 4 shards")):
        assert main([*words, *out, "--shard", share]) == 0
        assert told in capsys.readouterr().out
    assert main([*words, *out]) == 0
    for pattern in ("part-*.parquet", "scale.json", "made_of.json"):
        assert files(tmp_path / "shares", pattern) == files(whole, pattern), pattern
    assert main([*words, *out, "--shard", "3/2"]) == 2
    assert "expected K/N with K from 1 to N" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        ("relabel.scorer=ssim", 'relabel.scorer: "l1" there, "ssim" here'),
        ("relabel.prompt=hive", 'relabel.prompt: "adiee" there, "hive" here'),
        ("relabel.upper=[1, 2, 3, 4, 10]", "relabel.upper: null there, [1.0, 2.0, 3.0, 4.0, 10.0] here"),
        ("data.offset=4", "data.offset: 0 there, 4 here"),
        ("candidates.seed=1", "seed: 42 there, 1 here"),
    ],
)
def test_a_relabelling_by_other_settings_is_refused_in_the_same_folder(relabelled, other, shown, capsys):
    words, whole = relabelled
    before = stamps(whole)
    assert main([*words, other, "--out", str(whole)]) == 2
    said = capsys.readouterr().err
    assert shown in said
    assert "another folder" in said
    assert stamps(whole) == before


def config_of(**changes) -> Config:
    return build(
        Config,
        {
            "name": "x",
            "data": {"name": "shapes"},
            "relabel": {"scorer": "l1"},
            "train": {"max_steps": 6},
            **changes,
        },
    )


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"relabel": {"scorer": "ssim"}}, 'relabel.scorer: "l1" there, "ssim" here'),
        ({"relabel": {"scorer": "l1", "upper": [1, 2, 3, 4, 10]}}, "relabel.upper: null there"),
        ({"data": {"name": "shapes", "offset": 4}}, "data.offset: 0 there, 4 here"),
        ({"train": {"max_steps": 8, "lr": 1.0}}, "train.lr: 5e-05 there, 1.0 here"),
        ({"train": {"max_steps": 5}}, "6 steps are done, and train.max_steps asks for 5"),
    ],
)
def test_a_run_is_not_resumed_with_other_settings(changes, shown, tmp_path):
    run.start(tmp_path, config_of())
    (tmp_path / "checkpoints" / "step-000006").mkdir(parents=True)
    with pytest.raises(ValueError, match="--overwrite") as refused:
        run.start(tmp_path, config_of(**changes), resume=True)
    assert shown in str(refused.value)
    assert load_yaml(tmp_path / "config.yaml")["train"]["max_steps"] == 6
    run.start(tmp_path, config_of(train={"max_steps": 8}), resume=True)
    assert load_yaml(tmp_path / "config.yaml")["train"]["max_steps"] == 8


def test_a_run_goes_on_to_more_steps_and_makes_anew_what_is_not_whole(tiny_editor, tmp_path):
    settings = {
        "base": tiny_editor,
        "data": {"name": "shapes", "limit": 16, "size": 32},
        "relabel": {"scorer": "l1"},
    }
    fast = {"batch_size": 4, "lr_warmup_steps": 1, "lr": 1e-3, "log_every": 1, "tracker": "none", "ema": None}
    config = build(Config, {"name": "x", **settings, "train": {**fast, "max_steps": 2}})
    out = train(config, tmp_path / "run")
    whole = files(out, "*.safetensors")
    (out / "made_of.json").unlink()  # as if it had been killed before the result was said to be whole
    for path in out.rglob("*.safetensors"):
        path.unlink()
    train(config, tmp_path / "run", resume=True)
    assert files(out, "*.safetensors") == whole
    more = replace(config, train=replace(config.train, max_steps=4))
    train(more, tmp_path / "run", resume=True)
    assert [line["step"] for line in read_log(tmp_path / "run")] == [1, 2, 3, 4]
    assert json.loads((out / "made_of.json").read_text())["train"]["max_steps"] == 4
    assert files(out, "*.safetensors") != whole


def test_prompts_are_encoded_once_and_one_long_text_costs_only_itself(tiny_editor, tmp_path, monkeypatch):
    data = DataConfig("shapes", limit=4000, size=32)
    instructions = [f"make {i % 50} red" for i in range(3999)] + ["x" * 20_000]
    zeros = np.zeros((4000, 4, 1, 1), np.float16)
    cache = LatentCache(open_rows(data), data, instructions, instructions, tmp_path, 1.0, zeros, zeros)
    editor = load_editor(tiny_editor)
    labels = RewardLabels(None, [0] * 4000)
    tracemalloc.start()
    texts = cache.texts(editor, labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * 2**20  # a fixed width for all texts would be 4000 × 20,000 × 4 bytes
    assert {name: len(values) for name, values in texts.arrays.items()} == {"embeds": 52, "tokens": 52}
    for name in ("tokenize", "encode_prompts"):
        monkeypatch.setattr(InstructPix2Pix, name, None)
    again = cache.texts(editor, labels)
    assert np.array_equal(again.arrays["tokens"], texts.arrays["tokens"])
    assert (again.index == texts.index).all()
