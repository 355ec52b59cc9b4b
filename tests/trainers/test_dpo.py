"""Direct preference optimisation from pairs to the comparison, at tiny width."""

import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from rewardedit import load_editor
from rewardedit.cli.recipes import load_recipe
from rewardedit.data import DataConfig
from rewardedit.diffusion.editor_files import LORA
from rewardedit.files import read_json_lines, read_log
from rewardedit.scorers import load_scorer
from rewardedit.scorers.on_device import OnDevice
from rewardedit.synthesis.candidates import CandidatesConfig
from rewardedit.trainers.dpo import Config, plan, train
from rewardedit.training.group_rollouts import Rollout
from rewardedit.training.memory.blueprint import load_blueprint
from rewardedit.training.memory.peak import Bytes
from rewardedit.training.monitor import MonitorConfig
from rewardedit.training.online import OnlineConfig, with_data
from rewardedit.training.pair_cache import find_pairs
from rewardedit.training.preference_plan import calls_of, memory_of_stages, pairs_line
from rewardedit.training.preferences import PreferenceConfig, RolloutPairs
from rewardedit.training.trainable import TrainConfig
from tests.data.layouts import NOT_AN_IMAGE, write_layout
from tests.editors import small_qwen_area, tiny_klein, tiny_kontext, tiny_qwen
from tests.forks import launch, run, run_here
from tests.models import tiny_pipeline
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
    names = ("preference", "variants", "candidates", "pairs")
    own = {name: settings.pop(name) for name in names if name in settings}
    reward = OnlineConfig("l1", **settings.pop("reward", {}))
    train = TrainConfig(**FAST | settings)
    return Config("x", data, reward, base, train, LOOK, **own)


def stages_of(lines: list[str]) -> list[str]:
    """Names of the stages in a plan's line of memory."""
    (line,) = [line for line in lines if line.startswith("memory, GiB: ")]
    return re.findall(r"([a-z]+) [\d.]+", line)


def online_of(base: str, **settings) -> Config:
    """Two groups of three images an update."""
    reward = {"group_size": 3, "num_inference_steps": 2, **settings.pop("reward", {})}
    data = DataConfig("shapes", limit=6, size=32)
    return config_of(data, base, pairs="rollouts", batch_size=6, reward=reward, **settings)


def test_pairs_of_a_table_are_trained_on(pairs, tiny_editor, tmp_path, monkeypatch):
    # their names are looked at; the test of candidates measures them
    monkeypatch.setattr("rewardedit.training.memory.stages.peak_memory", lambda *_: Bytes(0, 0))
    config = config_of(pairs, tiny_editor)
    lines = plan(config)
    assert "pairs: 8 of 8 sources with their instructions" in lines
    assert "UNet calls an update: 1 with gradient on 8 rows, 1 without on 8 rows" in lines
    assert stages_of(lines) == ["latents", "prompts", "step", "update", "watching", "sweep"], (
        "nothing is scored"
    )
    out = train(config, tmp_path / "run")
    assert out == tmp_path / "run" / "lora"
    first, *_, last = read_log(tmp_path / "run")
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert (first["margin"], first["accuracy"], first["distance"]) == (0, 0.5, 0)
    assert last["distance"] > 0
    assert last["margin"] != 0
    watched = json.loads((tmp_path / "run" / "monitor.json").read_text())
    assert [check["step"] for check in watched["checks"]] == [0, 2]
    assert {"l1", "clip_d", "change_outside"} <= set(watched["checks"][0])
    assert load_editor(str(out)).pipe.get_list_adapters() == {"unet": ["default_0"]}


def test_watched_sources_are_not_trained_on(pairs):
    reward = OnlineConfig({"clip_d": {"checkpoint": "shapes/clip"}})
    config = Config("x", pairs, reward, train=TrainConfig(**FAST), monitor=MonitorConfig(n=2))
    assert pairs_line(with_data(config)) == "pairs: 6 of 6 sources with their instructions"


