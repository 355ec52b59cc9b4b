"""Flow-GRPO: ratios and divergences of the first updates, what its gradient raises, resumed runs, walks on
InstructPix2Pix and on an editor by flow matching.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rewardedit import EditBatch, Scores, load_editor
from rewardedit.cli.recipes import load_recipe
from rewardedit.config import build
from rewardedit.diffusion.stochastic import NoiseConfig, Transition
from rewardedit.files import read_log
from rewardedit.prepared import Prepared
from rewardedit.scorers import Scorer
from rewardedit.trainers.flow_grpo import (
    Config,
    Images,
    NoisyRollouts,
    clipped_loss,
    plan,
    train,
    tune,
)
from rewardedit.training.groups import group_advantages
from rewardedit.training.monitor import HackingMonitor, fixed_prompts
from rewardedit.training.online import OnlineInputs, load_rewards, prepare, with_data
from rewardedit.training.trainable import TrainConfig
from tests.editors import tiny_kontext
from tests.forks import launch, run, run_here
from tests.online import REWARD, settings

LORA = "pytorch_lora_weights.safetensors"
NOISE = NoiseConfig("ddim", 0.7, None, (0.0, 1.0))
TWO_UPDATES = replace(REWARD, updates=2, num_inference_steps=3)


class Indifferent(Scorer):
    """Finds all edits alike."""

    range = (0.0, 1.0)
    family = "indifferent"

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        return Scores.make(torch.ones(len(batch)))


class Quiet:
    """A monitor that sees nothing."""

    def check(self, *_: Any) -> bool:
        return False


def config_of(base: str, train: dict[str, Any] | None = None, **changes: Any) -> Config:
    steps = {"lr_warmup_steps": 0, **(train or {})}
    return Config(**settings(base, steps, **{"reward": TWO_UPDATES, "noise": NOISE, **changes}))


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "expected"),
    [
        (0.0, 2.0, -2.0),
        (0.1, 2.0, -2.1),  # a better image's ratio counts to 1 + c
        (-0.1, 2.0, -2.0 * 0.9048374),
        (0.1, -2.0, 2.0 * 1.1051709),
        (-0.1, -2.0, 1.9),  # a worse one's to 1 − c
    ],
)
def test_the_clipped_loss_by_hand(log_ratio, advantage, expected):
    loss = clipped_loss(torch.tensor([log_ratio]), torch.tensor([advantage]), 0.05)
    assert float(loss) == pytest.approx(expected)
    moved = torch.tensor([log_ratio], requires_grad=True)
    clipped_loss(moved, torch.tensor([advantage]), 0.05).backward()
    assert moved.grad is not None
    assert (moved.grad == 0) == (expected in (-2.1, 1.9))


@pytest.mark.parametrize(("kl_weight", "optimum"), [(0.0, 0.8), (1e4, 0.0)])
def test_a_gaussian_policy_finds_the_best_mean(kl_weight, optimum):
    """Reward −(x − 0.8)² of draws from N(μ, 0.1²); a heavy divergence keeps μ at the reference's 0."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.zeros(1, 1, 1, 1, requires_grad=True)
    optimizer = torch.optim.Adam([mean], lr=0.02)
    for _ in range(150):
        kept = mean.detach().expand(16, 1, 1, 1)
        x = kept + 0.1 * torch.randn(16, 1, 1, 1, generator=generator)
        reward = -(x.flatten() - 0.8).square().double()
        advantage = group_advantages(reward[None, None], torch.ones(1, dtype=torch.float64), "group").value
        before = Transition(kept, 0.1).log_prob(x)
        for _ in range(2):
            moves = Transition(mean.expand(16, 1, 1, 1), 0.1)
            loss = clipped_loss(moves.log_prob(x) - before, advantage[0].float(), 0.2)
            divergence = moves.divergence(Transition(torch.zeros(16, 1, 1, 1), 0.1))
            optimizer.zero_grad()
            (loss + kl_weight * divergence).mean().backward()
            optimizer.step()
    assert float(mean.detach()) == pytest.approx(optimum, abs=0.06)


@pytest.fixture(scope="module")
def inputs(tiny_editor, tmp_path_factory) -> OnlineInputs:
    """Inputs of all runs here, with the rows' masks."""
    folder = tmp_path_factory.mktemp("inputs")
    return prepare(with_data(config_of(tiny_editor, reward=replace(REWARD, noise_mask="given"))), folder)


@pytest.fixture(scope="module")
def whole(tiny_editor, inputs, tmp_path_factory) -> Path:
    """The folder of an unbroken run: two rollouts of two updates each."""
    folder = tmp_path_factory.mktemp("whole")
    tune(config_of(tiny_editor, {"max_steps": 4}, kl_weight=0.1), inputs, Quiet(), folder)
    return folder


def test_ratios_begin_at_one_and_divergences_at_zero(whole):
    log = read_log(whole)
    assert [line["ratio_change"] == 0 for line in log] == [True, False, True, False]
    assert all(line["ratio"] == 1 for line in (log[0], log[2]))
    assert [line["clipped"] > 0 for line in log] == [False, True, False, True]
    assert log[0]["kl"] == 0
    assert all(line["kl"] > 0 for line in log[1:])
    assert {"reward", "spread.l1", "groups_without_spread"} <= log[0].keys()


