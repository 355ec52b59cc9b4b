"""DiffusionNFT: its loss by hand, and runs of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rewardedit import load_editor
from rewardedit.batch import EditBatch, Scores
from rewardedit.cli.recipes import load_recipe
from rewardedit.diffusion.editor_files import LORA
from rewardedit.diffusion.families import FAMILIES
from rewardedit.files import read_log
from rewardedit.prepared import Prepared
from rewardedit.scorers import Scorer
from rewardedit.trainers.nft import (
    Config,
    NftConfig,
    loss_of,
    masked_mean,
    nft_loss,
    noisings,
    normalised_error,
    plan,
    reward_share,
    train,
    tune,
    variant_config,
)
from rewardedit.training.group_rollouts import GroupRollouts
from rewardedit.training.groups import group_advantages
from rewardedit.training.online import OnlineInputs, prepare, with_data
from tests.editors import small_qwen_area, tiny_klein, tiny_qwen
from tests.forks import launch, run, run_here
from tests.models import tiny_pipeline
from tests.online import REWARD, parts, settings

HERE = "tests.trainers.test_nft"
FAST = {"lr_warmup_steps": 0, "lr": 1e-2}


class Bright(Scorer):
    """Mean brightness."""

    range = (0.0, 1.0)
    family = "bright"

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        return Scores.make(batch.edited.mean((1, 2, 3)))


class Alike(Scorer):
    """The same for all edits."""

    family = "alike"

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        return Scores.make(torch.ones(len(batch)))


def config_of(base: str | Path, train: dict[str, Any] | None = None, **changes: Any) -> Config:
    return Config(**settings(base, {**FAST, **(train or {})}, **changes))


def latents(*seeds: int) -> list[torch.Tensor]:
    made = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        made.append(torch.randn(3, 2, 4, 4, generator=generator, dtype=torch.float64))
    return made


def test_the_loss_by_hand():
    new, old, x_0 = (torch.full((1, 1, 1, 2), value).double() for value in (1.0, 2.0, 4.0))
    found = nft_loss(new, old, x_0, torch.tensor([0.75]).double(), beta=0.5, clip=5.0)
    better = 0.75 * (1.5 - 4) ** 2 / 2.5
    worse = 0.25 * (2.5 - 4) ** 2 / 1.5
    assert found.item() == pytest.approx(5 / 0.5 * (better + worse))


@pytest.mark.parametrize("beta", [1.0, 0.1])
def test_the_gradient_at_the_old_policy_is_regression(beta):
    """(2 r̂ − 1) c ∇‖x̂ − x_0‖² / w, whatever β is."""
    old, x_0 = latents(0, 1)
    share = torch.tensor([0.9, 0.5, 0.2]).double()
    new = old.clone().requires_grad_(True)
    nft_loss(new, old, x_0, share, beta).sum().backward()
    plain = old.clone().requires_grad_(True)
    (5 * (2 * share - 1) * normalised_error(plain, x_0, None)).sum().backward()
    assert new.grad is not None
    assert plain.grad is not None
    torch.testing.assert_close(new.grad, plain.grad)
    assert new.grad[1].abs().max() < 1e-12, "equal rewards give no gradient"


def test_away_from_the_old_policy_equal_rewards_pull_back():
    old, x_0, other = latents(0, 1, 2)
    new = (old + 0.1 * other).requires_grad_(True)
    nft_loss(new, old, x_0, torch.full((3,), 0.5).double()).sum().backward()
    assert new.grad is not None
    assert (new.grad * (new.detach() - old)).sum() > 0


def test_errors_count_inside_the_mask_alone():
    new, old, x_0 = latents(0, 1, 2)
    mask = torch.zeros(3, 1, 4, 4).double()
    mask[:, :, :2] = 1
    share = torch.tensor([0.9, 0.4, 0.2]).double()
    inside = nft_loss(new, old, x_0, share, mask=mask)
    cropped = nft_loss(new[:, :, :2], old[:, :, :2], x_0[:, :, :2], share)
    torch.testing.assert_close(inside, cropped)
    assert masked_mean(new, torch.zeros_like(mask)).tolist() == [0, 0, 0]


def test_rewards_become_shares_and_schedules_their_decays():
    assert reward_share(torch.tensor([-9.0, -5, 0, 2.5, 5]), 5.0).tolist() == [0, 0, 0.5, 0.75, 1]
    assert NftConfig(old_policy="latest").decay(1000) == 0
    assert [NftConfig().decay(n) for n in (0, 100, 5000)] == pytest.approx([0, 0.1, 0.5])
    assert [NftConfig(old_policy="long").decay(n) for n in (75, 175, 900)] == pytest.approx([0, 0.75, 0.999])
    assert NftConfig(old_policy=(10.0, 0.1, 0.3)).decay(12) == pytest.approx(0.2)
    assert [NftConfig(times=share).times_of(10) for share in (0.01, 0.55, 1.0)] == [1, 5, 10]


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_clean_latents_follow_from_exact_predictions(prediction, tiny_editor):
    pipe = load_editor(tiny_editor).pipe
    family = FAMILIES[0]
    scheduler = family.training_scheduler(pipe.scheduler)
    scheduler.register_to_config(prediction_type=prediction)
    x_0, noise = (value.float() for value in latents(0, 1))
    t = torch.tensor([10, 500, 990])
    targets = {"epsilon": noise, "v_prediction": scheduler.get_velocity(x_0, noise, t), "sample": x_0}
    x_t, time = family.noised(scheduler, x_0, noise, t)
    found = family.clean(scheduler, targets[prediction], x_t, time)
    torch.testing.assert_close(found, x_0, rtol=1e-3, atol=1e-3)


def test_clean_latents_follow_from_exact_velocities():
    family = FAMILIES[1]
    scheduler = family.training_scheduler(tiny_klein().scheduler)
    x_0, noise = (value.float() for value in latents(0, 1))
    family.set_timesteps(scheduler, 4, torch.zeros(1, 4, 8, 8))
    t = family.training_times(scheduler.timesteps)
    x_t, time = family.noised(scheduler, x_0, noise, t[:3])
    torch.testing.assert_close(time, scheduler.timesteps[:3].round(), rtol=0, atol=1e-3)
    torch.testing.assert_close(family.clean(scheduler, noise - x_0, x_t, time), x_0, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def made(shared, tiny_editor, tmp_path_factory):
    config = config_of(tiny_editor)
    inputs, tuning, old, rollouts = parts(config, tmp_path_factory.mktemp("made"), shared)
    with old.active():
        return config, inputs, tuning, old, rollouts, rollouts.make(0, tuning.loop)


def gradient(made: Any, advantage: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    config, inputs, tuning, old, rollouts, rollout = made
    images = replace(rollout, advantage=advantage)
    cond = inputs.prompts.conditioning(images.rows, torch.device("cpu"))
    ((noise, t),) = noisings(images, rollouts, 1, 0)
    loss = loss_of(config, tuning, old, images, cond, noise, t)
    weights = tuning.modules.trained
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    grads = [torch.zeros_like(w) if value is None else value for w, value in zip(weights, found, strict=True)]
    return loss.detach(), grads


def test_equal_rewards_give_no_gradient_to_the_weights(made):
    _, none = gradient(made, torch.zeros(6))
    _, some = gradient(made, torch.tensor([1.0, -1, 0, 0, 2, -2]))
    assert max(float(value.abs().max()) for value in none) < 1e-6
    assert max(float(value.abs().max()) for value in some) > 1e-3


def test_the_better_of_two_becomes_likelier(made):
    """After a step the error of the better image has fallen, and the worse one's has risen."""
    _, inputs, tuning, _, rollouts, rollout = made
    advantage = torch.tensor([5.0, -5, 0, 0, 0, 0])
    _, grads = gradient(made, advantage)
    cond = inputs.prompts.conditioning(rollout.rows, torch.device("cpu"))
    ((noise, t),) = noisings(rollout, rollouts, 1, 0)
    family = tuning.editor.family
    x_t, time = family.noised(tuning.scheduler, rollout.latents, noise, t)

    @torch.no_grad()
    def errors() -> torch.Tensor:
        prediction = family.predict(tuning.modules.unet, x_t, time, cond)
        return normalised_error(family.clean(tuning.scheduler, prediction, x_t, time), rollout.latents, None)

    before = errors()
    weights = tuning.modules.trained
    length = torch.stack([(grad**2).sum() for grad in grads]).sum().sqrt()
    with torch.no_grad():
        for weight, grad in zip(weights, grads, strict=True):
            weight.sub_(0.01 / length * grad)
    change = errors() - before
    with torch.no_grad():
        for weight, grad in zip(weights, grads, strict=True):
            weight.add_(0.01 / length * grad)
    assert change[0] < 0 < change[1]
    assert change[0] - change[1] < 0


