"""Text encoders that leave the GPU: where they are, and that trainings stay the same to the bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionInstructPix2PixPipeline
from safetensors.torch import load_file
from torch import nn

from rewardedit import devices, load_editor
from rewardedit.data import DataConfig, open_rows
from rewardedit.diffusion.editor_files import LORA
from rewardedit.diffusion.editors import Editor, SamplingConfig
from rewardedit.diffusion.families import family_of
from rewardedit.diffusion.stochastic import NoiseConfig
from rewardedit.files import read_log
from rewardedit.trainers import dpo, flow_grpo, nft, refl
from rewardedit.trainers.reward_conditioned import finetune
from rewardedit.training.finetune import Finetuning
from rewardedit.training.latents import LatentCache, make_cache
from rewardedit.training.memory.blueprint import load_blueprint
from rewardedit.training.memory.peak import FULL, GIB, parameters
from rewardedit.training.memory.savers import fit_to_card
from rewardedit.training.memory.stages import finetuning_memory, training_memory
from rewardedit.training.monitor import LOG, MonitorConfig
from rewardedit.training.offloading import OffloadedTextEncoders
from rewardedit.training.reward import RewardConfig
from rewardedit.training.trainable import RewardLabels, TrainConfig, load_base
from tests.editors import small_qwen_area, tiny_klein, tiny_kontext, tiny_qwen
from tests.online import REWARD, settings

DATA = DataConfig("shapes", limit=8, size=32)
LABELS = RewardLabels(None, [0] * 8)
OFFLOADED = TrainConfig(
    max_steps=2,
    batch_size=4,
    lr=1e-2,
    lr_warmup_steps=0,
    lora_rank=2,
    ema=None,
    log_every=1,
    tracker="none",
    validate_every=2,
    validation_rows=1,
    offload_text_encoder=True,
)
KEPT = replace(OFFLOADED, offload_text_encoder=False)
LOOK = MonitorConfig(n=2, num_inference_steps=1, held_out={"clip_d": {"checkpoint": "shapes/clip"}})


def cache_of(base: str, folder: Path) -> LatentCache:
    return make_cache(open_rows(DATA), DATA, load_base(base, devices.default_device()), folder)


class Placed:
    """A monitor that edits an image and notes where the text encoder is."""

    def __init__(self) -> None:
        self.places: list[str] = []

    def check(self, editor: Editor, step: int) -> bool:
        self.places.append(editor.pipe.text_encoder.device.type)
        edited = editor(torch.rand(1, 3, 32, 32), "make it red", 0, settings=SamplingConfig(1))
        return not bool(edited.isfinite().all())


def test_a_step_has_no_text_encoder_on_its_device(standin_device, tiny_editor, tmp_path):
    cache = cache_of(tiny_editor, tmp_path / "cache")
    tuning = Finetuning(OFFLOADED, tiny_editor, cache, LABELS, tmp_path / "run")
    pipe = tuning.editor.pipe
    assert tuning.offloaded is not None
    (encoder,) = tuning.offloaded.encoders.values()
    monitor = Placed()
    for step in range(2):
        assert pipe.text_encoder is None
        assert {p.device.type for p in encoder.parameters()} == {"cpu"}
        assert pipe.device.type == standin_device
        for micro in tuning.micro_batches(step):
            tuning.diffusion_loss(micro).backward()
        assert not tuning.check(monitor, step)
    assert monitor.places == [standin_device] * 2
    tuning.save_previews()
    assert list((tmp_path / "run" / "validation").rglob("*.png")), "a preview that fails ends no run"


@pytest.mark.parametrize(("make", "count"), [(tiny_kontext, 2), (tiny_klein, 1), (tiny_qwen, 1)])
def test_encoders_that_come_back_encode_the_same(make, count, monkeypatch):
    small_qwen_area(monkeypatch)
    pipe = make()
    source = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    before = family_of(pipe).encode_texts(pipe, ["make it red"], source)
    index = dict(pipe.config)
    offloaded = OffloadedTextEncoders(pipe, "cpu")
    assert len(offloaded.encoders) == count
    assert not any(getattr(pipe, name) for name in offloaded.encoders)
    with pytest.raises((AttributeError, TypeError)):
        family_of(pipe).encode_texts(pipe, ["make it red"], source)
    with offloaded.in_use():
        after = family_of(pipe).encode_texts(pipe, ["make it red"], source)
        assert dict(pipe.config) == index, "it is saved as before"
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not any(getattr(pipe, name) for name in offloaded.encoders)


def without_room(encoder: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out once a part of the encoder is on the GPU."""

    def move(place: Any) -> nn.Module:
        if torch.device(place).type == "cpu":
            return nn.Module.to(encoder, place)
        nn.Module.to(next(encoder.children()), place)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(encoder, "to", move)


