"""Reward feedback learning: its losses, runs of every variant, two processes as one,
and what watches over it.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import DDPMScheduler, EulerDiscreteScheduler, PNDMScheduler
from torch.autograd import gradcheck

from rewardedit import EditBatch, RewardPrompt, Scores, load_editor, load_scorer
from rewardedit.cli import main
from rewardedit.config import build
from rewardedit.data import DataConfig
from rewardedit.diffusion.editors import SamplingConfig
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.diffusion.saving import save_editor
from rewardedit.files import read_log, remove
from rewardedit.prepared import Prepared
from rewardedit.reward_prompt import RewardScale
from rewardedit.scorers import Scorer
from rewardedit.shapes import Shapes
from rewardedit.trainers.refl import Config, TrainConfig, plan, train, variant_reward
from rewardedit.trainers.reward_conditioned import RelabelConfig
from rewardedit.training import interpolation
from rewardedit.training import reward as reward_of_training
from rewardedit.training.interpolation import WEIGHTS
from rewardedit.training.latents import LatentCache
from rewardedit.training.monitor import HackingMonitor, MonitorConfig, fixed_prompts
from rewardedit.training.reward import RewardConfig, require_effect, reward_loss
from rewardedit.training.rollouts import rollout_scheduler
from tests.forks import launch, run_here
from tests.shards import read_shards

DATA = DataConfig("shapes", limit=16, size=32)
FAST = {
    "max_steps": 2,
    "batch_size": 4,
    "lr_warmup_steps": 1,
    "lr": 1e-3,
    "log_every": 1,
    "tracker": "none",
    "ema": None,
    "validation_rows": 1,
}
LOOK = MonitorConfig(n=2, num_inference_steps=1, held_out={"clip_d": {"checkpoint": "shapes/clip"}})
OWN = {"name": "x", "data": {"name": "shapes"}, "base": "shapes/editor"}
CLIP_D = {"clip_d": {"checkpoint": "shapes/clip"}}
REWARD = RewardConfig("l1", num_inference_steps=(3, 4), weight=0.1)
SCALE = RewardScale((0.0, 0.5, 0.8, 1.0))


class Flat(Scorer):
    """Has no gradient, and no family."""


class Plain(Scorer):
    """Has no family."""

    differentiable = True


@pytest.mark.parametrize(("kind", "scale"), [("hinge", None), ("hinge", SCALE), ("linear", None)])
def test_the_losses_have_the_right_gradients_and_leave_invalid_rows_out(kind, scale):
    score = torch.tensor([0.2, 0.6, torch.nan, 0.9], dtype=torch.float64)
    valid = torch.tensor([True, True, False, True])

    def loss(kept: torch.Tensor) -> torch.Tensor:
        return reward_loss(torch.cat([kept[:2], score[2:3], kept[2:]]), valid, kind, 10.0, scale)

    kept = score[valid].requires_grad_(True)
    assert gradcheck(loss, kept)
    loss(kept).backward()
    assert kept.grad is not None
    assert (kept.grad < 0).all()
    assert reward_loss(score, torch.zeros(4, dtype=torch.bool), kind) == 0


def test_the_hinge_by_hand():
    score = torch.tensor([9.0, 12.0, 4.0])
    valid = torch.ones(3, dtype=torch.bool)
    assert reward_loss(score, valid, "hinge", 10.0) == pytest.approx((1 + 0 + 6) / 3)
    assert reward_loss(score, valid, "linear") == pytest.approx(-25 / 3)


def test_imagereward_standardises_what_its_hinge_looks_at(tiny_editor, tmp_path, monkeypatch):
    """A score of its own units lies above 2 on all rows: relu(2 − s) would be zero for each of them."""
    reward = RewardConfig("l1", preset="imagereward")
    scores = [20.0, 30.0, float("nan"), 40.0]
    with pytest.raises(
        ValueError,
        match=r"relu\(2 − s\) is zero for all 4 rows .* least s is 20, .* take reward.scale=standard",
    ):
        require_effect(reward, None, scores)
    require_effect(reward, RewardScale.standard(scores), scores)
    nothing = RewardConfig(
        "l1", preset="imagereward", scale="none", hinge=0.0, num_inference_steps=(3,), stop_before_end=(0, 0)
    )
    monkeypatch.setattr(
        "rewardedit.training.reward_scale.EFFECT_CHECK_ROWS", 5
    )  # unmapped, a few rows say enough
    with pytest.raises(ValueError, match="zero for all 5 rows that were scored"):
        train(Config("x", DATA, nothing, tiny_editor, TrainConfig(**FAST), LOOK), tmp_path / "nothing")
    config = trained(
        tiny_editor,
        tmp_path / "run",
        replace(reward, num_inference_steps=(3,), stop_before_end=(0, 0), weight=1.0, diffusion_weight=0.0),
        max_steps=1,
    )
    log = read_log(tmp_path / "run")[0]
    found = read_shards(tmp_path / "run" / "relabelled")
    scale = RewardScale.standard([row["score"] for row in found])
    each = 2 - scale(torch.tensor([log["reward"]]), clamp=False)
    assert config.reward.scale == "standard"
    assert log["loss"] == pytest.approx(float(each), rel=1e-3), "no row reaches 2 standard deviations here"


def test_rollouts_are_drawn_from_what_is_asked():
    drawn = {
        RewardConfig("l1").rollout(torch.Generator().manual_seed(s)).num_inference_steps for s in range(200)
    }
    assert drawn == set(range(10, 101, 5))
    late = [
        RewardConfig("l1", preset="imagereward").rollout(torch.Generator().manual_seed(s)) for s in range(100)
    ]
    assert {how.stop or how.num_inference_steps for how in late} == set(range(31, 41))
    early = RewardConfig("l1", num_inference_steps=(10, 20), stop_before_end=(9, 19), scored="pred_x0")
    stops = {
        (how.num_inference_steps, how.stop or 0)
        for how in (early.rollout(torch.Generator().manual_seed(s)) for s in range(200))
    }
    assert stops == {(10, 1), *((20, stop) for stop in range(1, 12))}
    assert early.mean_steps == pytest.approx((1 + 6) / 2)
    assert {how.scored for how in late} == {"pred_x0"}
    assert RewardConfig("l1", preset="draft", grad_steps=4).rollout(torch.Generator()).grad_steps == 4
    short = RewardConfig("l1", num_inference_steps=(10,), stop_before_end=(2, 2), grad_steps=20)
    assert short.rollout(torch.Generator()).grad_steps == 8, "no more than the steps that are taken"


@pytest.mark.parametrize(
    ("preset", "steps", "left_out", "scored", "loss", "weight"),
    [
        ("adiee", range(10, 101, 5), (1, 1), "prev_sample", ("hinge", 10), 1e-3),
        ("imagereward", (40,), (0, 9), "pred_x0", ("hinge", 2), 1e-3),
        ("draft", (50,), (0, 0), "prev_sample", ("linear", 0), 1),
    ],
)
def test_presets_are_those_of_the_papers(preset, steps, left_out, scored, loss, weight):
    found = RewardConfig("l1", preset=preset)
    assert (found.num_inference_steps, found.stop_before_end) == (tuple(steps), left_out)
    assert (found.scored, (found.loss, found.hinge), found.weight) == (scored, loss, weight)


@pytest.mark.parametrize("left_out", [(2, 1), (-1, 1), (3, 3)])
def test_a_rollout_takes_at_least_one_step_and_leaves_out_no_fewer_than_none(left_out):
    with pytest.raises(ValueError, match="stop_before_end: expected at least one step"):
        RewardConfig("l1", num_inference_steps=(3, 4), stop_before_end=left_out)


def trained(base: str, folder, reward: RewardConfig = REWARD, **settings) -> Config:
    config = Config("x", DATA, reward, base, TrainConfig(**{**FAST, **settings}), LOOK)
    train(config, folder)
    return config


@pytest.mark.slow
def test_arms_run_and_are_compared(tiny_editor, tmp_path):
    words = [
        f"base={tiny_editor}",
        "data.limit=12",
        "train.max_steps=2",
        "train.batch_size=4",
        "train.lr_warmup_steps=1",
        "train.validate_every=1",
        "train.mixed_precision=no",
    ]
    words += [
        "variants=[refl,pairs_only]",
        "reward.num_inference_steps=[2]",
        "reward.stop_before_end=[0,1]",
        "monitor.n=2",
        "monitor.num_inference_steps=1",
        "train.validation_rows=1",
        "evaluate.num_inference_steps=[1]",
        "evaluate.guidance_scale=[1.0,1.15]",
        "evaluate.n=7",
        "evaluate.val_n=3",
        "evaluate.autocast=false",
        "train.tracker=none",
    ]
    out = tmp_path / "run"
    assert main(["train", "shapes/refl", *words, "--out", str(out)]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert {"base", "refl", "pairs_only", "relative_gain", "ci95", "ci95_vs_pairs_only"} <= set(
        metrics["oracle"]
    )
    assert set(metrics["rewards"]["refl"]) == {"adiee", "ssim"}
    chosen = metrics["settings"]["refl"]
    kept = SamplingConfig(chosen["steps"], chosen["text_guidance"], chosen["image_guidance"])
    assert load_editor(str(out)).settings == kept
    watched = json.loads((out / "monitor.json").read_text())
    assert [look["step"] for look in watched["checks"]] == [0, 1, 2]
    assert {
        "adiee",
        "ssim",
        "oracle",
        "copied",
        "saturation",
        "edges",
        "entropy",
        "change_outside",
    } <= set(watched["checks"][0])
    assert [row["scale"] for row in watched["sweep"]] == [0, 1]
    assert watched["sweep"][0]["ssim"] == pytest.approx(watched["checks"][0]["ssim"], abs=1e-4)
    assert "Fixed prompts by step" in (out / "monitor.html").read_text()
    assert "reward" in read_log(out)[0]
    assert "reward" not in read_log(out / "variants" / "pairs_only")[0]


def test_settings_that_would_change_nothing_are_refused():
    with pytest.raises(ValueError, match="labels: give scorer and batch_size alone"):
        Config("x", DATA, REWARD, monitor=LOOK, labels=RelabelConfig("l1", prompt="hive"))
    with pytest.raises(ValueError, match="image_guidance_scale: has no effect without guidance_scale"):
        RewardConfig("l1", image_guidance_scale=1.5)


def test_an_arm_leaves_out_what_it_is_compared_for():
    config = Config("x", DATA, REWARD, monitor=LOOK)
    assert variant_reward(config, "refl") == REWARD
    assert (
        variant_reward(config, "pairs_only").weight,
        variant_reward(config, "pairs_only").diffusion_weight,
    ) == (0, 1)
    assert (
        variant_reward(config, "reward_only").weight,
        variant_reward(config, "reward_only").diffusion_weight,
    ) == (0.1, 0)
    for k in (1, 2, 4):
        draft = variant_reward(config, f"draft_{k}")
        assert (draft.grad_steps, draft.scored, draft.stop_before_end) == (k, "prev_sample", (0, 0))
    predicted = variant_reward(config, "predicted_x0")
    assert (predicted.grad_steps, predicted.scored, predicted.stop_before_end) == (1, "pred_x0", (0, 9))


def test_the_reward_rises(tiny_editor, tmp_path):
    reward = RewardConfig(
        "l1",
        num_inference_steps=(2,),
        stop_before_end=(0, 0),
        loss="linear",
        weight=1.0,
        diffusion_weight=0.0,
        scale="none",
    )
    trained(tiny_editor, tmp_path, reward, max_steps=8, lr=1e-2)
    rewards = [line["reward"] for line in read_log(tmp_path)]
    assert sum(rewards[-4:]) > sum(rewards[:4])


def test_a_lora_with_an_anchor_leaves_the_base_alone(tiny_editor, tmp_path, monkeypatch):
    monkeypatch.setattr(interpolation, "WEIGHTS", WEIGHTS)
    trained(
        tiny_editor,
        tmp_path,
        RewardConfig("l1", num_inference_steps=(3,), reference_weight=0.5),
        lora_rank=2,
        max_steps=3,
    )
    log = read_log(tmp_path)
    assert log[0]["distance"] == pytest.approx(0, abs=1e-8)
    assert log[2]["distance"] > 0
    assert (tmp_path / "lora" / "pytorch_lora_weights.safetensors").is_file()
    watched = json.loads((tmp_path / "monitor.json").read_text())
    assert [row["scale"] for row in watched["sweep"]] == [0, 0.25, 0.5, 0.75, 1]
    assert watched["sweep"][0]["l1"] == pytest.approx(watched["checks"][0]["l1"], abs=1e-6)
    assert watched["sweep"][4]["l1"] == pytest.approx(watched["checks"][-1]["l1"], abs=1e-6)
    assert watched["sweep"][4]["l1"] != watched["sweep"][0]["l1"]


@pytest.fixture(scope="module")
def whole(tiny_editor, tmp_path_factory) -> Path:
    """An unbroken run of four steps."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    trained(tiny_editor, folder, max_steps=4, checkpoint_every=2)
    return folder


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_log(folder)]


