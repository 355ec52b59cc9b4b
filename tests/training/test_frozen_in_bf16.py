"""Frozen parts in bf16 beside a trained copy in fp32: the same steps, less memory, and results in fp32."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from rewardedit import devices
from rewardedit.data import DataConfig, open_rows
from rewardedit.files import read_log
from rewardedit.models.half_weights import HalfWeights, bytes_saved
from rewardedit.scorers import load_scorer
from rewardedit.trainers import refl
from rewardedit.training.estimate import load_blueprint
from rewardedit.training.finetune import Finetuning
from rewardedit.training.latents import make_cache
from rewardedit.training.memory.savers import candidates
from rewardedit.training.memory.stages import finetuning_memory, refl_memory
from rewardedit.training.monitor import LOG, MonitorConfig
from rewardedit.training.reward import RewardConfig
from rewardedit.training.trainable import RewardLabels, TrainConfig, load_base

DATA = DataConfig("shapes", limit=8, size=32)
CLIP = {"clip_d": {"checkpoint": "shapes/clip"}}
AS_LOADED = TrainConfig(
    max_steps=2,
    batch_size=4,
    lr=1e-3,
    lr_warmup_steps=0,
    ema=None,
    log_every=1,
    tracker="none",
    mixed_precision="bf16",
    validate_every=2,
    validation_rows=1,
    checkpoint_every=1,
    offload_text_encoder=True,
)
IN_BF16 = replace(AS_LOADED, frozen_in_bf16=True)


@pytest.fixture(autouse=True)
def a_cpu_that_knows_bf16(monkeypatch) -> None:
    monkeypatch.setattr(devices, "cpu_knows_bf16", lambda: True)


def recipe(base: str, train: TrainConfig) -> refl.Config:
    reward = RewardConfig(CLIP, num_inference_steps=(2,))
    watch = MonitorConfig(n=2, num_inference_steps=1, held_out="ssim")
    return refl.Config("x", DATA, reward, base, train, watch)


def types_of(part: nn.Module) -> set[torch.dtype]:
    return {p.dtype for m in part.modules() if isinstance(m, nn.Conv2d | nn.Linear) for p in m.parameters()}


def test_a_step_computes_the_same_and_the_result_is_whole(tiny_editor, tmp_path):
    weights, logs, checks = [], [], []
    for name, train in (("as loaded", AS_LOADED), ("in bf16", IN_BF16)):
        out = refl.train(recipe(tiny_editor, train), tmp_path / name)
        weights.append({str(p.relative_to(out)): load_file(p) for p in sorted(out.rglob("*.safetensors"))})
        logs.append(read_log(tmp_path / name))
        (monitor,) = (tmp_path / name).rglob(LOG)
        checks.append(read_log(monitor.parent, LOG))
        assert len(list(out.parent.rglob("00.png"))) == 1, "previews are made"

    assert logs[0] == logs[1]
    assert weights[0].keys() == weights[1].keys()
    assert {name.split("/")[0] for name in weights[0]} == {"unet", "vae", "text_encoder"}
    for file, values in weights[0].items():
        for key, value in values.items():
            other = weights[1][file][key]
            assert value.dtype == other.dtype == torch.float32
            assert torch.equal(value, other), f"{file} {key}"
    for plain, halved in zip(*checks, strict=True):
        assert halved["clip_d"] == pytest.approx(plain["clip_d"], abs=0.05)
        assert halved["ssim"] == pytest.approx(plain["ssim"], abs=0.05)


def test_frozen_parts_are_in_bf16_and_checkpoints_are_not(tiny_editor, tmp_path):
    cache = make_cache(open_rows(DATA), DATA, load_base(tiny_editor, "cpu"), tmp_path / "cache")
    labels = RewardLabels(None, [0] * 8)
    train = replace(IN_BF16, offload_text_encoder=False, max_steps=1)
    tuning = Finetuning(train, tiny_editor, cache, labels, tmp_path / "run")
    pipe = tuning.editor.pipe
    assert types_of(pipe.vae) == types_of(pipe.text_encoder) == {torch.bfloat16}
    assert types_of(pipe.unet) == {torch.float32}
    for step in tuning.loop.steps():
        for micro in tuning.micro_batches(step):
            with tuning.loop.accumulate():
                tuning.loop.backward(tuning.diffusion_loss(micro), micro.ids)
        tuning.loop.update()
    (file,) = (tmp_path / "run" / "checkpoints").rglob("model.safetensors")
    assert {value.dtype for value in load_file(file).values()} == {torch.float32}


def test_originals_are_there_within_and_halves_after():
    layer = nn.Linear(2, 2).requires_grad_(False)
    before = layer.weight.clone()
    half = HalfWeights([nn.Sequential(layer, nn.LayerNorm(2).requires_grad_(False), nn.Linear(2, 2))])
    assert len(half.originals) == 2, "neither norms nor what is trained"
    with half.in_fp32():
        assert torch.equal(layer.weight, before)
    assert torch.equal(layer.weight, before.bfloat16())
    half.restore()
    assert torch.equal(layer.weight, before)


def test_memory_counts_what_bf16_saves(tiny_editor):
    editor = load_blueprint(tiny_editor, 32)
    kept = replace(AS_LOADED, offload_text_encoder=False)
    plain, halved = (finetuning_memory(editor, t) for t in (kept, replace(kept, frozen_in_bf16=True)))
    parts = [editor.vae, *editor.text_encoders]
    assert plain.resident - halved.resident == bytes_saved(parts) > 0
    assert plain.loaded == halved.loaded
    offloaded = finetuning_memory(editor, IN_BF16)
    assert halved.resident == offloaded.resident + offloaded.text_encoders


@pytest.mark.slow
def test_feedback_needs_less_while_it_takes_steps(tiny_editor):
    editor = load_blueprint(tiny_editor, 32)
    kept = replace(AS_LOADED, offload_text_encoder=False)
    parts = [editor.vae, *editor.text_encoders]

    def stages(train: TrainConfig) -> dict[str, int]:
        judges = {"clip_d": load_scorer(CLIP, device="cpu"), "ssim": load_scorer("ssim")}
        return refl_memory(recipe(tiny_editor, train), editor, judges)

    before, after = stages(kept), stages(replace(kept, frozen_in_bf16=True))
    judge = bytes_saved([load_scorer(CLIP, device="cpu")])
    assert before["update"] - after["update"] == bytes_saved(parts) + judge
    # A gradient through frozen weights keeps no casts of them.
    assert before["step"] - after["step"] > bytes_saved(parts) + judge
    for name in ("latents", "prompts", "sweep"):
        assert before[name] == after[name]


def test_auto_takes_it_after_smaller_batches():
    own = TrainConfig(batch_size=12, memory="auto", mixed_precision="bf16")
    tried = [(c.micro_batch_size, c.frozen_in_bf16, c.offload_text_encoder) for c in candidates(own)]
    assert tried[:5] == [
        (12, False, False),
        (6, False, False),
        (4, False, False),
        (12, True, False),
        (6, True, False),
    ]
    in_fp32 = replace(own, mixed_precision="no")
    assert not any(c.frozen_in_bf16 for c in candidates(in_fp32))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixed_precision": "no"}, r"frozen_in_bf16: expected mixed_precision: bf16; got no"),
        (
            {"mixed_precision": "bf16", "text_encoder_lr": 1e-4},
            r"frozen_in_bf16: the text encoder is trained",
        ),
    ],
)
def test_another_type_or_a_trained_encoder_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(frozen_in_bf16=True, **settings)


def test_a_cpu_without_units_keeps_them_as_they_are(monkeypatch):
    monkeypatch.setattr(devices, "cpu_knows_bf16", lambda: False)
    assert not IN_BF16.has_half_weights