def test_a_run_resumed_in_the_middle_of_a_rollout_equals_it(whole, tiny_editor, inputs, tmp_path):
    for steps in (3, 4):
        config = config_of(tiny_editor, {"max_steps": steps}, kl_weight=0.1)
        tune(config, inputs, Quiet(), tmp_path, resume=steps == 4)
    fields = [[set(line) for line in read_log(path)] for path in (tmp_path, whole)]
    assert fields[0] == fields[1], "the rollout that is made again is not counted twice"
    for key in ("loss", "kl", "ratio_change"):
        found, expected = ([line[key] for line in read_log(path)] for path in (tmp_path, whole))
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-9), key
    found, expected = (load_file(path / "lora" / LORA) for path in (tmp_path, whole))
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.slow  # tests/trainers/test_nft.py has rewards without spread too
def test_equal_rewards_train_nothing(tiny_editor, inputs, tmp_path):
    watching = replace(inputs.watching, reward=Indifferent())
    out = tune(
        config_of(tiny_editor, {"max_steps": 1}), replace(inputs, watching=watching), Quiet(), tmp_path
    )
    line = read_log(tmp_path)[0]
    assert (line["loss"], line["groups_without_spread"]) == (0, 1)
    ups = [weight for name, weight in load_file(out / LORA).items() if "lora.up" in name or "_B" in name]
    assert ups
    assert not any(bool(weight.any()) for weight in ups)


@pytest.mark.parametrize("noise_mask", [None, "given"])
def test_the_better_of_two_becomes_likelier(noise_mask, tiny_editor, inputs, tmp_path, monkeypatch):
    made: list[NoisyRollouts] = []
    init = NoisyRollouts.__init__
    monkeypatch.setattr(
        NoisyRollouts, "__init__", lambda self, *values: (made.append(self), init(self, *values))[1]
    )
    reward = replace(REWARD, group_size=2, num_inference_steps=3, noise_mask=noise_mask, rollout_batch_size=1)
    config = config_of(tiny_editor, {"max_steps": 1, "batch_size": 2, "lr": 1e-4}, reward=reward)
    tune(config, inputs, Quiet(), tmp_path)

    rollouts = made[0]
    assert rollouts.current is not None
    assert rollouts.rollouts.sizes["denoise"].rows == 2, "not less than a micro-batch"
    images = Images.of(rollouts.current, torch.device("cpu"))
    assert (images.inside is None) == (noise_mask is None)
    cond = inputs.prompts.conditioning(images.rows, torch.device("cpu"))
    gain = torch.zeros(2)
    for i, index in enumerate(rollouts.window):
        moves = rollouts.sampler.replay(rollouts.denoiser, index, images.states[:, i], cond)
        gain += moves.log_prob(images.states[:, i + 1], images.inside).detach() - images.log_probs[:, i]
    assert images.advantage.abs().min() > 0.5
    assert (gain * images.advantage > 0).all()


@pytest.mark.slow
def test_a_run_ends_with_a_lora_that_was_watched(tiny_editor, tmp_path):
    config = config_of(tiny_editor)
    out = train(config, tmp_path / "run")
    looks = json.loads((tmp_path / "run" / "monitor.json").read_text())
    assert [look["step"] for look in looks["checks"]] == [0, 2]
    prompts = fixed_prompts(with_data(config).data, config.monitor)
    unguided = HackingMonitor(*prompts, load_rewards(config), tmp_path, config.monitor, 1, None, (1.0, 1.0))
    expected = unguided.evaluate(load_editor(tiny_editor))
    assert looks["checks"][0]["l1"] == pytest.approx(expected["l1"], abs=1e-6), "as rollouts are"
    assert looks["sweep"][0]["l1"] == pytest.approx(looks["checks"][0]["l1"], abs=1e-6)
    assert looks["sweep"][-1]["l1"] != looks["sweep"][0]["l1"]
    assert load_editor(str(out)).pipe.get_list_adapters() == {"unet": ["default_0"]}


@pytest.mark.slow
def test_the_plan_counts_calls_of_the_denoiser(tiny_editor):
    lines = plan(config_of(tiny_editor, {"micro_batch_size": 3}, kl_weight=0.1))
    assert "UNet calls an update: 4 with gradient on 3 rows, 10 without on 3 rows" in lines
    assert any(line.startswith("memory, GiB: ") for line in lines), lines


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise": NoiseConfig("ddim", 0.0)}, "noise_level: expected above 0, or nothing is explored"),
        ({"clip_range": 0.0}, "clip_range: expected above 0"),
        ({"kl_weight": -1.0}, "kl_weight: expected at least 0"),
        ({"noise": NoiseConfig("ddim", 0.7, 3)}, "noise_steps: expected 1 to 2"),
        ({"train": TrainConfig(lora_rank=2, min_snr=5.0, batch_size=6)}, r"train\.min_snr: has no effect"),
        ({"reward": replace(REWARD, group_size=4)}, r"train\.batch_size: expected whole groups of 4"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message, tiny_editor):
    with pytest.raises(ValueError, match=message):
        replace(config_of(tiny_editor), **changes)