def test_accumulated_and_checkpointed_steps_are_the_same_steps(whole, tiny_editor, tmp_path):
    checkpointed = replace(REWARD, gradient_checkpointing=("vae", "scorer"))
    trained(tiny_editor, tmp_path / "run", checkpointed, gradient_checkpointing=True, micro_batch_size=1)
    assert losses(tmp_path / "run") == pytest.approx(losses(whole)[:2], rel=1e-5)


def test_a_resumed_run_equals_an_unbroken_one(whole, tiny_editor, tmp_path):
    """The run goes on after the loss of all that its last two steps have left."""
    run = shutil.copytree(whole, tmp_path / "run")
    for name in ("monitor.json", "made_of.json", "pipeline", "checkpoints/step-000004"):
        remove(run / name)
    log = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(log[:2]))
    settings = {**FAST, "max_steps": 4, "checkpoint_every": 2}
    train(Config("x", DATA, REWARD, tiny_editor, TrainConfig(**settings), LOOK), run, resume=True)
    assert losses(run) == pytest.approx(losses(whole), rel=1e-5)
    assert (run / "pipeline").is_dir()


@pytest.mark.slow  # tests/training/test_finetune.py divides the same rows
def test_two_processes_equal_one(tiny_editor, tmp_path, monkeypatch):
    monkeypatch.setattr(interpolation, "WEIGHTS", WEIGHTS)  # as the launched processes have them
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from rewardedit.cli import quiet\n"
        "from rewardedit.data import DataConfig\n"
        "from rewardedit.training.reward import RewardConfig\n"
        "from rewardedit.training.monitor import MonitorConfig\n"
        "from rewardedit.trainers.refl import Config, TrainConfig, train\n"
        "quiet()\n"
        "torch.set_num_threads(1)\n"
        "settings = dict(max_steps=3, gradient_checkpointing=True, lr_warmup_steps=1, lr=1e-3)\n"
        "settings |= dict(log_every=1, tracker='none', ema=None)\n"
        "rollouts = dict(num_inference_steps=(2, 3), gradient_checkpointing=('vae',))\n"
        "reward = RewardConfig('l1', weight=0.1, **rollouts)\n"
        "settings = TrainConfig(batch_size=4, **settings)\n"
        "other = {'clip_d': {'checkpoint': 'shapes/clip'}}\n"
        "look = MonitorConfig(n=3, batch_size=2, num_inference_steps=1, held_out=other)\n"
        "data = DataConfig('shapes', limit=16, size=32)\n"
        "two = ('refl', 'pairs_only')\n"
        "config = Config('x', data, reward, sys.argv[1], settings, look, variants=two)\n"
        "train(config, Path(sys.argv[2]))\n"
    )
    run_here(script, tiny_editor, str(tmp_path / "one"))
    launch(script, 2, tiny_editor, str(tmp_path / "two"))
    one, two = (read_log(tmp_path / name) for name in ("one", "two"))
    assert len(one) == 3
    for key in ("loss", "reward"):
        assert [line[key] for line in two] == pytest.approx([line[key] for line in one], rel=1e-5), key
    one, two = (json.loads((tmp_path / name / "monitor.json").read_text()) for name in ("one", "two"))
    for alone, divided in zip(one["checks"] + one["sweep"], two["checks"] + two["sweep"], strict=True):
        assert divided.pop("flag") == alone.pop("flag")
        assert divided == pytest.approx(alone, rel=1e-3, abs=1e-5)