def test_times_are_the_rollouts_own_and_none_comes_twice(made):
    _, _, _, _, rollouts, rollout = made
    drawn = list(noisings(rollout, rollouts, 2, 5))
    known = rollouts.family.training_times(rollouts.pipe.scheduler.timesteps)
    times = torch.stack([t for _, t in drawn])
    assert (times[0] != times[1]).all()
    assert len(known) >= 2
    part = list(noisings(rollout.take(slice(3, 5)), rollouts, 2, 5))
    torch.testing.assert_close(part[1][0], drawn[1][0][3:5], rtol=0, atol=0)
    assert torch.equal(part[1][1], drawn[1][1][3:5])


class Silent:
    """Watches nothing."""

    def check(self, editor: Any, step: int) -> bool:
        return False


@pytest.fixture(scope="module")
def shared(tiny_editor, tmp_path_factory) -> OnlineInputs:
    """The inputs of `four_updates`."""
    return prepare(with_data(four_updates(tiny_editor)), tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def whole(shared, tiny_editor, tmp_path_factory) -> Path:
    """An unbroken run of four updates, two of each rollout."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    tune(four_updates(tiny_editor), shared, Silent(), folder)
    return folder


def four_updates(base: str, **changes: Any) -> Config:
    reward = replace(REWARD, updates=2, noise_mask="change")
    nft = NftConfig(times=1.0, old_policy=(0.0, 0.2, 0.9))
    return config_of(base, {"max_steps": 4, **changes}, reward=reward, nft=nft)


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_log(folder)]


def test_a_run_logs_what_tells_its_health(whole):
    log = read_log(whole)
    assert log[0]["distance_from_old"] == 0
    assert log[0]["distance_from_reference"] == 0
    assert log[1]["distance_from_old"] == pytest.approx(log[1]["distance_from_reference"])
    assert 0 < log[2]["distance_from_old"] < log[2]["distance_from_reference"], "the old one has followed"
    assert {"reward", "reward.l1", "spread.l1", "groups_without_spread", "mask"} <= set(log[2])
    assert "reward" not in log[1], "the second update trains on the same images"
    assert load_editor(str(whole)).pipe.get_list_adapters() == {"unet": ["default_0"]}


@pytest.mark.slow
def test_accumulated_and_halved_batches_are_the_same_updates(whole, shared, tiny_editor, tmp_path):
    config = four_updates(tiny_editor, micro_batch_size=2)
    config = replace(config, reward=replace(config.reward, rollout_batch_size=4))
    tune(config, shared, Silent(), tmp_path / "parts")
    assert losses(tmp_path / "parts") == pytest.approx(losses(whole), rel=1e-4)


@pytest.mark.slow  # tests/trainers/test_flow_grpo.py resumes one with an old policy too
@pytest.mark.parametrize("done", [3, 2])
def test_a_resumed_run_equals_an_unbroken_one(done, whole, shared, tiny_editor, tmp_path):
    """In the middle of a rollout and between two: the old policy comes from the checkpoint."""
    out = tmp_path / "part"
    tune(four_updates(tiny_editor, max_steps=done), shared, Silent(), out)
    tune(four_updates(tiny_editor), shared, Silent(), out, resume=True)
    assert losses(out) == pytest.approx(losses(whole), rel=1e-5)
    weights = load_file(whole / "lora" / LORA)
    for name, value in load_file(out / "lora" / LORA).items():
        torch.testing.assert_close(value, weights[name], rtol=1e-3, atol=1e-6)


def test_a_reward_without_spread_trains_nothing(shared, made, tiny_editor):
    _, _, tuning, *_ = made
    config = four_updates(tiny_editor)
    watching = replace(shared.watching, reward=Alike())
    alike = GroupRollouts(config.reward, config.train, replace(shared, watching=watching), tuning.editor.pipe)
    rollout = alike.make(0, tuning.loop)
    assert not rollout.weight.any()
    assert not rollout.advantage.any()
    ((mean, _),) = [(mean, n) for name, mean, n in tuning.loop._means if name == "groups_without_spread"][-1:]
    assert mean == 1


def gaussian_policy(reference_weight: float) -> float:
    """Trains the mean of a policy N(μ, 0.5²) on −(x − 2)², from 0, on its exact predictions."""
    generator = torch.Generator().manual_seed(0)
    mu = torch.zeros((), requires_grad=True)
    old = torch.zeros(())
    optimizer = torch.optim.Adam([mu], lr=0.05)
    schedule = NftConfig(old_policy=(0.0, 0.01, 0.5))
    for update in range(120):
        noise, start = torch.randn(2, 8 * 16, 1, 1, 1, generator=generator)
        x_0 = old + 0.5 * start
        reward = -((x_0 - 2) ** 2).reshape(1, 8, 16)
        advantage = group_advantages(reward, torch.ones(1)).value.flatten()
        sigma = torch.rand(len(x_0), 1, 1, 1, generator=generator)
        x_t = (1 - sigma) * x_0 + sigma * noise
        gain = (1 - sigma) * 0.25 / ((1 - sigma) ** 2 * 0.25 + sigma**2)

        def clean(mean: torch.Tensor, x_t: Any = x_t, gain: Any = gain, sigma: Any = sigma) -> torch.Tensor:
            return mean + gain * (x_t - (1 - sigma) * mean)

        loss = nft_loss(clean(mu), clean(old), x_0, reward_share(advantage, 5.0))
        loss = loss + reference_weight * masked_mean((clean(mu) - clean(torch.zeros(()))) ** 2)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        old = torch.lerp(mu.detach(), old, schedule.decay(update + 1))
    return mu.item()


def test_a_gaussian_policy_reaches_its_optimum():
    assert gaussian_policy(0.0) == pytest.approx(2, abs=0.2)
    assert gaussian_policy(1e4) == pytest.approx(0, abs=0.05)


def test_variants_change_what_they_say(tiny_editor):
    reward = replace(REWARD, noise_mask="change")
    config = config_of(tiny_editor, reward=reward, variants=("nft", "unmasked", "on_policy"))
    assert variant_config(config, "nft") == config
    assert variant_config(config, "unmasked").reward.noise_mask is None
    assert variant_config(config, "on_policy").nft.old_policy == "latest"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": replace(REWARD, same_noise=True)}, r"reward\.same_noise"),
        ({"variants": ("nft", "unmasked")}, "unmasked has no effect"),
        ({"variants": ("nft", "nft")}, "variants: expected each at most once"),
        ({"train": {"min_snr": 5.0}}, r"train\.min_snr: has no effect"),
        ({"train": {"batch_size": 8}}, "whole groups of 3.*take 9"),
    ],
)
def test_what_cannot_work_is_refused(changes, message, tiny_editor):
    with pytest.raises(ValueError, match=message):
        config_of(tiny_editor, changes.pop("train", None), **changes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 0.0}, "beta: expected above 0"),
        ({"times": 0.0}, "times: expected a share"),
        ({"reference_weight": -1.0}, "reference_weight: expected at least 0"),
        ({"old_policy": (0.0, 0.1, 1.5)}, r"old_policy: expected latest, half, long"),
    ],
)
def test_a_loss_that_cannot_work_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        NftConfig(**settings)


RUN = """
import os, signal, sys, torch
from dataclasses import replace
from pathlib import Path
from rewardedit.cli import quiet
from rewardedit.trainers import nft
from tests.trainers.test_nft import four_updates

quiet()
torch.set_num_threads(1)
config = four_updates(sys.argv[1])
if len(sys.argv) > 3:  # dies in the third update, in the middle of its passes
    plain, calls = nft.loss_of, []
    def dies(*values):
        calls.append(1)
        if len(calls) == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*values)
    nft.loss_of = dies