def test_encoders_without_room_end_no_run(standin_device, tiny_editor, tmp_path, monkeypatch):
    cache = cache_of(tiny_editor, tmp_path / "cache")
    whole = replace(OFFLOADED, lora_rank=None)
    tuning = Finetuning(whole, tiny_editor, cache, LABELS, tmp_path / "run")
    assert tuning.offloaded is not None
    (encoder,) = tuning.offloaded.encoders.values()
    without_room(encoder, monkeypatch)

    with pytest.warns(UserWarning, match="no previews, the training goes on: OutOfMemoryError: CUDA out"):
        tuning.save_previews()
    assert {p.device.type for p in encoder.parameters()} == {"cpu"}
    assert tuning.editor.pipe.text_encoder is None

    saved = load_editor(str(tuning.save()), device="cpu").pipe.text_encoder
    assert all(torch.equal(*pair) for pair in zip(saved.parameters(), encoder.parameters(), strict=True))
    assert tuning.editor.pipe.text_encoder is None


def test_plain_finetuning_is_the_same_to_the_bit(tiny_editor, tmp_path):
    cache = cache_of(tiny_editor, tmp_path / "cache")
    found = []
    for name, config in (("kept", KEPT), ("offloaded", OFFLOADED)):
        whole = replace(config, lora_rank=None)
        out = finetune(whole, tiny_editor, cache, LABELS, tmp_path / name)
        pipe = StableDiffusionInstructPix2PixPipeline.from_pretrained(out)
        assert pipe.text_encoder is not None
        found.append(torch.cat([p.detach().flatten() for p in pipe.unet.parameters()]))
        previews = sorted((tmp_path / name / "validation").rglob("*.png"))
        assert len(previews) == 1
        found.append(previews[0].read_bytes())
    assert torch.equal(found[0], found[2])
    assert found[1] == found[3]


def config_of(method: str, base: str, train: TrainConfig) -> Any:
    if method == "refl":
        reward = RewardConfig("l1", num_inference_steps=(2,))
        return refl.Config("x", DATA, reward, base, train, LOOK)
    module = {"nft": nft, "flow_grpo": flow_grpo, "dpo": dpo}[method]
    more: dict[str, Any] = {}
    if method == "dpo":
        more["pairs"] = "rollouts"
    elif method == "flow_grpo":
        more["noise"] = NoiseConfig("ddim", noise_steps=1)
    return module.Config(**{**settings(base, {}, reward=REWARD, **more), "train": train})


@pytest.mark.parametrize(
    "method", ["refl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("nft", "flow_grpo", "dpo"))]
)
def test_a_training_with_rewards_is_the_same(method, tiny_editor, tmp_path):
    module = {"refl": refl, "nft": nft, "flow_grpo": flow_grpo, "dpo": dpo}[method]
    found = []
    for name, train in (("kept", KEPT), ("offloaded", OFFLOADED)):
        train = replace(train, batch_size=6)
        out = module.train(config_of(method, tiny_editor, train), tmp_path / name)
        (monitor,) = (tmp_path / name).rglob(LOG)
        found.append((load_file(out / LORA), read_log(tmp_path / name), read_log(monitor.parent, LOG)))
    (weights, log, checks), (others, other_log, other_checks) = found
    assert weights.keys() == others.keys()
    assert all(torch.equal(value, others[key]) for key, value in weights.items())
    assert log == other_log
    assert checks == other_checks
    assert checks


def test_a_trained_text_encoder_is_not_offloaded():
    with pytest.raises(ValueError, match=r"offload_text_encoder: .* leave one of it and text_encoder_lr out"):
        TrainConfig(text_encoder_lr=1e-4, offload_text_encoder=True)


def test_steps_need_less_and_previews_the_same(tiny_editor):
    editor = load_blueprint(tiny_editor, 32)
    settings = (KEPT, OFFLOADED, replace(OFFLOADED, ema=0.99))
    kept, offloaded, averaged = (finetuning_memory(editor, train) for train in settings)
    encoder = FULL * sum(map(parameters, editor.text_encoders))
    assert kept.resident - offloaded.resident == encoder > 0
    assert kept.encoding == kept.resident == offloaded.encoding
    assert kept.step == offloaded.step
    adapter = kept.update
    assert kept.loaded == offloaded.loaded == editor.bytes() + adapter
    assert averaged.loaded == editor.bytes() + 2 * adapter


def test_a_card_must_hold_all_that_is_loaded(tmp_path):
    """Its text encoder alone has 9.1 GiB, which the GPU holds while the prompts are encoded."""
    tiny_kontext().save_pretrained(tmp_path)
    editor = load_blueprint(str(tmp_path), 64)
    editor = replace(editor, text_encoders=[nn.Linear(70_000, 70_000, device="meta")])
    train = replace(OFFLOADED, batch_size=1, gradient_checkpointing=True, validate_every=0)
    with pytest.raises(ValueError, match=r"train\.memory: expected a GPU of 1.*; got 8\.0 GiB"):
        fit_to_card(train, lambda config: training_memory(editor, config), 8 * GIB)


def test_the_editor_of_a_finished_run_loads(tiny_editor, tmp_path):
    cache = cache_of(tiny_editor, tmp_path / "cache")
    out = finetune(OFFLOADED, tiny_editor, cache, LABELS, tmp_path / "run")
    assert load_editor(str(out)).pipe.text_encoder is not None