def test_a_flag_stops_where_asked_and_the_best_comes_back(tiny_editor, tmp_path):
    scorers = {
        "reward": load_scorer("l1"),
        "held out": load_scorer(lambda batch: -batch.edited.mean((1, 2, 3))),
    }
    config = MonitorConfig(n=6, num_inference_steps=1, stop=True)
    monitor = HackingMonitor(*fixed_prompts(DATA, config), scorers, tmp_path, config, checks=2)
    editor = load_editor(tiny_editor)
    assert not monitor.check(editor, 0)
    assert (monitor.best_folder / "model_index.json").is_file()
    assert monitor.base is not None
    monitor.base["reward"], monitor.base["held out"] = (
        monitor.base["reward"] - 1,
        monitor.base["held out"] + 1,
    )
    assert monitor.check(editor, 1)
    assert monitor.stopped
    resumed = HackingMonitor(*fixed_prompts(DATA, config), scorers, tmp_path, config, checks=2)
    assert resumed.best == monitor.best


class Blind(Scorer):
    """Mean brightness while it `sees`; all rows are invalid while it does not."""

    range = (0.0, 1.0)
    sees = True

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        reason = None if self.sees else ["no object is found" for _ in range(len(batch))]
        return Scores.make(batch.edited.mean((1, 2, 3)), reason=reason)