nft.train(config, Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_two_processes_equal_one(tiny_editor, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RUN)
    run_here(script, tiny_editor, str(tmp_path / "one"))
    launch(script, 2, tiny_editor, str(tmp_path / "two"))
    one, two = (read_log(tmp_path / name) for name in ("one", "two"))
    for alone, divided in zip(one, two, strict=True):
        assert divided == pytest.approx(alone, rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_unbroken(tiny_editor, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RUN)
    out = tmp_path / "killed"
    assert run(script, tiny_editor, str(out), "6").statuses == [-9]
    assert len(losses(out)) == 2
    train(four_updates(tiny_editor), out, resume=True)
    train(four_updates(tiny_editor), tmp_path / "unbroken")
    assert losses(out) == pytest.approx(losses(tmp_path / "unbroken"), rel=1e-5)


SMALL = [
    "data={name: shapes, limit: 6, size: 64}",
    "reward.scorer=l1:1,ssim:0.5",
    "reward.group_size=3",
    "reward.num_inference_steps=3",
    "monitor={held_out: {clip_i: {checkpoint: shapes/clip}}, n: 2, num_inference_steps: 2}",
    "train.max_steps=2",
    "train.batch_size=6",
    "train.micro_batch_size=3",
    "train.lora_rank=2",
    "train.lora_alpha=4",
    "train.lr=1e-2",
    "train.log_every=1",
    "train.tracker=none",
    "train.mixed_precision=no",
    "train.checkpoint_every=1",
    "train.validate_every=2",
    "train.validation_rows=1",
    "evaluate=null",
]
WALKS: list[tuple[str, Any, list[str]]] = [
    ("klein-nft", tiny_klein, ["reward.noise_mask=change"]),
    ("klein-nft", tiny_klein, ["reward.guidance_scale=3.0"]),
    ("klein-nft", tiny_klein, ["train.quantize=4bit", "train.offload_text_encoder=true"]),
    ("qwen-image-edit-nft", tiny_qwen, []),
    ("klein-nft", tiny_pipeline, ["reward.noise_mask=given", "variants=[nft, unmasked]"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "make", "changes"), WALKS)
def test_a_recipe_walks_to_the_sweep(recipe, make, changes, tmp_path, monkeypatch):
    small_qwen_area(monkeypatch)
    base = tmp_path / "base"
    make().save_pretrained(base)
    config = load_recipe(recipe, [f"base={base}", *SMALL, *changes])[1]
    lines = plan(config)
    assert any(line.startswith("memory, GiB: ") for line in lines), lines
    assert f"{len(config.variants)} × 2 updates" in " ".join(lines)
    out = train(config, tmp_path / "run")
    log = read_log(tmp_path / "run")
    assert all(torch.tensor(line["loss"]).isfinite() for line in log)
    assert log[1]["distance_from_reference"] > 0
    sweep = json.loads((tmp_path / "run" / "monitor.json").read_text())["sweep"]
    assert sweep[-1]["l1:1,ssim:0.5"] != sweep[0]["l1:1,ssim:0.5"]
    assert [row["scale"] for row in sweep] == [0, 1]  # the ends, which conftest.py leaves of five shares
    (adapters,) = load_editor(str(out)).pipe.get_list_adapters().values()
    assert adapters == ["default_0"]
