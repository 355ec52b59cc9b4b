"""One rollout an update: its rows take the steps without gradient together, and micro-batches go on from
there, with the results of a rollout in each micro-batch.
"""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DPMSolverMultistepScheduler, UNet2DConditionModel
from safetensors.torch import load_file
from torch.nn.modules.module import register_module_forward_hook

from rewardedit import load_editor, load_scorer
from rewardedit.batch_sizes import HELD
from rewardedit.data import DataConfig, open_rows
from rewardedit.diffusion import replaying
from rewardedit.diffusion.compiling import compile_blocks
from rewardedit.diffusion.editor_files import LORA
from rewardedit.diffusion.editors import Editor
from rewardedit.diffusion.rollout import rollout
from rewardedit.files import read_log
from rewardedit.relabel import RelabelConfig
from rewardedit.trainers import dpo, nft, reward_conditioned
from rewardedit.trainers.refl import Config, SharedInputs, finetune, require_rollouts, variant_reward
from rewardedit.training.estimate import UnetCalls, unet_calls
from rewardedit.training.finetune import Finetuning
from rewardedit.training.latents import cache_sources, make_cache
from rewardedit.training.loop import step_generator
from rewardedit.training.memory.blueprint import load_blueprint
from rewardedit.training.memory.stages import refl_memory
from rewardedit.training.monitor import MonitorConfig
from rewardedit.training.old_policy import reference
from rewardedit.training.online import OnlineConfig
from rewardedit.training.prompt_cache import TextCache
from rewardedit.training.reward import RewardConfig, reward_loss
from rewardedit.training.rollouts import RewardRollouts, RolloutPrompts, slot_noise
from rewardedit.training.trainable import RewardLabels, TrainConfig, load_base
from tests.online import parts, settings
from tests.reruns import Rerun

DATA = DataConfig("shapes", limit=16, size=32)
CLIP_D = {"clip_d": {"checkpoint": "shapes/clip"}}
REWARD = RewardConfig("l1", num_inference_steps=(6,), weight=1.0, loss="linear", scale="none")
FAST = TrainConfig(
    max_steps=1,
    batch_size=8,
    micro_batch_size=2,
    lr=1e-3,
    lr_warmup_steps=0,
    log_every=1,
    tracker="none",
    ema=None,
    validation_rows=1,
)


class Unwatched:
    """A monitor that looks at nothing."""

    def check(self, editor: Editor, step: int) -> bool:
        return False


class Calls:
    """Counts the UNet's calls by the number of their rows, with gradient and without."""

    def __init__(self) -> None:
        self.with_gradient: dict[int, int] = {}
        self.without: dict[int, int] = {}

    def __enter__(self) -> "Calls":
        self.hook = register_module_forward_hook(self.count)
        return self

    def __exit__(self, *_: object) -> None:
        self.hook.remove()

    def count(self, module: Any, inputs: Any, output: Any) -> None:
        if isinstance(module, UNet2DConditionModel):
            kind = self.with_gradient if output[0].requires_grad else self.without
            kind[len(output[0])] = kind.get(len(output[0]), 0) + 1


@pytest.fixture(scope="module")
def shared(tiny_editor, tmp_path_factory) -> SharedInputs:
    folder = tmp_path_factory.mktemp("inputs")
    rows = open_rows(DATA)
    editor = load_base(tiny_editor, "cpu")
    labels = RewardLabels(None, [0] * len(rows))
    cache = make_cache(rows, DATA, editor, folder / "cache")
    sources = cache_sources(rows, DATA, folder / "sources")
    prompts = RolloutPrompts(cache, cache.texts(editor, labels), *sources)
    return SharedInputs({"l1": load_scorer("l1")}, None, cache, labels, prompts)


def trained(base: str, shared: SharedInputs, folder: Path, reward: RewardConfig, train: TrainConfig) -> Calls:
    """Trains into a folder; returns the UNet's calls."""
    with Calls() as calls:
        finetune(train, base, reward, shared, Unwatched(), folder)
    return calls


def change(folder: Path, base: str) -> torch.Tensor:
    """Change of the weights by a training."""
    ends = []
    for name in (str(folder), base):
        unet = load_editor(name, dtype="float32").pipe.unet
        ends.append(torch.cat([p.detach().flatten() for p in unet.parameters()]))
    return ends[0] - ends[1]