def test_a_look_without_scores_has_no_mean_and_is_not_the_best(tiny_editor, tmp_path):
    held_out = Blind()
    scorers = {"reward": load_scorer("l1"), "held out": held_out}
    config = MonitorConfig(n=4, num_inference_steps=1, stop=True)
    prompts = fixed_prompts(DATA, config)
    monitor = HackingMonitor(*prompts, scorers, tmp_path, config, checks=3)
    editor = load_editor(tiny_editor)
    held_out.sees = False
    with pytest.raises(ValueError, match=r"monitor\.held_out: scores none of the 4 .* no object is found"):
        monitor.check(editor, 0)
    held_out.sees = True
    monitor.check(editor, 0)
    best = monitor.best
    held_out.sees = False
    assert not monitor.check(editor, 1)
    assert monitor.best == best
    assert [look["held out"] for look in read_log(tmp_path, "monitor.jsonl")] == [best, None]
    assert HackingMonitor(*prompts, scorers, tmp_path, config, checks=3).best == best
    monitor.report([])
    assert "NaN" not in (tmp_path / "monitor.json").read_text()


class Bright(Scorer):
    """Mean brightness."""

    range = (0.0, 1.0)
    differentiable = True
    family = "bright"

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        return Scores.make(batch.edited.mean((1, 2, 3)))