def test_candidates_are_ranked_by_the_reward(tiny_editor, tmp_path):
    data = DataConfig("shapes", limit=4, size=32)
    candidates = CandidatesConfig((tiny_editor,), num_inference_steps=1, batch_size=4)
    config = config_of(data, tiny_editor, candidates=candidates)
    line = "rows: 4; pairs: the best and the worst edit of each source by l1"
    assert pairs_line(with_data(config)) == line
    ranked = ["candidates", "scores", "latents", "prompts", "step", "update", "watching", "sweep"]
    assert stages_of(plan(config)) == ranked
    found = find_pairs(data, candidates, "l1", 0.0, tmp_path)
    assert len(found) == 4
    for pair in found.pairs:
        assert pair.left.id.endswith("/source"), "nothing has changed less"
        assert torch.equal(pair.left.source, pair.right.source)


def test_ranking_uses_the_scorer_that_is_loaded(tmp_path):
    calls = []
    scorer = load_scorer("l1")
    scorer.register_forward_hook(lambda *_: calls.append(1))
    data = DataConfig("shapes", limit=4, size=32)
    find_pairs(data, CandidatesConfig(), "l1", 0.0, tmp_path, OnDevice(scorer, "cpu"))
    assert calls


def test_an_unreadable_row_does_not_end_a_ranking(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    changes: tuple = ({}, {"edited_image": NOT_AN_IMAGE})
    data = DataConfig("instruct_pix2pix", str(write_layout(tmp_path / "data", "instruct_pix2pix", changes)))
    found = find_pairs(replace(data, size=32), CandidatesConfig(), "l1", 0.0, tmp_path / "run")
    assert [pair.left.id for pair in found.pairs] == ["0/source"]


@pytest.mark.slow
def test_winners_alone_are_fine_tuned_on(pairs, tiny_editor, tmp_path):
    train(config_of(pairs, tiny_editor, variants=("dpo", "winners_only")), tmp_path)
    assert "margin" not in read_log(tmp_path / "variants" / "winners_only")[0]
    online = online_of(tiny_editor, variants=("dpo", "winners_only"))
    train(online, tmp_path / "online")
    assert "margin" not in read_log(tmp_path / "online" / "variants" / "winners_only")[0]


def test_bad_pairs_are_listed_and_stop_a_run(tiny_editor, tmp_path):
    data = write_pairs(tmp_path / "pairs", 4)
    Image.open(tmp_path / "pairs" / "1-winner.png").save(tmp_path / "pairs" / "1-loser.png")
    config = config_of(data, tiny_editor, max_steps=1)
    with pytest.raises(ValueError, match=r"1 of 4 rows cannot be used.*both are the same image"):
        train(config, tmp_path / "run")
    (skipped,) = read_json_lines(tmp_path / "run" / "skipped.jsonl")
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


@pytest.mark.slow  # tests/training/test_preferences.py has the weights
def test_errors_are_weighed_by_the_region_of_both_edits(pairs, tiny_editor, tmp_path):
    logs = {}
    for name, mask, unmasked in (("whole", None, 0.1), ("even", "change", 1.0), ("region", "change", 0.0)):
        reward = {"noise_mask": mask}
        preference = PreferenceConfig(unmasked=unmasked)
        train(config_of(pairs, tiny_editor, reward=reward, preference=preference), tmp_path / name)
        logs[name] = read_log(tmp_path / name)[1]
    assert logs["even"] == pytest.approx(logs["whole"], rel=1e-5, abs=1e-7)
    assert logs["region"]["margin"] != logs["whole"]["margin"]
    regions = np.load(tmp_path / "region" / "regions" / "regions.npy")
    assert regions.shape == (8, 1, 16, 16)


def test_a_given_mask_needs_rows_with_one(pairs, tiny_editor, tmp_path):
    config = config_of(pairs, tiny_editor, reward={"noise_mask": "given"})
    for start in (plan, partial(train, folder=tmp_path / "run")):
        with pytest.raises(ValueError, match="noise_mask: expected rows with masks for given"):
            start(config)
    assert not (tmp_path / "run" / "cache").exists(), "said before the latents are made"


@pytest.mark.usefixtures("unmeasured_memory")
def test_the_best_and_the_worst_of_rollouts_are_trained_on(tiny_editor, tmp_path):
    config = online_of(tiny_editor, preference=PreferenceConfig(reference_every=None, times=2))
    lines = plan(config)
    assert "rows: 6; an update: the best and the worst of 3 images in 2 groups" in lines
    assert (
        "UNet calls an update: 2 with gradient on 4 rows, 2 without on 4 rows, 2 without on 6 rows" in lines
    )
    train(config, tmp_path / "run")
    first, last = read_log(tmp_path / "run")
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert {"reward.l1", "spread.l1", "groups_without_spread", "margin", "accuracy", "distance"} <= set(first)
    assert (first["margin"], last["margin"] != 0, last["distance"] > 0) == (0, True, True)


def test_a_refreshed_reference_is_the_current_editor(tiny_editor, tmp_path):
    """Refreshed before every update, it is what it is compared with."""
    train(online_of(tiny_editor, max_steps=2, preference=PreferenceConfig(reference_every=1)), tmp_path)
    for line in read_log(tmp_path):
        assert (line["margin"], line["distance"]) == (0, 0)
        assert line["loss"] == pytest.approx(math.log(2), abs=1e-6)


def test_groups_without_spread_train_nothing(tiny_editor, tmp_path):
    config = online_of(tiny_editor, reward={"least_spread": 1e3}, max_steps=1)
    out = train(config, tmp_path)
    for line in read_log(tmp_path):
        assert (line["loss"], line["groups_without_spread"]) == (0, 1)
    weights = load_file(out / LORA)
    assert not any(bool(weight.any()) for name, weight in weights.items() if "lora_B" in name)


def test_best_and_worst_are_chosen_within_groups():
    value = torch.tensor([0.3, 2.0, -1.0, 0.0, 0.0, 0.0, 0.5, 0.9, -0.2])
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0])  # no spread; one without a score
    rows = torch.arange(9)
    rollout = Rollout(rows, rows, torch.zeros(9, 1, 2, 2), value, weight, torch.zeros(9, 1), None, {})
    chosen = RolloutPairs.choose(rollout, group_size=3, groups=3, unmasked=0.1)
    kept = chosen.share > 0
    assert chosen.best.rows[kept].tolist() == [1, 6]
    assert chosen.worst.rows[kept].tolist() == [2, 8]
    assert chosen.share.tolist() == [1.5, 0.0, 1.5]