@pytest.mark.parametrize(
    ("changes", "with_gradient", "without"),
    [
        ({}, {2: 8}, {8: 4}),  # 6 steps but the last; the pairs and one step with gradient
        ({"rollout_batch_size": 5}, {2: 8}, {4: 8}),  # whole micro-batches
        ({"rollout_batch_size": 1}, {2: 8}, {2: 16}),
        ({"weight": 0.0}, {2: 4}, {}),
        ({"guidance_scale": 2.0}, {2: 4, 6: 4}, {24: 4}),
    ],
)
def test_steps_without_gradient_are_taken_once_an_update(
    changes, with_gradient, without, tiny_editor, shared, tmp_path
):
    reward = replace(REWARD, **changes)
    calls = trained(tiny_editor, shared, tmp_path / "run", reward, FAST)
    assert calls.with_gradient == with_gradient
    assert calls.without == without
    planned = unet_calls(FAST, reward, 1)
    assert {call.rows: call.number for call in planned if call.gradient} == with_gradient
    assert {call.rows: call.number for call in planned if not call.gradient} == without


def test_the_distance_to_the_starting_model_is_taken_by_micro_batches(tiny_editor, shared, tmp_path):
    reward = replace(REWARD, reference_weight=0.5)
    train = replace(FAST, lora_rank=2, max_steps=2)
    calls = trained(tiny_editor, shared, tmp_path / "run", reward, train)
    assert calls.with_gradient == {2: 2 * 12}
    assert calls.without == {8: 2 * 4, 2: 2 * 4}
    planned = {(call.rows, call.gradient): call.number for call in unet_calls(train, reward, 1)}
    assert planned == {(2, True): 12, (8, False): 4, (2, False): 4}
    assert read_log(tmp_path / "run")[1]["distance"] > 0


@pytest.mark.parametrize(
    ("variant", "with_gradient", "without"),
    [("predicted_x0", 1, None), ("draft_1", 1, 5), ("draft_4", 4, 2)],
)
def test_every_variant_rolls_out_once(variant, with_gradient, without, tiny_editor, shared, tmp_path):
    config = Config("x", DATA, REWARD, tiny_editor, FAST, MonitorConfig(n=2, held_out=CLIP_D))
    calls = trained(tiny_editor, shared, tmp_path / "run", variant_reward(config, variant), FAST)
    assert calls.with_gradient == {2: 4 * (1 + with_gradient)}
    assert set(calls.without) <= {8}
    assert without is None or calls.without == {8: without}


@pytest.mark.parametrize("scheduler", ["editor", "ddpm"])
def test_micro_batches_train_the_weights_of_one_batch(scheduler, tiny_editor, shared, tmp_path):
    few = {"num_inference_steps": (3,), "diffusion_weight": 0.1, "guidance_scale": 2.0}
    reward = replace(REWARD, scheduler=scheduler, **few)
    for name, size in (("parts", 2), ("whole", None)):
        train = replace(FAST, max_steps=2, micro_batch_size=size)
        trained(tiny_editor, shared, tmp_path / name, reward, train)
    parts, whole = (change(tmp_path / name, tiny_editor) for name in ("parts", "whole"))
    assert whole.norm() > 0
    assert (parts - whole).norm() < 1e-2 * whole.norm()
    logs = [[line["loss"] for line in read_log(tmp_path / name)] for name in ("parts", "whole")]
    assert logs[0] == pytest.approx(logs[1], rel=1e-4)


@pytest.mark.parametrize("scheduler", ["editor", "ddpm", "dpmsolver++"])
def test_gradients_are_those_of_a_rollout_in_each_micro_batch(scheduler, tiny_editor, shared, tmp_path):
    """The papers' form: noise, all steps, decoding and score inside the loop over micro-batches."""
    multistep = scheduler == "dpmsolver++"
    reward = replace(REWARD, scheduler="editor" if multistep else scheduler, grad_steps=2)
    tuning = Finetuning(FAST, tiny_editor, shared.cache, shared.labels, tmp_path)
    pipe = tuning.editor.pipe
    if multistep:
        pipe.scheduler = DPMSolverMultistepScheduler.from_config(pipe.scheduler.config)
    rollouts = RewardRollouts(reward, shared.scorers["l1"], shared.rollouts, 0, pipe)
    micro_batches = tuning.micro_batches(0)

    def gradient(losses: list[torch.Tensor]) -> torch.Tensor:
        gradients = torch.autograd.grad(torch.stack(losses).sum(), tuning.modules.trained, allow_unused=True)
        return torch.cat([found.flatten() for found in gradients if found is not None])

    def loss(micro: Any, edited: torch.Tensor) -> torch.Tensor:
        scores = rollouts.score(micro, edited)
        return reward_loss(scores.score, scores.valid, "linear")

    states = rollouts.start(micro_batches, 0)
    once = [
        loss(micro, rollouts.edit(tuning.unet, state))
        for micro, state in zip(micro_batches, states, strict=True)
    ]
    in_the_loop = []
    for micro in micro_batches:
        noise, generators = slot_noise(shared.cache.shape, micro.batch_positions, 0, 2)
        cond = shared.rollouts.conditioning(micro.rows, pipe.device)
        drawn = reward.rollout(step_generator(1, 0))
        latents = rollout(rollouts.family, tuning.unet, rollouts.scheduler, noise, cond, drawn, generators)
        in_the_loop.append(loss(micro, rollouts.family.decode(pipe.vae, latents)))
    found, expected = gradient(once), gradient(in_the_loop)
    assert expected.norm() > 0
    assert (found - expected).norm() < 1e-3 * expected.norm()