class Dark(Scorer):
    """The opposite of `Bright`, of another family."""

    range = (-1.0, 0.0)
    differentiable = True
    family = "dark"

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        return Scores.make(-batch.edited.mean((1, 2, 3)))


@pytest.mark.parametrize("lora_rank", [pytest.param(None, marks=pytest.mark.slow), 2])
def test_a_run_that_goes_for_the_reward_alone_is_stopped_and_taken_back(lora_rank, tiny_editor, tmp_path):
    here = "tests.trainers.test_refl"
    reward = RewardConfig(
        f"{here}:Bright",
        num_inference_steps=(2,),
        stop_before_end=(0, 0),
        loss="linear",
        weight=10.0,
        diffusion_weight=0.0,
        scale="none",
    )
    look = MonitorConfig(n=8, num_inference_steps=2, held_out=f"{here}:Dark", stop=True)
    settings = TrainConfig(
        **{**FAST, "max_steps": 30, "lr": 1e-2, "validate_every": 5, "lora_rank": lora_rank}
    )
    out = train(Config("x", DATA, reward, tiny_editor, settings, look), tmp_path / "run")
    looks = json.loads((tmp_path / "run" / "monitor.json").read_text())["checks"]
    assert looks[-1]["step"] < 30
    assert looks[-1]["flag"]
    samples = Shapes("test").batch(0, 2)
    was, now = (
        load_editor(str(name))(
            samples.source, samples.instruction, range(2), settings=SamplingConfig(2, 1.0, 1.0)
        )
        for name in (tiny_editor, out)
    )
    torch.testing.assert_close(now, was, rtol=0, atol=1e-4)