def test_nothing_of_groups_left_out_is_trained_on():
    value = torch.tensor([0.5, 0.5, 0.0, 1.0, 2.0, 0.0])  # no spread, and a third one without a score
    latents = torch.zeros(6, 1, 2, 2)
    latents[[0, 1, 2, 5]] = torch.nan
    rows = torch.arange(6)
    weight = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    rollout = Rollout(rows, rows, latents, value, weight, torch.zeros(6, 1), None, {})
    chosen = RolloutPairs.choose(rollout, group_size=3, groups=2, unmasked=0.1)
    assert chosen.share.tolist() == [0.0, 2.0]
    assert chosen.best.latents.isfinite().all()
    assert chosen.worst.latents.isfinite().all()


def test_the_winners_diffusion_loss_takes_a_call_more(tiny_editor):
    config = online_of(tiny_editor, reward={"guidance_scale": 3.0})
    editor = load_blueprint(tiny_editor, 32)
    plain, both = PreferenceConfig(), PreferenceConfig(diffusion_weight=1.0)
    calls = []
    for loss in (plain, both, replace(both, weight=0.0)):
        calls.append([(call.rows, call.gradient) for call in calls_of(config, loss, editor)[:-1]])
    pair = [(12, True), (12, False)]
    assert calls == [pair, [*pair, (2, True)], [(2, True)]]