def test_rows_that_do_not_fit_take_their_steps_in_smaller_batches(tiny_editor, shared, tmp_path, capsys):
    """The smaller batch stays, and its rows have the same noise."""
    tuning = Finetuning(FAST, tiny_editor, shared.cache, shared.labels, tmp_path)
    pipe = tuning.editor.pipe
    reward = replace(REWARD, scheduler="ddpm")
    rollouts = RewardRollouts(reward, shared.scorers["l1"], shared.rollouts, 0, pipe)
    micro_batches = tuning.micro_batches(0)
    expected = rollouts.start(micro_batches, 0)

    def refuse(module: Any, inputs: Any) -> None:
        if len(inputs[0]) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")

    hook = pipe.unet.register_forward_pre_hook(refuse)
    found = rollouts.start(micro_batches, 0)
    assert "reward.rollout_batch_size: memory ran out; 4 from now on" in capsys.readouterr().out
    with Calls() as calls:
        rollouts.start(micro_batches, 1)
    hook.remove()
    assert calls.without == {4: 2 * 4}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.latents, other.latents, rtol=1e-4, atol=1e-4)


@pytest.fixture
def compiled(monkeypatch):
    """Blocks run as graphs, without a compiler."""
    torch.compiler.reset()
    eager = partial(compile_blocks, backend="eager")
    monkeypatch.setattr("rewardedit.training.finetune.compile_blocks", eager)
    yield
    torch.compiler.reset()


