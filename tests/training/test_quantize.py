"""A LoRA on a base in 4 bits: what it computes, what is trained and kept, and what is refused."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from torch import nn

from rewardedit import RewardPrompt, SamplingConfig, load_editor
from rewardedit.data import DataConfig, open_rows
from rewardedit.diffusion.editor_files import LORA
from rewardedit.diffusion.editors import Editor
from rewardedit.diffusion.saving import save_editor
from rewardedit.models import four_bit
from rewardedit.models.four_bit import four_bit_bytes, linear_layers, quantize, saved_bytes
from rewardedit.reward_prompt import RewardScale
from rewardedit.trainers.reward_conditioned import finetune
from rewardedit.training.estimate import require_trainable
from rewardedit.training.finetune import Finetuning
from rewardedit.training.latents import LatentCache, make_cache
from rewardedit.training.memory.blueprint import load_blueprint
from rewardedit.training.memory.peak import FULL, HALF
from rewardedit.training.memory.stages import finetuning_memory, trained_unet
from rewardedit.training.prompt_cache import encoder_of
from rewardedit.training.trainable import RewardLabels, TrainConfig, load_base
from tests.editors import tiny_klein, tiny_kontext, tiny_qwen
from tests.readme import ROOT, blocks

DATA = DataConfig("shapes", limit=4, size=32)
LABELS = RewardLabels(None, [0] * 4)
TRAIN = TrainConfig(
    max_steps=2,
    batch_size=2,
    lr=1e-2,
    lr_warmup_steps=0,
    lora_rank=2,
    ema=None,
    log_every=1,
    tracker="none",
    conditioning_dropout=0.0,
    quantize="4bit",
)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("base")
    tiny_kontext().save_pretrained(folder)
    return str(folder)


def cache_of(base: str, folder: Path) -> LatentCache:
    return make_cache(open_rows(DATA), DATA, load_base(base, "cpu", "4bit"), folder)


def frozen(module: nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for name, weight in module.named_parameters():
        if not weight.requires_grad:
            found[name] = weight.detach().clone()
    return found


def stored(weight: Any) -> int:
    """Bytes of a weight in 4 bits, with all that it is restored from."""
    state = weight.quant_state
    scales = (state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code)
    return weight.nbytes + sum(value.nbytes for value in scales)


@pytest.mark.parametrize("sides", [(64, 32), (24, 10), (200, 300)])
def test_a_layer_takes_the_bytes_of_the_estimate(sides):
    model = nn.Sequential(nn.Linear(*sides))
    n = model[0].weight.numel()
    saved = saved_bytes(model, FULL)
    quantize(model, "cpu")
    assert stored(model[0].weight) == four_bit_bytes(n) == FULL * n - saved


def test_a_layer_computes_as_autocast_lets_it():
    torch.manual_seed(0)
    plain = nn.Linear(64, 32)
    model = nn.Sequential(nn.Linear(64, 32))
    model.load_state_dict({f"0.{name}": value for name, value in plain.state_dict().items()})
    quantize(model, "cpu")
    x = torch.randn(16, 64, requires_grad=True)
    exact = plain(x)
    close = model(x)
    assert close.dtype == torch.float32
    assert 0 < float((close - exact).detach().norm() / exact.detach().norm()) < 0.15
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
    close.sum().backward()
    assert x.grad is not None
    restored = torch.linalg.lstsq(torch.eye(64), (model(torch.eye(64)) - model[0].bias).detach()).solution
    assert torch.allclose(x.grad, restored.sum(1).expand(16, -1), atol=1e-5)


def test_layers_that_are_named_stay_as_they_are():
    pipe = tiny_kontext()
    names = [name for name, _ in linear_layers(pipe.text_encoder_2)]
    assert names
    assert not [name for name in names if name.endswith(".wo")], "T5 casts its input to the weight's type"
    qwen = tiny_qwen()
    names = [name for name, _ in linear_layers(qwen.text_encoder)]
    assert names
    assert not [name for name in names if "visual" in name or "lm_head" in name]
    kept = [name for name, _ in linear_layers(qwen.transformer, ("transformer_blocks.0.img_mod",))]
    every = [name for name, _ in linear_layers(qwen.transformer)]
    assert set(every) - set(kept) == {"transformer_blocks.0.img_mod.1"}


def test_the_lora_is_trained_and_the_base_is_not(base, tmp_path):
    tuning = Finetuning(TRAIN, base, cache_of(base, tmp_path / "cache"), LABELS, tmp_path / "run")
    unet = tuning.modules.unet
    before = frozen(unet)
    assert sum(weight.dtype == torch.uint8 for weight in before.values()) > 10
    first = [weight.detach().clone() for weight in tuning.modules.trained]
    for step in tuning.loop.steps():
        for micro in tuning.micro_batches(step):
            with tuning.loop.accumulate():
                tuning.loop.backward(tuning.diffusion_loss(micro), micro.ids)
        tuning.loop.update()
    changed = [not torch.equal(a, b) for a, b in zip(first, tuning.modules.trained, strict=True)]
    assert all(changed)
    after = frozen(unet)
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())

    # The result is a LoRA, which loads on the same base.
    out = tuning.save()
    assert {path.name for path in out.iterdir()} == {LORA, "sampling.json"}
    assert all("lora" in name for name in load_file(out / LORA))
    loaded = load_editor(str(out), device="cpu")
    assert loaded.quantize == "4bit"
    source = torch.rand(1, 3, 32, 32)
    unet.eval()
    edited = tuning.current_editor()(source, "make it red", num_inference_steps=2)
    assert torch.equal(loaded(source, "make it red", num_inference_steps=2), edited)
    whole = load_editor(str(out), device="cpu", quantize=None)
    assert whole.quantize is None
    assert {p.dtype for p in whole.pipe.transformer.parameters()} == {torch.float32}
    assert not torch.equal(whole(source, "make it red", num_inference_steps=2), edited)


def test_a_lora_is_a_base_once_it_is_fused(base, tmp_path, monkeypatch):
    """By the block of docs/refl.md, from a LoRA that was trained on 4 bits."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    editor = load_editor(base, device="cpu")
    layers = list(editor.family.lora_targets)
    editor.pipe.transformer.add_adapter(LoraConfig(r=2, target_modules=layers, init_lora_weights=False))
    prompt = RewardPrompt.adiee(scale=RewardScale((0.0, 0.5, 1.0)))
    save_editor(
        Editor(editor.pipe, SamplingConfig(2), prompt, quantize="4bit"), Path("runs/klein-refl"), base=base
    )
    with pytest.raises(ValueError, match=r"got a LoRA; fuse it first .*docs/refl.md"):
        load_base("runs/klein-refl", "cpu")

    (block,) = [text for text in blocks((ROOT / "docs/refl.md").read_text(), "python gpu") if "fuse" in text]
    exec(compile(block, "docs/refl.md", "exec"), {})
    fused = load_base("fused", "cpu")
    assert fused.prompt == prompt
    assert fused.settings == SamplingConfig(2)
    source = torch.rand(1, 3, 32, 32)
    edited = fused(source, "make it red")
    lora = load_editor("runs/klein-refl", device="cpu", quantize=None)(source, "make it red")
    plain = load_editor(base, device="cpu")(source, "make it red", settings=SamplingConfig(2))
    assert (edited - lora).abs().mean() < 0.1 * (plain - lora).abs().mean()


