"""Settings of online RL, groups' rollouts and their regions."""

import json
from dataclasses import replace

import pytest
import torch

from rewardedit import EditBatch, load_editor
from rewardedit.batch import Scores
from rewardedit.cli.needs import references
from rewardedit.config import build
from rewardedit.data import open_rows
from rewardedit.diffusion.attention import set_attention
from rewardedit.scorers import load_scorer
from rewardedit.scorers.on_device import OnDevice
from rewardedit.training import online, online_plan
from rewardedit.training.estimate import PlanIncomplete, require_guidance
from rewardedit.training.group_rollouts import Sampled, join_scores, rollout_noise
from rewardedit.training.memory.stages import online_memory
from rewardedit.training.noise_masks import (
    NoiseMasks,
    cache_masks,
    load_noise_masks,
    require_masks,
    to_latents,
)
from rewardedit.training.old_policy import reference
from rewardedit.training.online import OnlineConfig, OnlineRecipe, prepare, require_base
from rewardedit.training.online_plan import plan_online
from rewardedit.training.trainable import TrainConfig, load_base
from tests.online import DATA, REWARD, parts, settings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"reward": {"group_size": 1}}, r"reward\.group_size: expected at least 2"),
        ({"reward": {"group_size": 5}}, r"batch_size: expected whole groups of 5.*take 65"),
        ({"reward": {"noise_mask": "auto"}}, "noise_mask: expected null, given, change or bpm"),
        ({"reward": {"noise_mask": {"clip_d": {}}}}, "noise_mask: expected null, given, change or bpm"),
        ({"reward": {"image_guidance_scale": 1.5}}, "no effect without guidance_scale"),
        ({"reward": {"guidance_scale": 0.5}}, "guidance_scale"),
        ({"reward": {"advantage_clip": 0.0}}, "advantage_clip: expected above 0"),
        ({"reward": {"device": "gpu7"}}, "device: expected a name such as cuda:1"),
        ({"train": {"lora_rank": None}}, r"train\.lora_rank: expected a rank"),
        ({"train": {"min_snr": 5.0}}, r"^train\.min_snr: has no effect on rollouts"),
        ({"train": {"null_text_target": "source"}}, r"train\.null_text_target: has no effect"),
        ({"train": {"conditioning_dropout": 0.0}}, r"train\.conditioning_dropout: has no effect"),
        ({"monitor": {"held_out": "psnr"}}, "of the family pixel"),
        ({"reward": {"scorer": "nothing"}}, "no scorer named"),
    ],
)
def test_what_cannot_work_is_refused_with_its_setting(words, message):
    values = {"name": "x", "data": {"name": "shapes"}, "train": {"lora_rank": 2}, **words}
    values.setdefault("monitor", {"held_out": "clip_d"})
    values["reward"] = {"scorer": "l1", **words.get("reward", {})}
    with pytest.raises(ValueError, match=message):
        build(OnlineRecipe, values).require_groups()


def test_whole_groups_divide_among_processes():
    config = OnlineConfig("l1", group_size=4)
    assert config.groups(TrainConfig(batch_size=16), processes=2) == 4
    with pytest.raises(ValueError, match=r"4 images for each of 3 processes.*take 24"):
        config.groups(TrainConfig(batch_size=16), processes=3)


def test_noise_depends_on_the_slot_alone():
    slots = torch.arange(6)
    noise, _ = rollout_noise((1, 2, 2), slots, 3, seed=0)
    alone, _ = rollout_noise((1, 2, 2), slots[4:5], 3, seed=0)
    torch.testing.assert_close(alone[0], noise[4], rtol=0, atol=0)
    assert len(noise.flatten(1).unique(dim=0)) == 6
    assert not torch.equal(rollout_noise((1, 2, 2), slots, 4, seed=0)[0], noise)
    shared, others = rollout_noise((1, 2, 2), slots, 3, seed=0, shared=3)
    assert len(shared.flatten(1).unique(dim=0)) == 2
    torch.testing.assert_close(shared[:1], noise[:1], rtol=0, atol=0)
    further = [torch.randn(2, generator=generator) for generator in others]
    assert len(torch.stack(further).unique(dim=0)) == 6, "noise of further steps is each image's own"