def test_some_noise_settings_leave_the_others_alone():
    values = {"name": "x", "data": {"name": "shapes"}, "reward": {"scorer": "adiee"}}
    config = build(Config, {**values, "noise": {"sampler": "ddim"}, "train": {"lr": 1e-4}})
    assert config.noise == NoiseConfig("ddim", noise_steps=2)
    assert config.train.lora_rank == 32


def test_a_sampler_that_does_not_fit_is_refused_early(tiny_editor, tmp_path):
    config = config_of(tiny_editor, noise=NoiseConfig("sde"))
    with pytest.raises(ValueError, match="sampler: expected ddim for InstructPix2Pix"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


SMALL = [
    "data={name: shapes, limit: 12, size: 64}",
    "reward.scorer=l1",
    "reward.group_size=2",
    "reward.num_inference_steps=3",
    "monitor={held_out: {clip_i: {checkpoint: shapes/clip}}, n: 2, num_inference_steps: 2}",
    "train.max_steps=2",
    "train.batch_size=4",
    "train.micro_batch_size=2",
    "train.lora_rank=2",
    "train.lora_alpha=4",
    "train.lr=1e-2",
    "train.lr_warmup_steps=0",
    "train.log_every=1",
    "train.tracker=none",
    "train.mixed_precision=no",
    "train.checkpoint_every=1",
    "train.validate_every=2",
    "train.validation_rows=1",
    "noise.noise_between=[0,1]",
    "evaluate=null",
]


@pytest.mark.slow  # its parts are tested by family
@pytest.mark.parametrize("changes", [["kl_weight=0.1"], ["noise.sampler=cps", "reward.noise_mask=given"]])
def test_the_kontext_recipe_walks_to_the_sweep(changes, tmp_path):
    tiny_kontext().save_pretrained(tmp_path / "base")
    changed = [f"base={tmp_path / 'base'}", *SMALL, *changes]
    config = load_recipe("kontext-flow-grpo", changed)[1]
    assert any(line.startswith("memory, GiB: ") for line in plan(config))
    out = train(config, tmp_path / "run")
    log = read_log(tmp_path / "run")
    assert [line["ratio_change"] == 0 for line in log] == [True, False]
    sweep = json.loads((tmp_path / "run" / "monitor.json").read_text())["sweep"]
    assert sweep[-1]["l1"] != sweep[0]["l1"]
    assert load_editor(str(out)).pipe.get_list_adapters() == {"transformer": ["default_0"]}


SCRIPT = """
import os, signal, sys, torch
from pathlib import Path
from rewardedit.cli import quiet
from rewardedit.trainers.flow_grpo import train
from rewardedit.training.loop import TrainLoop
from tests.trainers.test_flow_grpo import config_of
quiet()
torch.set_num_threads(1)
base, out, kill_at, resume, steps = sys.argv[1:]
if int(kill_at):
    update = TrainLoop.update
    def killed(loop):
        if loop.step == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)
        update(loop)
    TrainLoop.update = killed
settings = dict(max_steps=int(steps), micro_batch_size=3, gradient_checkpointing=True)
train(config_of(base, settings, kl_weight=0.1), Path(out), resume=bool(int(resume)))
"""


@pytest.mark.slow
def test_a_run_killed_within_a_rollout_equals_it(tiny_editor, tmp_path):
    """In the second update of the second rollout, of two updates each."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    whole, killed = str(tmp_path / "whole"), str(tmp_path / "killed")
    run_here(script, tiny_editor, whole, "0", "0", "4")
    assert run(script, tiny_editor, killed, "3", "0", "4").statuses == [-9]
    assert not list((tmp_path / "killed").rglob(LORA))
    assert run(script, tiny_editor, killed, "0", "1", "4").statuses == [0]
    one, other = (read_log(tmp_path / name) for name in ("whole", "killed"))
    assert [line["step"] for line in other] == [line["step"] for line in one] == [1, 2, 3, 4]
    for key in ("loss", "reward", "kl", "ratio_change"):
        found, expected = ([line[key] for line in log if key in line] for log in (other, one))
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-9), key
    found, expected = (load_file(next((tmp_path / name).rglob(LORA))) for name in ("killed", "whole"))
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.slow  # tests/training/test_online.py divides the same groups
def test_two_processes_equal_one(tiny_editor, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run_here(script, tiny_editor, str(tmp_path / "one"), "0", "0", "3")
    launch(script, 2, tiny_editor, str(tmp_path / "two"), "0", "0", "3")
    one, two = (read_log(tmp_path / name) for name in ("one", "two"))
    assert len(one) == 3
    for key in ("loss", "reward", "kl", "ratio_change"):
        lines = ([line[key] for line in log if key in line] for log in (two, one))
        found, expected = lines
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-7), key