@pytest.mark.slow  # the test above has the parts
def test_a_killed_training_goes_on_as_unbroken(base, tmp_path):
    cache = cache_of(base, tmp_path / "cache")
    unbroken = finetune(TRAIN, base, cache, LABELS, tmp_path / "unbroken")
    half = replace(TRAIN, max_steps=1, checkpoint_every=1, lr_scheduler="constant_with_warmup")
    finetune(half, base, cache, LABELS, tmp_path / "resumed")
    (checkpoint,) = (tmp_path / "resumed" / "checkpoints").glob("*")
    size = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    assert size < 500_000, "the base is not in it"
    resumed = finetune(replace(half, max_steps=2), base, cache, LABELS, tmp_path / "resumed", resume=True)
    weights, others = load_file(unbroken / LORA), load_file(resumed / LORA)
    assert all(torch.equal(value, others[name]) for name, value in weights.items())


def test_prompts_of_another_precision_are_not_taken(base):
    plain, few = (encoder_of(load_base(base, "cpu", bits)) for bits in (None, "4bit"))
    assert plain == {"base": base}
    assert few == {"base": base, "quantize": "4bit"}


def test_an_estimate_counts_four_bits_a_weight(base):
    editor = load_blueprint(base, 32)
    train = replace(TRAIN, mixed_precision="no")
    few, plain = (finetuning_memory(editor, replace(train, quantize=bits)) for bits in ("4bit", None))
    saved = 0
    for part, number in ((editor.unet, FULL), (editor.text_encoders[1], HALF)):  # as they are loaded
        for _, layer in linear_layers(part):
            n = layer.weight.numel()
            saved += number * n - four_bit_bytes(n)
    assert plain.resident - few.resident == saved - editor.restored
    assert editor.bytes(HALF) - editor.bytes(HALF, "4bit") < saved
    offloaded = finetuning_memory(editor, replace(train, offload_text_encoder=True))
    assert offloaded.encoding == few.resident
    assert few.step == plain.step


def test_without_a_lora_or_linear_layers_it_is_refused(tiny_editor):
    with pytest.raises(ValueError, match="quantize: quantised weights cannot be trained; set lora_rank"):
        TrainConfig(quantize="4bit")
    with pytest.raises(ValueError, match=r"quantize: expected an editor by flow .* InstructPix2Pix"):
        require_trainable(TRAIN, tiny_editor, 32)
    with pytest.raises(ValueError, match="quantize: expected an editor by flow matching"):
        trained_unet(load_blueprint(tiny_editor, 32), TRAIN)
    with pytest.raises(ValueError, match="quantize: expected an editor by flow matching"):
        load_editor(tiny_editor, quantize="4bit")


def test_a_missing_package_is_named_before_a_stage(base, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(four_bit, "find_spec", lambda name: None if name == "bitsandbytes" else find(name))
    with pytest.raises(ValueError, match="quantize needs bitsandbytes: pip install"):
        require_trainable(TRAIN, base, 32)


def test_a_whole_pipeline_is_not_saved(tmp_path):
    tiny_klein().save_pretrained(tmp_path / "base")
    editor = load_editor(str(tmp_path / "base"), device="cpu", quantize="4bit")
    with pytest.raises(ValueError, match=r"a pipeline in 4 bits is not saved whole; .* quantize=None"):
        save_editor(editor, tmp_path / "out")
    assert not (tmp_path / "out").exists()