@pytest.fixture(scope="module")
def made(tiny_editor, tmp_path_factory):
    """A rollout of two updates with two groups each, and what made it."""
    folder = tmp_path_factory.mktemp("made")
    reward = replace(REWARD, scorer="l1:1,ssim:0.5", updates=2, noise_mask="change")
    recipe = OnlineRecipe(**settings(tiny_editor, reward=reward))
    inputs, tuning, old, rollouts = parts(recipe, folder)
    with old.active():
        rollout = rollouts.make(0, tuning.loop)
    return inputs, tuning, old, rollouts, rollout


def test_groups_never_mix_sources(made):
    *_, rollout = made
    assert len(rollout) == 12
    assert (rollout.rows.reshape(4, 3) == rollout.rows[::3, None]).all()
    assert len(rollout.rows.unique()) == 4
    assert rollout.slots.tolist() == list(range(12))
    for group in rollout.advantage.reshape(4, 3):
        assert float(group.sum()) == pytest.approx(0, abs=1e-5)


def test_images_are_the_stock_pipelines(made, tiny_editor):
    inputs, _, _, rollouts, rollout = made
    rows = rollout.rows[:2]
    noise, _ = rollout_noise(inputs.prompts.cache.shape, rollout.slots[:2], 0, rollouts.train.seed)
    editor = load_editor(tiny_editor)
    source = rollouts._sources(rows)
    with torch.no_grad():
        out = editor.pipe(
            **editor.family.call_inputs(
                editor.encode(source, [inputs.prompts.cache.instructions[i] for i in rows.tolist()])
            ),
            latents=noise,
            num_inference_steps=2,
            guidance_scale=1.0,
            image_guidance_scale=1.0,
            output_type="latent",
        ).images
    torch.testing.assert_close(rollout.latents[:2], out, rtol=0, atol=0.02)  # sources were kept in fp16


def test_rollouts_do_not_depend_on_what_fits(made):
    _, tuning, old, rollouts, rollout = made
    for size in rollouts.sizes.values():
        size.rows = 5
    with old.active():
        again = rollouts.make(0, tuning.loop)
    torch.testing.assert_close(again.latents, rollout.latents, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again.advantage, rollout.advantage, rtol=1e-3, atol=1e-4)


def test_every_part_is_recorded(made):
    _, tuning, *_ = made
    names = {name for name, *_ in tuning.loop._means}
    assert {"reward", "reward.l1", "reward.ssim", "spread.l1", "spread.ssim", "mask"} <= names
    assert {"groups_without_spread", "groups_with_few_scores", "images_without_score"} <= names


def test_a_samplers_values_stay_with_their_images(made):
    _, tuning, _, rollouts, _ = made

    def sampler(noise, cond, generators, mask):
        assert mask is not None
        return Sampled(noise, {"first": noise[:, 0, 0, 0], "inside": mask.flatten(1).mean(1)})

    own = type(rollouts)(
        rollouts.config, rollouts.train, rollouts.inputs, rollouts.pipe, sampler, mask_first=True
    )
    rollout = own.make(0, tuning.loop)
    torch.testing.assert_close(rollout.kept["first"], rollout.latents[:, 0, 0, 0])
    part = rollout.take(torch.tensor([7, 2]))
    torch.testing.assert_close(part.kept["first"], rollout.latents[[7, 2], 0, 0, 0])
    assert part.mask is not None
    torch.testing.assert_close(part.kept["inside"], part.mask.flatten(1).mean(1))