@pytest.mark.usefixtures("unmeasured_memory")
def test_a_conditioned_editor_goes_on_with_its_labels(tiny_editor, tmp_path, monkeypatch):
    editor = load_editor(tiny_editor)
    prompt = RewardPrompt.adiee(scale=RewardScale((0.0, 0.5, 1.0)))
    save_editor(replace(editor, prompt=prompt), tmp_path / "base" / "pipeline")
    base = str(tmp_path / "base")
    fast = TrainConfig(**FAST, lora_rank=2)
    with pytest.raises(ValueError, match=r"labels\.scorer"):
        train(Config("x", DATA, REWARD, base, fast, LOOK), tmp_path / "none")
    config = Config(
        "x", DATA, REWARD, base, fast, LOOK, labels=RelabelConfig({"clip_d": {"checkpoint": "shapes/clip"}})
    )
    assert any("all files and models are there" in line for line in plan(config))
    asked = []
    texts = LatentCache.texts
    monkeypatch.setattr(LatentCache, "texts", lambda self, *own: asked.append(own[1]) or texts(self, *own))
    result = load_editor(str(train(config, tmp_path / "run")))
    assert result.prompt == prompt
    assert any(set(labels.label) == {len(prompt.words) - 1} for labels in asked)  # rollouts, for the best
    with pytest.raises(ValueError, match="got a LoRA; fuse it first"):
        train(replace(config, base=str(tmp_path / "run")), tmp_path / "again")
    with pytest.raises(ValueError, match="not reward-conditioned"):
        train(replace(config, base=tiny_editor), tmp_path / "bare")


@pytest.mark.usefixtures("unmeasured_memory")
def test_a_scheduler_without_gradient_is_refused_before_anything_runs(tiny_editor, tmp_path):
    pipe = load_editor(tiny_editor).pipe
    pipe.register_modules(scheduler=PNDMScheduler.from_config(pipe.scheduler.config, skip_prk_steps=True))
    pipe.save_pretrained(tmp_path / "pndm")
    config = Config("x", DATA, REWARD, str(tmp_path / "pndm"), TrainConfig(**FAST), LOOK)
    for stage in (plan, lambda config: train(config, tmp_path / "run")):
        with pytest.raises(ValueError, match=r"PNDMScheduler: .*; or take reward\.scheduler=ddpm"):
            stage(config)
    assert not (tmp_path / "run").exists()
    assert plan(replace(config, reward=replace(REWARD, scheduler="ddpm")))