def test_a_training_compiles_its_blocks_where_asked(compiled, tiny_editor, shared, tmp_path, capsys):
    losses = []
    for name, asked in (("plain", False), ("compiled", True)):
        train = replace(FAST, batch_size=2, compile=asked)
        trained(tiny_editor, shared, tmp_path / name, replace(REWARD, weight=0.0), train)
        losses.append(read_log(tmp_path / name)[0]["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    graphs = re.search(r"compile: (\d+) graphs", capsys.readouterr().out)
    assert graphs is not None
    assert int(graphs[1]) > 0


@pytest.mark.slow
def test_compiled_blocks_train_the_same_lora(compiled, tiny_editor, shared, tmp_path):
    """Rollouts run the compiled blocks with the weights of the moment; so does the model without its LoRA."""
    reward = replace(REWARD, reference_weight=0.5)
    logs = []
    for name, asked in (("plain", False), ("compiled", True)):
        train = replace(FAST, lora_rank=2, max_steps=2, compile=asked)
        trained(tiny_editor, shared, tmp_path / name, reward, train)
        logs.append([line["loss"] for line in read_log(tmp_path / name)])
    assert logs[1] == pytest.approx(logs[0], rel=1e-5)
    plain, graphs = (load_file(tmp_path / name / "lora" / LORA) for name in ("plain", "compiled"))
    assert plain.keys() == graphs.keys()
    for name, weight in plain.items():
        torch.testing.assert_close(graphs[name], weight, rtol=1e-3, atol=1e-5)


@pytest.fixture
def rerun(monkeypatch):
    """Recorded calls are run again, without a GPU."""
    monkeypatch.setattr(replaying, "Replay", Rerun)
    yield
    HELD.clear()


def test_replayed_rollouts_train_the_same(rerun, tiny_editor, shared, tmp_path, capsys):
    reward = replace(REWARD, num_inference_steps=(3,))
    for name, asked in (("plain", False), ("graphs", True)):
        train = replace(FAST, max_steps=2, graphs=asked)
        trained(tiny_editor, shared, tmp_path / name, reward, train)
    plain, graphs = (tmp_path / name for name in ("plain", "graphs"))
    assert read_log(plain) == read_log(graphs)
    assert torch.equal(change(plain, tiny_editor), change(graphs, tiny_editor))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("graphs: ")]
    assert re.fullmatch(r"graphs: 1 recorded in .* s; 0 calls ran as they are", line)


def test_recordings_of_the_old_policy_outlive_its_updates(rerun, tiny_editor, tmp_path):
    """Losses between the rollouts compute with other adapters, and record nothing."""
    found = []
    for name, asked in (("plain", False), ("graphs", True)):
        recipe = nft.Config(**settings(tiny_editor, {"graphs": asked}))
        inputs, tuning, old, rollouts = parts(recipe, tmp_path / name)
        images = []
        for number in range(2):
            with old.active(), tuning.rollouts():
                images.append(rollouts.make(number, tuning.loop).latents)
            with torch.no_grad(), reference(tuning.modules.unet):
                cond = inputs.prompts.conditioning(torch.arange(6), torch.device("cpu"))
                tuning.editor.family.predict(tuning.modules.unet, images[-1], torch.tensor([5] * 6), cond)
            with torch.no_grad():
                for weight, _ in old.pairs:
                    weight.add_(0.1)
            old.follow(0.0)
        found.append(torch.stack(images))
        assert (tuning.replay is not None) == asked
        if tuning.replay is not None:
            assert tuning.replay.made == 1
            assert tuning.replay.calls == 2 * recipe.reward.num_inference_steps
    assert torch.equal(found[0], found[1])


def test_without_a_gpu_rollouts_run_as_they_are(tiny_editor, shared, tmp_path, capsys):
    train = replace(FAST, batch_size=2, graphs=True)
    trained(tiny_editor, shared, tmp_path, replace(REWARD, num_inference_steps=(3,)), train)
    assert "graphs: not recorded (no GPU)" in capsys.readouterr().out


def test_graphs_are_refused_without_rollouts(tiny_editor):
    train = replace(FAST, graphs=True)
    message = r"train\.graphs: has no effect without rollouts; leave it out"
    with pytest.raises(ValueError, match=message):
        reward_conditioned.Config("x", DATA, RelabelConfig(scorer="l1"), tiny_editor, train=train)
    with pytest.raises(ValueError, match=message):
        dpo.Config(**settings(tiny_editor, {"graphs": True}, reward=OnlineConfig("l1")))


def test_texts_of_recorded_calls_have_few_lengths(shared):
    arrays = {"embeds": np.ones((3, 90, 4), np.float16), "lengths": np.array([70, 3, 1], np.int32)}
    texts = TextCache(arrays, torch.arange(2), torch.full((2,), 2), torch.zeros(2).long(), 0)
    shapes = {}
    for rounded in (False, True):
        prompts = replace(shared.rollouts, texts=texts, rounded=rounded)
        cond = prompts.conditioning(torch.tensor([0, 1]), torch.device("cpu"))
        assert cond.null_embeds is not None
        assert cond.lengths is not None
        shapes[rounded] = (cond.embeds.shape[1], cond.null_embeds.shape[1], cond.lengths.tolist())
        assert not cond.embeds[:, 90:].any()
    assert shapes == {False: (70, 1, [70, 3]), True: (128, 64, [70, 3])}


class Keeper(DPMSolverMultistepScheduler):
    def step(self, *args: Any, **options: Any) -> Any:
        self.tree = object()
        return super().step(*args, **options)


def test_a_scheduler_that_cannot_be_divided_is_refused_before_anything_runs(tiny_editor, monkeypatch):
    monkeypatch.setattr("rewardedit.trainers.refl.load_scheduler", lambda name: Keeper())
    config = Config("x", DATA, REWARD, tiny_editor, FAST, MonitorConfig(n=2, held_out=CLIP_D))
    with pytest.raises(ValueError, match=r"reward\.scheduler: Keeper: keeps tree .* reward\.scheduler=ddpm"):
        require_rollouts(config)


def test_calls_of_the_full_size_recipes():
    from rewardedit.cli import load_recipe

    _, config = load_recipe("magicbrush-refl", [])
    assert unet_calls(config.train, config.reward, 1) == [UnetCalls(8, 2, True), UnetCalls(53, 8, False)]
    assert unet_calls(config.train, config.reward, 4) == [UnetCalls(2, 2, True), UnetCalls(53, 2, False)]
    _, config = load_recipe("magicbrush-refl-24gb", [])
    expected = [UnetCalls(24, 1, True), UnetCalls(53, 8, False), UnetCalls(8, 1, False)]
    assert unet_calls(config.train, config.reward, 1) == expected


@pytest.mark.slow
def test_memory_of_rollouts_follows_the_rows_that_are_taken_together(tiny_editor):
    blueprint = load_blueprint(tiny_editor, 32)
    needed = {}
    for rows in (None, 2):
        reward = replace(REWARD, rollout_batch_size=rows)
        config = Config("x", DATA, reward, tiny_editor, FAST, MonitorConfig(n=2, held_out=CLIP_D))
        scorers = {"reward": load_scorer("l1"), "held_out": load_scorer("l1")}
        needed[rows] = refl_memory(config, blueprint, scorers)
    assert needed[None]["rollouts"] > needed[2]["rollouts"]
    assert needed[None]["step"] == needed[2]["step"]
    graphs = refl_memory(replace(config, train=replace(FAST, graphs=True)), blueprint, scorers)
    kept = graphs["step"] - needed[2]["step"]
    assert graphs["update"] - needed[2]["update"] == kept > 0, "recordings keep their memory"
    assert graphs["rollouts"] == needed[2]["rollouts"] > kept