def test_an_image_that_is_not_finite_is_left_out(made):
    """Its zeros keep a weight of 0 times its loss from being NaN; the others' advantages are their own."""
    _, tuning, _, rollouts, whole = made

    def sampler(noise, cond, generators, mask):
        latents = noise.clone()
        latents[1, 0, 0, 0] = torch.nan  # of each batch, which is an update's
        return Sampled(latents, {"states": latents[:, None] * 2})

    own = type(rollouts)(rollouts.config, rollouts.train, rollouts.inputs, rollouts.pipe, sampler)
    rollout = own.make(0, tuning.loop)
    left_out = torch.arange(len(whole)) % 6 == 1
    assert torch.equal(rollout.weight == 0, left_out)
    assert not rollout.advantage[left_out].any()
    assert rollout.rewards[left_out].isnan().all()
    assert all(value.isfinite().all() for value in (rollout.latents, rollout.kept["states"]))
    assert rollout.latents[0].any()
    ((mean, _),) = [(mean, n) for name, mean, n in tuning.loop._means if name == "images_without_score"][-1:]
    assert float(mean) == pytest.approx(1 / 6)


def test_replays_in_other_batches_are_told(made, capsys):
    *_, rollouts, _ = made
    own = type(rollouts)(rollouts.config, rollouts.train, rollouts.inputs, rollouts.pipe, together=6)
    own.sizes["denoise"].rows = 5
    own._report_memory()
    assert "train.micro_batch_size: steps are taken 5 images at a time and replayed 6" in (
        told := capsys.readouterr().out
    )
    assert told.endswith("set it to 3\n")


def test_adapters_off_is_the_base_to_the_bit(made, tiny_editor):
    _, tuning, old, *_ = made
    unet = tuning.modules.unet
    base = load_base(tiny_editor, "cpu").pipe.unet.train()
    set_attention(base, tuning.config.attention, None, 16)
    text = torch.randn(1, 7, unet.config.cross_attention_dim)
    inputs = (torch.randn(1, unet.config.in_channels, 4, 4), torch.tensor(3), text)
    with torch.no_grad():
        for _, weight in old.pairs:
            weight.add_(1)
        for new, _ in old.pairs:
            new.add_(0.5)
        expected = base(*inputs, return_dict=False)[0]
        with reference(unet):
            torch.testing.assert_close(unet(*inputs, return_dict=False)[0], expected, rtol=0, atol=0)
        with old.active():
            moved = unet(*inputs, return_dict=False)[0]
        assert not torch.equal(moved, expected)
        assert not torch.equal(unet(*inputs, return_dict=False)[0], moved)
    trained = [name for name, weight in unet.named_parameters() if weight.requires_grad]
    assert trained
    assert all(".default." in name for name in trained)
    old.follow(0.25)
    for new, follower in old.pairs:
        torch.testing.assert_close(follower - new, torch.full_like(new, 0.125), atol=1e-4, rtol=0)
    old.follow(0.0)
    assert all(torch.equal(new, follower) for new, follower in old.pairs)


def test_masks_grow_by_a_location_and_empty_ones_are_whole():
    mask = torch.zeros(2, 1, 16, 16)
    mask[0, 0, 8, 8] = 1
    found = to_latents(mask, (4, 8, 8))
    assert found[0, 0, 3:6, 3:6].all()
    assert found[0].sum() == 9
    assert found[1].all()


def test_a_groups_region_is_what_a_quarter_of_it_changed():
    source = torch.zeros(8, 3, 64, 64)
    edited = source.clone()
    edited[:2, :, :32, :32] = 1  # two of eight
    edited[7, :, 32:, 32:] = 1  # a stray one
    batch = EditBatch(source, ["x"] * 8, edited)
    region = NoiseMasks("change").of_groups(torch.tensor([0]), batch, (4, 8, 8))
    assert region[0, 0, :4, :4].all()
    assert not region[0, 0, 6:, 6:].any()


def test_given_masks_are_the_rows_own(tmp_path):
    masks = cache_masks(open_rows(DATA), DATA, tmp_path / "masks")
    assert masks.shape == (6, 1, 32, 32)
    assert set(masks.flatten().tolist()) == {0, 255}
    with pytest.raises(ValueError, match="noise_mask: expected rows with masks for given; none of 6"):
        load_noise_masks("given", _Unmasked(), DATA, tmp_path / "none", "cpu")


