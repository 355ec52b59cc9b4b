"""Direct preference optimisation from pairs to the comparison, at tiny width."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from rewardedit import load_editor
from rewardedit.cli.recipes import load_recipe
from rewardedit.data import DataConfig
from rewardedit.files import read_log
from rewardedit.synthesis.candidates import CandidatesConfig
from rewardedit.trainers.dpo import Config, plan, train
from rewardedit.training.monitor import MonitorConfig
from rewardedit.training.preferences import PreferenceConfig
from rewardedit.training.trainable import TrainConfig
from tests.editors import small_qwen_area, tiny_klein, tiny_kontext, tiny_qwen
from tests.forks import launch, run, run_here
from tests.trainers.test_full_size_recipes import photograph

FAST = {"max_steps": 2, "batch_size": 4, "lr_warmup_steps": 0, "lr": 1e-3, "log_every": 1, "lora_rank": 2}
FAST |= {"tracker": "none", "ema": None, "validation_rows": 1, "conditioning_dropout": 0.0}
LOOK = MonitorConfig(
    data=DataConfig("shapes", split="val", size=32),
    n=2,
    num_inference_steps=1,
    held_out={"clip_d": {"checkpoint": "shapes/clip"}},
)


def write_pairs(folder: Path, n: int = 8) -> DataConfig:
    """A table of photographs with two edits each."""
    folder.mkdir(exist_ok=True)
    rows = []
    for number in range(n):
        names = {}
        for kind, seed in (("source", 0), ("winner", 100), ("loser", 200)):
            names[kind] = f"{number}-{kind}.png"
            photograph(48, number + seed).save(folder / names[kind])
        rows.append({**names, "instruction": f"edit {number}"})
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return DataConfig("table", str(folder), size=32)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> DataConfig:
    return write_pairs(tmp_path_factory.mktemp("pairs"))


def config_of(data: DataConfig, base: str, **settings) -> Config:
    own = {name: settings.pop(name) for name in ("preference", "variants", "candidates") if name in settings}
    return Config("x", data, "l1", base, train=TrainConfig(**FAST | settings), monitor=LOOK, **own)


def test_pairs_of_a_table_are_trained_on(pairs, tiny_editor, tmp_path):
    config = config_of(pairs, tiny_editor, max_steps=4, variants=("dpo", "winners_only"))
    lines = plan(config)
    assert "pairs: 8 of 8 sources with their instructions" in lines
    assert "UNet calls an update: 1 with gradient on 8 rows, 1 without on 8 rows" in lines
    assert any(line.startswith("memory, GiB: ") for line in lines)
    out = train(config, tmp_path / "run")
    assert out == tmp_path / "run" / "lora"
    first, *_, last = read_log(tmp_path / "run")
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert (first["margin"], first["accuracy"], first["distance"]) == (0, 0, 0)
    assert last["distance"] > 0
    assert last["margin"] != 0
    plain = read_log(tmp_path / "run" / "variants" / "winners_only")
    assert "margin" not in plain[0]
    watched = json.loads((tmp_path / "run" / "monitor.json").read_text())
    assert [check["step"] for check in watched["checks"]] == [0, 4]
    assert {"l1", "clip_d", "change_outside"} <= set(watched["checks"][0])
    assert load_editor(str(out)).pipe.get_list_adapters() == {"unet": ["default_0"]}


def test_candidates_are_ranked_by_the_reward(tiny_editor, tmp_path):
    data = DataConfig("shapes", limit=6, size=32)
    candidates = CandidatesConfig((tiny_editor,), num_inference_steps=1, batch_size=4)
    config = config_of(data, tiny_editor, candidates=candidates, max_steps=1)
    assert "rows: 6; pairs: the best and worst edit of each source by l1" in plan(config)
    train(config, tmp_path / "run")
    names = json.loads((tmp_path / "run" / "cache" / "rows.json").read_text())["ids"]
    assert len(names) == 6
    assert all(">" in name for name in names)


def test_the_diffusion_loss_on_winners_is_added(pairs, tiny_editor, tmp_path):
    losses = []
    for weight in (0.0, 0.5):
        folder = tmp_path / str(weight)
        preference = PreferenceConfig(diffusion_weight=weight)
        train(config_of(pairs, tiny_editor, preference=preference, max_steps=1), folder)
        losses.append(read_log(folder)[0]["loss"])
    plain = config_of(pairs, tiny_editor, variants=("winners_only",), max_steps=1)
    train(plain, tmp_path / "plain")
    assert losses[1] - losses[0] == pytest.approx(0.5 * read_log(tmp_path / "plain")[0]["loss"], rel=1e-4)


def test_bad_pairs_are_listed_and_stop_a_run(tiny_editor, tmp_path):
    data = write_pairs(tmp_path / "pairs", 4)
    Image.open(tmp_path / "pairs" / "1-winner.png").save(tmp_path / "pairs" / "1-loser.png")
    config = config_of(data, tiny_editor, max_steps=1)
    with pytest.raises(ValueError, match=r"1 of 4 rows cannot be used.*both are the same image"):
        train(config, tmp_path / "run")
    train(replace(config, bad_rows=0.5), tmp_path / "again")
    (skipped,) = read_log(tmp_path / "again", "skipped.jsonl")
    assert skipped["row"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_rank": None}, r"train\.lora_rank: expected a rank, as the reference"),
        ({"min_snr": 5.0}, r"train\.null_text_target, train\.min_snr: have no effect on pairs"),
    ],
)
def test_settings_without_effect_on_pairs_are_refused(settings, message, pairs):
    with pytest.raises(ValueError, match=message):
        config_of(pairs, "shapes/editor", **settings)


def test_accumulated_steps_are_the_same_steps(pairs, tiny_editor, tmp_path):
    logs = []
    for name, micro in (("whole", None), ("parts", 1)):
        train(config_of(pairs, tiny_editor, micro_batch_size=micro), tmp_path / name)
        logs.append(read_log(tmp_path / name))
    for whole, parts in zip(*logs, strict=True):
        assert parts == pytest.approx(whole, rel=1e-4, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("make", [tiny_kontext, tiny_klein, tiny_qwen])
def test_editors_by_flow_matching_learn_from_pairs(make, pairs, tmp_path, monkeypatch):
    small_qwen_area(monkeypatch)
    base = tmp_path / "base"
    make().save_pretrained(base)
    data = replace(pairs, size=64)
    look = replace(LOOK, data=replace(LOOK.data, size=64))
    config = replace(config_of(data, str(base), max_steps=3, mixed_precision="no"), monitor=look)
    assert any(line.startswith("memory, GiB: ") for line in plan(config))
    out = train(config, tmp_path / "run")
    log = read_log(tmp_path / "run")
    assert log[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert log[2]["distance"] > 0
    assert out.name == "lora"


SCRIPT = """
import os, signal, sys, torch
from pathlib import Path
from rewardedit.cli import quiet
from rewardedit.trainers import dpo
from rewardedit.training.loop import TrainLoop
from tests.trainers.test_dpo import config_of, DataConfig
quiet()
torch.set_num_threads(1)
base, pairs, out, kill_at, resume = sys.argv[1:]
if int(kill_at):
    update = TrainLoop.update
    def killed(loop):
        if loop.step == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)
        update(loop)
    TrainLoop.update = killed
config = config_of(DataConfig("table", pairs, size=32), base, max_steps=4, checkpoint_every=1)
dpo.train(config, Path(out), resume=bool(int(resume)))
"""


@pytest.mark.slow
def test_two_processes_equal_one_and_a_killed_run(pairs, tiny_editor, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run_here(script, tiny_editor, pairs.path, str(tmp_path / "one"), "0", "0")
    launch(script, 2, tiny_editor, pairs.path, str(tmp_path / "two"), "0", "0")
    killed = str(tmp_path / "killed")
    assert run(script, tiny_editor, pairs.path, killed, "2", "0").statuses == [-9]
    assert run(script, tiny_editor, pairs.path, killed, "0", "1").statuses == [0]
    one = read_log(tmp_path / "one")
    assert len(one) == 4
    for name in ("two", "killed"):
        for alone, other in zip(one, read_log(tmp_path / name), strict=True):
            assert other == pytest.approx(alone, rel=1e-4, abs=1e-6), name


def test_the_recipe_resolves():
    config = load_recipe("instruct-pix2pix-dpo", [])[1]
    assert config.preference.beta is None
    assert config.train.lora_rank