@pytest.mark.slow
def test_the_winners_diffusion_loss_takes_memory(tiny_editor):
    config = online_of(tiny_editor, reward={"guidance_scale": 3.0})
    editor = load_blueprint(tiny_editor, 32)
    needed = []
    for loss in (PreferenceConfig(), PreferenceConfig(diffusion_weight=1.0)):
        scorers = {"reward": load_scorer("l1"), "held_out": load_scorer("l1")}
        needed.append(memory_of_stages(replace(config, preference=loss), editor, scorers)["step"])
    assert needed[0] < needed[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preference": PreferenceConfig(unmasked=0.5)}, "unmasked: has no effect without reward.noise_mask"),
        ({"reward": {"group_size": 4}}, "group_size: has no effect on pairs of data"),
        ({"preference": PreferenceConfig(times=2)}, "times: has no effect on pairs of data"),
    ],
)
def test_settings_of_rollouts_are_refused_without_them(settings, message, pairs):
    with pytest.raises(ValueError, match=message):
        config_of(pairs, "shapes/editor", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward": {"updates": 2}}, "updates: has no effect on pairs of rollouts"),
        ({"conditioning_dropout": 0.1}, r"train\.conditioning_dropout: has no effect on pairs of rollouts"),
        ({"preference": PreferenceConfig(min_gap=1.0)}, "min_gap: has no effect on pairs of rollouts"),
        ({"candidates": CandidatesConfig()}, "candidates: has no effect on pairs of rollouts"),
    ],
)
def test_settings_of_given_pairs_are_refused_with_rollouts(settings, message):
    with pytest.raises(ValueError, match=message):
        online_of("shapes/editor", **settings)


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


@pytest.mark.slow
@pytest.mark.parametrize("make", [tiny_klein, tiny_pipeline])
def test_guided_rollouts_are_compared_guided(make, tmp_path):
    base = tmp_path / "base"
    make().save_pretrained(base)
    reward = {"guidance_scale": 3.0, "noise_mask": "change"}
    config = online_of(str(base), reward=reward, mixed_precision="no")
    size = 64 if make is tiny_klein else 32
    look = replace(LOOK, data=replace(LOOK.data, size=size))
    train(replace(config, data=replace(config.data, size=size), monitor=look), tmp_path / "run")
    first, last = read_log(tmp_path / "run")
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert last["distance"] > 0
    assert 0 < first["mask"] <= 1


SCRIPT = """
import os, signal, sys, torch
from pathlib import Path
from rewardedit.cli import quiet
from rewardedit.trainers import dpo
from rewardedit.training.loop import TrainLoop
from tests.trainers.test_dpo import config_of, online_of, DataConfig, PreferenceConfig
quiet()
torch.set_num_threads(1)
base, pairs, out, kill_at, resume, online = sys.argv[1:]
if int(kill_at):
    update = TrainLoop.update
    def killed(loop):
        if loop.step == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)
        update(loop)
    TrainLoop.update = killed
settings = dict(max_steps=4, checkpoint_every=1)
if int(online):
    config = online_of(base, preference=PreferenceConfig(reference_every=2, times=2), **settings)
else:
    config = config_of(DataConfig("table", pairs, size=32), base, **settings)
dpo.train(config, Path(out), resume=bool(int(resume)))
"""


@pytest.mark.slow
def test_accumulated_steps_are_the_same_steps(pairs, tiny_editor, tmp_path):
    logs = []
    for name, micro in (("whole", None), ("parts", 1)):
        train(config_of(pairs, tiny_editor, micro_batch_size=micro), tmp_path / name)
        logs.append(read_log(tmp_path / name))
    for whole, parts in zip(*logs, strict=True):
        # Rounding may give a pair that counts a half, with a margin of 0, to either side.
        assert parts.pop("accuracy") == pytest.approx(whole.pop("accuracy"), abs=0.5 / 4)
        assert parts == pytest.approx(whole, rel=1e-3, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("online", ["0", "1"])
def test_two_processes_equal_one_and_a_killed_run(online, pairs, tiny_editor, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run_here(script, tiny_editor, pairs.path, str(tmp_path / "one"), "0", "0", online)
    launch(script, 2, tiny_editor, pairs.path, str(tmp_path / "two"), "0", "0", online)
    killed = str(tmp_path / "killed")
    assert run(script, tiny_editor, pairs.path, killed, "2", "0", online).statuses == [-9]
    assert run(script, tiny_editor, pairs.path, killed, "0", "1", online).statuses == [0]
    one = read_log(tmp_path / "one")
    assert len(one) == 4
    for name in ("two", "killed"):
        for alone, other in zip(one, read_log(tmp_path / name), strict=True):
            assert other == pytest.approx(alone, rel=1e-3, abs=2e-4), name


def test_the_recipe_resolves():
    config = load_recipe("instruct-pix2pix-dpo", [])[1]
    assert config.preference.beta is None
    assert config.train.lora_rank