def test_rows_without_masks_are_refused_before_any_stage(tiny_editor, tmp_path, monkeypatch):
    require_masks("given", open_rows(DATA))
    require_masks("change", _Unmasked())
    monkeypatch.setattr(online, "open_rows", lambda _: _Unmasked())
    recipe = OnlineRecipe(**settings(tiny_editor, reward=replace(REWARD, noise_mask="given")))
    with pytest.raises(ValueError, match=r"^reward\.noise_mask: expected rows with masks for given; 6 of 6"):
        prepare(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_plans_look_at_masks_and_count_the_locator(tiny_editor, monkeypatch):
    recipe = OnlineRecipe(**settings(tiny_editor, reward=replace(REWARD, noise_mask="given")))
    monkeypatch.setattr(online_plan, "open_rows", lambda _: _Unmasked())
    with pytest.raises(PlanIncomplete, match=r"reward\.noise_mask: expected rows with masks"):
        plan_online(recipe, ["x"], lambda *_: [])

    editor, scorers = online_plan.models_of_plan(recipe)
    locator = load_scorer({"clip_d": {"checkpoint": "shapes/clip"}})
    bytes_of_it = sum(weight.numel() * weight.element_size() for weight in locator.parameters())
    without = online_memory(recipe, editor(), scorers())
    stages = online_memory(recipe, editor(), scorers(), locator=locator)
    assert {stages[name] - without[name] for name in stages} == {bytes_of_it}
    away = replace(recipe, reward=replace(REWARD, device="cuda:7"))
    assert online_memory(away, editor(), scorers(), locator=locator)["step"] <= without["step"]


def test_guidance_that_a_base_has_not_is_refused_early(tiny_editor, tmp_path):
    index = {"_class_name": "Flux2KleinPipeline", "is_distilled": True}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    require_guidance(str(tmp_path), None, 1.0)
    require_guidance(tiny_editor, 3.0, 1.5)
    with pytest.raises(ValueError, match="has no classifier-free guidance"):
        require_guidance(str(tmp_path), 3.0, 1.0)
    (tmp_path / "model_index.json").write_text(json.dumps({**index, "is_distilled": False}))
    with pytest.raises(ValueError, match="image_guidance_scale: has no effect on Flux2Klein"):
        require_guidance(str(tmp_path), 3.0, 1.5)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"device": "cuda:77"}, r"^reward\.device: expected cpu or one of the \d+ GPUs"),
        ({"guidance_scale": 3.0}, r"^reward\.guidance_scale: no"),
    ],
)
def test_a_base_is_checked_with_its_rewards(reward, message, tiny_editor, monkeypatch):
    """The family of a base without guidance is stood in for by its refusal alone."""

    def refuse(*_: object) -> None:
        raise ValueError("guidance_scale: no")

    monkeypatch.setattr(online.estimate, "require_guidance", refuse)
    with pytest.raises(ValueError, match=message):
        require_base(OnlineRecipe(**settings(tiny_editor, reward=replace(REWARD, **reward))))


def test_models_of_a_recipe_are_those_of_its_scorers(tiny_editor):
    reward = replace(REWARD, noise_mask="change")
    names = {found.name for found in references(OnlineRecipe(**settings(tiny_editor, reward=reward)))}
    assert names == {tiny_editor, "shapes/clip"}


class _Unmasked:
    """The rows without their masks."""

    rows = open_rows(DATA)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int):
        return replace(self.rows[index], mask=None)


def test_a_scorer_stays_on_its_device():
    scorer = OnDevice(load_scorer("l1"), "cpu").to("meta")
    batch = EditBatch(torch.zeros(1, 3, 8, 8), ["x"], torch.ones(1, 3, 8, 8))
    assert scorer(batch).score.item() == load_scorer("l1")(batch).score.item()
    assert scorer.family == "pixel"


def test_scores_of_batches_join_in_order():
    first = Scores.make(torch.tensor([1.0]), {"a": torch.tensor([2.0])})
    second = Scores.make(torch.tensor([3.0, 4.0]), reason=["no", None])
    joined = join_scores([first, second])
    assert joined.valid.tolist() == [True, False, True]
    assert joined.parts["a"].isnan().tolist() == [False, True, True]
    assert joined.reason == [None, "no", None]