def test_ddpm_takes_the_editors_noise_schedule_and_clips_no_latents(tiny_editor):
    scheduler = rollout_scheduler(
        replace(REWARD, scheduler="ddpm"),
        InstructPix2Pix(),
        EulerDiscreteScheduler(beta_end=0.013, beta_start=1e-3),
    )
    assert isinstance(scheduler, DDPMScheduler)
    assert scheduler.config.beta_end == 0.013
    assert not scheduler.config.clip_sample


def test_what_a_scorer_cannot_be_given_is_said_before_anything_is_scored(tiny_editor, tmp_path):
    inside = replace(REWARD, scorer={"l1": {"region": "inside"}})
    with pytest.raises(ValueError, match=r"reward\.scorer: needs mask"):
        train(Config("x", DATA, inside, tiny_editor, TrainConfig(**FAST), LOOK), tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"reward": {"reference_weight": 1.0}}, "reference_weight"),
        ({"reward": {"num_inference_steps": [2], "stop_before_end": [2, 2]}}, "at least one step"),
        ({"reward": {"scorer": "l1"}}, "of the family pixel"),
        ({"reward": {"scorer": "clip_d"}, "monitor": {"held_out": "clip_i"}}, "of the family clip"),
        (
            {"reward": {"scorer": "l1:0.5,vifi_clip:0.5"}, "monitor": {"held_out": "clip_d"}},
            "of the family clip",
        ),
        (
            {
                "reward": {"scorer": "tests.trainers.test_refl:Plain"},
                "monitor": {"held_out": "tests.trainers.test_refl:Flat"},
            },
            "custom",
        ),
        ({"monitor": {"n": 1}}, r"monitor\.n"),
        ({"reward": {"grad_steps": 0}}, "grad_steps"),
        ({"reward": {"guidance_scale": 0.5}}, "guidance_scale"),
        ({"monitor": {"stop": True}}, "validate_every"),
        ({"reward": {"scorer": "clip_d:0.5,nothing:0.5"}}, "no scorer named"),
        ({"reward": {"scorer": "tests.trainers.test_refl:Flat"}}, "has no gradient"),
        ({"train": {"text_encoder_lr": 1e-4}}, "text_encoder_lr"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_loaded(words, message):
    reward = {"scorer": CLIP_D, **words.get("reward", {})}
    with pytest.raises(ValueError, match=message):
        build(Config, {**OWN, **words, "reward": reward})


def test_scorers_of_other_families_are_accepted():
    watch = {"held_out": {"dino_i": {"against": "target"}}}
    assert (
        build(Config, {**OWN, "reward": {"scorer": "l1"}, "monitor": watch}).monitor.held_out
        == watch["held_out"]
    )


def test_a_reward_without_a_gradient_is_refused_before_the_other_scorer_is_loaded(tiny_judge, monkeypatch):
    """A judge's options decide if it has a gradient."""
    judge = {"vlm_judge": {"checkpoint": tiny_judge, "answer": "text"}}
    config = build(Config, {**OWN, "reward": {"scorer": judge}, "monitor": {"held_out": CLIP_D}})
    loaded = []
    load = reward_of_training.load_scorer
    noted = lambda spec, **options: loaded.append(spec) or load(spec, **options)  # noqa: E731
    monkeypatch.setattr(reward_of_training, "load_scorer", noted)
    with pytest.raises(ValueError, match=r"reward\.scorer: vlm_judge with these options has no gradient"):
        plan(config)
    assert loaded == [judge]
    del judge["vlm_judge"]["answer"]
    found = reward_of_training.load_rewards(judge, CLIP_D)
    assert list(found) == ["vlm_judge", "clip_d"]
    assert found["vlm_judge"].differentiable


@pytest.mark.parametrize("recipe", ["shapes/refl", "magicbrush-refl", "magicbrush-refl-24gb"])
def test_recipes_resolve(recipe):
    from rewardedit.cli import load_recipe

    assert load_recipe(recipe, [])[1].reward.grad_steps == 1
