import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionInstructPix2PixPipeline, StableDiffusionPipeline
from safetensors.torch import load_file, save_file

from rewardedit import devices
from rewardedit.data import DataConfig, open_rows
from rewardedit.diffusion.editor_files import LORA
from rewardedit.diffusion.editors import load_editor, write_prompts
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.diffusion.saving import save_editor
from rewardedit.files import read_log
from rewardedit.images import load_image
from rewardedit.reward_prompt import RewardPrompt
from rewardedit.trainers.reward_conditioned import finetune
from rewardedit.training.estimate import require_trainable
from rewardedit.training.finetune import Finetuning, MicroBatch
from rewardedit.training.latents import LatentCache, encode_batch_size, make_cache
from rewardedit.training.loop import TrainingStopped
from rewardedit.training.memory.blueprint import load_blueprint
from rewardedit.training.memory.stages import trained_unet
from rewardedit.training.trainable import RewardLabels, TrainConfig, load_base, make_trainable
from tests.forks import launch, run_here
from tests.models import tiny_pipeline, tiny_unet

DATA = DataConfig("shapes", limit=32, size=32)
FAST = {
    "max_steps": 6,
    "batch_size": 4,
    "lr_warmup_steps": 1,
    "lr": 1e-3,
    "log_every": 1,
    "checkpoint_every": 3,
    "tracker": "none",
}


@pytest.fixture(scope="module")
def cache(tiny_editor, tmp_path_factory) -> LatentCache:
    return make_cache(
        open_rows(DATA), DATA, load_editor(tiny_editor), tmp_path_factory.mktemp("cache") / "latents"
    )


def labels(prompt: RewardPrompt | None = None) -> RewardLabels:
    return RewardLabels(prompt, [i % 5 for i in range(32)])


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_log(folder)]


def weights(folder: Path) -> torch.Tensor:
    pipe = StableDiffusionInstructPix2PixPipeline.from_pretrained(folder)
    return torch.cat([p.detach().flatten() for p in pipe.unet.parameters()])


def test_the_result_is_a_stock_pipeline_with_its_reward_prompt(tiny_editor, cache, tmp_path):
    prompt = RewardPrompt.adiee()
    out = finetune(TrainConfig(**FAST, ema=0.9), tiny_editor, cache, labels(prompt), tmp_path)
    assert RewardPrompt.load(out) == prompt
    libraries = {
        value[0]
        for value in json.loads((out / "model_index.json").read_text()).values()
        if isinstance(value, list)
    }
    assert libraries - {None} == {"diffusers", "transformers"}, "it loads without ours"
    pipe = StableDiffusionInstructPix2PixPipeline.from_pretrained(out, safety_checker=None)
    edited = pipe(
        "make it red", image=torch.zeros(1, 3, 32, 32), num_inference_steps=2, output_type="np"
    ).images
    assert edited.shape == (1, 32, 32, 3)
    assert not torch.equal(weights(out), weights(Path(tiny_editor)))


def test_text_is_the_same_to_the_byte_in_training_and_inference(tiny_editor, cache, monkeypatch):
    encoded: list[str] = []
    real = InstructPix2Pix.encode_prompts
    monkeypatch.setattr(
        InstructPix2Pix,
        "encode_prompts",
        lambda own, pipe, prompts: encoded.extend(prompts) or real(own, pipe, prompts),
    )
    editor = load_editor(tiny_editor)
    cache.texts(editor, RewardLabels(RewardPrompt.adiee(), [4] * 32))
    in_training = set(encoded)
    encoded.clear()
    editor.prompt = RewardPrompt.adiee()
    editor.encode(torch.rand(32, 3, 32, 32), cache.instructions, target_score=10.0)
    assert set(encoded) == in_training
    assert len(in_training) > 1


def test_eight_steps_of_one_equal_one_of_eight(tiny_editor, cache, tmp_path):
    runs = []
    for micro in (None, 1):
        config = TrainConfig(**FAST | {"batch_size": 8, "micro_batch_size": micro, "max_steps": 3}, ema=None)
        runs.append(
            (
                losses_of(config, tiny_editor, cache, tmp_path / f"{micro}"),
                weights(tmp_path / f"{micro}" / "pipeline"),
            )
        )
    assert runs[0][0] == pytest.approx(runs[1][0], rel=1e-5)
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-3, atol=2e-5)


def losses_of(
    config: TrainConfig, base: str, cache: LatentCache, folder: Path, resume: bool = False
) -> list[float]:
    folder.mkdir(exist_ok=True)
    finetune(config, base, cache, labels(), folder, resume)
    return losses(folder)


def test_a_killed_and_resumed_run_gives_the_losses_of_an_unbroken_one(tiny_editor, cache, tmp_path):
    config = TrainConfig(**FAST, ema=0.9)
    whole = losses_of(config, tiny_editor, cache, tmp_path / "whole")
    broken = tmp_path / "broken"
    finetune(config, tiny_editor, cache, labels(), broken_folder(broken), False)
    # As if it had been killed after step 4: the checkpoint of step 6 was never written.
    import shutil

    shutil.rmtree(broken / "checkpoints" / "step-000006")
    shutil.rmtree(broken / "pipeline")
    log = (broken / "metrics.jsonl").read_text().splitlines()
    (broken / "metrics.jsonl").write_text("\n".join(log[:4]) + "\n")
    assert losses_of(config, tiny_editor, cache, broken, resume=True) == pytest.approx(whole, rel=1e-6)
    torch.testing.assert_close(
        weights(broken / "pipeline"), weights(tmp_path / "whole" / "pipeline"), rtol=0, atol=1e-7
    )


def test_a_run_goes_on_with_more_passes_an_update_as_fewer_processes_make(tiny_editor, cache, tmp_path):
    config = TrainConfig(**FAST, ema=None)
    whole = losses_of(config, tiny_editor, cache, tmp_path / "whole")
    broken = tmp_path / "broken"
    losses_of(replace(config, max_steps=3), tiny_editor, cache, broken)
    more = replace(config, micro_batch_size=2)  # three updates of one pass are no multiple of two passes
    assert losses_of(more, tiny_editor, cache, broken, resume=True) == pytest.approx(whole, rel=1e-4)
    torch.testing.assert_close(
        weights(broken / "pipeline"), weights(tmp_path / "whole" / "pipeline"), rtol=1e-3, atol=2e-5
    )


def test_a_trainer_that_fits_nothing_to_the_card_refuses_auto(tiny_editor, cache, tmp_path):
    auto = TrainConfig(memory="auto", tracker="none")
    with pytest.raises(ValueError, match=r"train\.memory: expected given for this trainer, got auto; set"):
        Finetuning(auto, tiny_editor, cache, labels(), tmp_path)


def broken_folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_loss_that_is_no_number_stops_the_run_and_names_the_batch(tiny_editor, cache, tmp_path):
    spoiled = LatentCache(**{**vars(cache), "edited": np.array(cache.edited)})
    spoiled.edited[7] = np.nan
    with pytest.raises(
        TrainingStopped, match=r"the loss is nan at step \d, in the batch of rows .*train-0-7"
    ):
        finetune(TrainConfig(**FAST | {"max_steps": 20}), tiny_editor, spoiled, labels(), tmp_path)


def test_lora_trains_the_adapter_alone_and_loads_beside_its_base(tiny_editor, cache, tmp_path):
    out = finetune(
        TrainConfig(**FAST, ema=None, lora_rank=2), tiny_editor, cache, labels(RewardPrompt.adiee()), tmp_path
    )
    assert out.name == "lora"
    assert json.loads((out / "sampling.json").read_text())["base"] == tiny_editor
    pipe = StableDiffusionInstructPix2PixPipeline.from_pretrained(tiny_editor, safety_checker=None)
    pipe.load_lora_weights(out)
    editor = load_editor(str(tmp_path))
    assert editor.prompt == RewardPrompt.adiee()
    source = torch.rand(1, 3, 32, 32)
    changed = editor(source, ["make it red"], [0]), load_editor(tiny_editor)(source, ["make it red"], [0])
    assert not torch.equal(*changed)


@pytest.mark.slow
def test_a_checkpoint_of_a_lora_leaves_the_base_out(tiny_editor, cache, tmp_path):
    """One with all weights, as earlier versions wrote it, is read as well; one that lacks a weight is not."""
    config = TrainConfig(**FAST, lora_rank=2)
    whole = losses_of(config, tiny_editor, cache, tmp_path / "whole")
    folder = tmp_path / "run"
    losses_of(replace(config, max_steps=3), tiny_editor, cache, folder)
    file = folder / "checkpoints" / "step-000003" / "model.safetensors"
    stored = load_file(file)
    assert stored
    assert all(".lora_" in name for name in stored)
    tuned = load_base(tiny_editor, "cpu")
    make_trainable(tuned, config, labels())
    for name, kept in {
        "lacks one": dict(list(stored.items())[1:]),
        "all weights": {**tuned.pipe.unet.state_dict(), **stored},
        "the adapter": stored,
    }.items():
        save_file({key: weight.contiguous() for key, weight in kept.items()}, file)
        again = tmp_path / name
        shutil.copytree(folder, again)
        if name == "lacks one":
            with pytest.raises(ValueError, match=r"step-000003: cannot be loaded \(model\.safetensors lacks"):
                losses_of(config, tiny_editor, cache, again, resume=True)
        else:
            assert losses_of(config, tiny_editor, cache, again, resume=True)[3:] == whole[3:]


def test_a_lora_has_the_strength_that_it_was_trained_with(tiny_editor, tmp_path):
    editor = load_editor(tiny_editor)
    config = TrainConfig(lora_rank=2, lora_alpha=8, mixed_precision="no")
    denoiser = make_trainable(editor, config, labels()).unet
    for name, weight in denoiser.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(0))
    save_editor(editor, tmp_path / "lora", base=tiny_editor)
    asked = torch.rand(1, 3, 32, 32), ["make it red"], [0]
    trained, loaded, base = (
        e(*asked) for e in (editor, load_editor(str(tmp_path)), load_editor(tiny_editor))
    )
    torch.testing.assert_close(loaded, trained, rtol=0, atol=1e-4)
    assert (trained - base).abs().mean() > 0.01


def test_a_lora_of_a_text_to_image_model_is_refused(tmp_path):
    parts = tiny_pipeline().components
    parts["unet"] = tiny_unet(4)
    StableDiffusionPipeline(**parts, requires_safety_checker=False).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="lora_rank: the base has no channels for a source image"):
        make_trainable(load_editor(str(tmp_path)), TrainConfig(lora_rank=2), labels())
    with pytest.raises(ValueError, match="lora_rank: the base has no channels for a source image"):
        require_trainable(TrainConfig(lora_rank=2, mixed_precision="no"), str(tmp_path), 32)
    with pytest.raises(ValueError, match="lora_rank: the base has no channels for a source image"):
        trained_unet(load_blueprint(str(tmp_path), 32), TrainConfig(lora_rank=2))
    make_trainable(load_editor(str(tmp_path)), TrainConfig(), labels())


def test_a_checkpoint_is_written_when_all_of_its_step_is_done(tiny_editor, cache, tmp_path):
    loop = Finetuning(TrainConfig(**FAST, ema=None), tiny_editor, cache, labels(), tmp_path).loop
    for step in loop.steps():
        loop.update()
        assert not (tmp_path / "checkpoints" / f"step-{step + 1:06d}").exists()
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-000003", "step-000006"}


def test_what_a_lora_leaves_frozen_is_in_the_type_that_training_runs_in(
    tiny_editor, cache, tmp_path, monkeypatch
):
    monkeypatch.setattr(devices, "cpu_knows_bf16", lambda: True)
    config = TrainConfig(
        **FAST | {"max_steps": 1},
        ema=None,
        lora_rank=2,
        mixed_precision="bf16",
        validate_every=1,
        validation_rows=1,
    )
    models = make_trainable(load_editor(tiny_editor), config, labels())
    norms = (torch.nn.LayerNorm, torch.nn.GroupNorm)
    of_norms = {p for m in models.unet.modules() if isinstance(m, norms) for p in m.parameters()}
    frozen = {p for p in models.unet.parameters() if not p.requires_grad}
    assert {p.dtype for p in frozen - of_norms} == {torch.bfloat16}
    assert {p.dtype for p in of_norms} == {torch.float32}
    assert {p.dtype for p in models.trained} == {torch.float32}
    out = finetune(config, tiny_editor, cache, labels(), tmp_path)
    assert (tmp_path / "validation" / "step-000001" / "00.png").is_file()
    assert {w.dtype for w in load_file(out / LORA).values()} == {torch.float32}
    full = replace(config, lora_rank=None)
    assert {p.dtype for p in make_trainable(load_editor(tiny_editor), full, labels()).unet.parameters()} == {
        torch.float32
    }


def test_a_lora_of_the_small_editor_trains_in_bf16(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "cpu_knows_bf16", lambda: True)
    data = DataConfig("shapes", limit=4, size=64)
    latents = make_cache(open_rows(data), data, load_editor("shapes/editor"), tmp_path / "latents")
    config = TrainConfig(**FAST | {"max_steps": 1}, ema=None, lora_rank=2, mixed_precision="bf16")
    finetune(config, "shapes/editor", latents, RewardLabels(None, [0] * 4), tmp_path)
    assert (tmp_path / "lora" / LORA).is_file()


@pytest.mark.parametrize(
    "prompt",
    [RewardPrompt.adiee(), RewardPrompt.hive(), RewardPrompt("make it so: {instruction} (a {word})")],
)
def test_a_long_instruction_is_cut_and_never_its_label(prompt, tiny_editor, cache, monkeypatch):
    editor = load_editor(tiny_editor)
    editor.prompt = prompt
    monkeypatch.setattr("rewardedit.language.texts._told", set())
    instruction = "turn the small red circle into a big blue star " * 9
    with pytest.warns(
        UserWarning,
        match="1 of 1 texts are cut: the editor reads at most 32 tokens.*their labels are kept",
    ):
        worst, best = (
            editor.encode(torch.rand(1, 3, 32, 32), [instruction], target_score=s).inputs["prompt_embeds"]
            for s in (0, 10)
        )
    assert not torch.equal(worst, best), "asked for one and for five in the same words"
    long = LatentCache(**{**vars(cache), "instructions": [*cache.instructions[:-1], instruction]})
    monkeypatch.setattr("rewardedit.language.texts._told", set())
    with pytest.warns(UserWarning, match="their labels are kept"):
        texts = long.texts(editor, RewardLabels(prompt, [4] * 32))
    trained = texts.take(torch.tensor([31]), torch.tensor([False]))[0]["tokens"]
    read = editor.pipe.tokenizer.batch_decode(trained, skip_special_tokens=True)[0]
    assert "five" in read
    asked = write_prompts(editor.pipe, [instruction], [4], prompt)
    assert torch.equal(InstructPix2Pix().tokenize(editor.pipe, asked).input_ids, trained)
    assert 30 <= len(editor.pipe.tokenizer(asked[0]).input_ids) <= 32, (
        "as much of the instruction as there is room for"
    )


def test_a_template_without_room_for_an_instruction_is_refused(tiny_editor):
    prompt = RewardPrompt("{instruction}" + " and so on" * 20 + " {word}")
    with pytest.raises(ValueError, match="template: too long for the tokenizer"):
        write_prompts(load_editor(tiny_editor).pipe, ["make it red"], [0], prompt)


def test_so_many_images_are_encoded_at_a_time(tiny_editor, tmp_path):
    assert [encode_batch_size(size) for size in (64, 256, 512, 4096)] == [64, 32, 8, 1]
    editor = load_editor(tiny_editor)
    sizes = []
    editor.pipe.vae.encoder.register_forward_hook(lambda module, inputs, out: sizes.append(len(out)))
    make_cache(
        open_rows(replace(DATA, limit=10)),
        replace(DATA, limit=10),
        editor,
        tmp_path / "latents",
        batch_size=4,
    )
    assert sizes == [4, 4, 4, 4, 2, 2]


def test_the_learned_embedding_is_trained_saved_and_asked(tiny_editor, cache, tmp_path):
    out = finetune(
        TrainConfig(**FAST, ema=None), tiny_editor, cache, labels(RewardPrompt.learned()), tmp_path
    )
    editor = load_editor(str(out))
    assert editor.embedding is not None
    assert editor.embedding.vectors.weight.shape == (6, 16)
    assert editor.embedding.vectors.weight.abs().sum() > 0
    source = torch.rand(1, 3, 32, 32)
    assert not torch.equal(
        editor(source, ["make it red"], [0], target_score=10),
        editor(source, ["make it red"], [0], target_score=0),
    )


def test_rows_without_a_label_are_left_out(tiny_editor, cache, tmp_path):
    with pytest.raises(ValueError, match="no row has a label"):
        finetune(TrainConfig(**FAST), tiny_editor, cache, RewardLabels(None, [None] * 32), tmp_path)


def test_everything_at_once(tiny_editor, cache, tmp_path):
    config = TrainConfig(
        **FAST | {"max_steps": 2, "tracker": "tensorboard"},
        mixed_precision="bf16",
        gradient_checkpointing=True,
        min_snr=5.0,
        lr_scheduler="cosine",
        validate_every=2,
        validation_rows=2,
        micro_batch_size=2,
    )
    finetune(config, tiny_editor, cache, labels(RewardPrompt.hive()), tmp_path)
    previews = sorted((tmp_path / "validation" / "step-000002").iterdir())
    assert [path.name for path in previews] == ["00.png", "01.png"]
    assert load_image(previews[0]).shape == (3, 32, 64), "source beside edit, at the recipe's size"
    assert list((tmp_path / "logs").rglob("events*"))


def test_a_preview_that_fails_warns_and_the_run_goes_on(tiny_editor, cache, tmp_path):
    config = TrainConfig(**FAST | {"max_steps": 1}, ema=None, validate_every=1, validation_rows=1)
    broken = LatentCache(**{**vars(cache), "data": replace(DATA, size=33)})  # no multiple of the VAE's factor
    with pytest.warns(
        UserWarning, match="no preview of row 0, the training goes on: ValueError: source: expected sides"
    ):
        out = finetune(config, tiny_editor, broken, labels(), tmp_path)
    assert (out / "model_index.json").is_file()


def test_a_run_with_xformers_saves_a_stock_pipeline(tiny_editor, cache, tmp_path, xformers):
    out = finetune(TrainConfig(**FAST | {"max_steps": 1}, ema=None), tiny_editor, cache, labels(), tmp_path)
    assert xformers, "the run took another processor"
    assert torch.isfinite(weights(out)).all()


@pytest.mark.parametrize(
    ("settings", "processes"), [({"batch_size": 6, "micro_batch_size": 4}, 1), ({"batch_size": 6}, 4)]
)
def test_a_batch_that_does_not_divide_is_refused(settings, processes):
    with pytest.raises(ValueError, match=r"batch_size: expected a multiple of .* got 6; take 8"):
        TrainConfig(**settings).micro_batches(processes)


@pytest.mark.parametrize(
    ("micro_batch", "processes", "expected"),
    [(None, 1, (384, 1)), (64, 1, (64, 6)), (64, 6, (64, 1)), (None, 3, (128, 1))],
)
def test_accumulation_follows_from_batch_micro_batch_and_processes(micro_batch, processes, expected):
    assert TrainConfig(batch_size=384, micro_batch_size=micro_batch).micro_batches(processes) == expected


def test_eight_bit_adam_is_asked_for_by_name(tiny_editor, cache, tmp_path):
    pytest.importorskip("torch")
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        with pytest.raises(ValueError, match="adamw8bit needs bitsandbytes"):
            finetune(TrainConfig(**FAST, optimizer="adamw8bit"), tiny_editor, cache, labels(), tmp_path)


def test_two_processes_equal_one(tiny_editor, tmp_path):
    """Two CPU processes see the batches, and have the losses and weights, of one."""
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from rewardedit.data import DataConfig, open_rows\n"
        "from rewardedit.diffusion.editors import load_editor\n"
        "from rewardedit.training.latents import make_cache\n"
        "from rewardedit.trainers.reward_conditioned import finetune\n"
        "from rewardedit.training.trainable import RewardLabels, TrainConfig\n"
        "torch.set_num_threads(1)\n"
        "base, out = sys.argv[1], Path(sys.argv[2])\n"
        "data = DataConfig('shapes', limit=32, size=32)\n"
        "cache = make_cache(open_rows(data), data, load_editor(base), out.parent / f'cache-{out.name}')\n"
        "out.mkdir(exist_ok=True)\n"
        "config = dict(max_steps=4, batch_size=4, lr_warmup_steps=1, lr=1e-3, log_every=1)\n"
        "config = TrainConfig(**config, tracker='none', ema=None)\n"
        "finetune(config, base, cache,"
        " RewardLabels(None, [i % 5 for i in range(32)]), out)\n"
    )
    run_here(script, tiny_editor, str(tmp_path / "one"))
    launch(script, 2, tiny_editor, str(tmp_path / "two"))
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    torch.testing.assert_close(
        weights(tmp_path / "two" / "pipeline"), weights(tmp_path / "one" / "pipeline"), rtol=1e-3, atol=1e-5
    )


def test_latents_of_other_rows_are_not_taken_for_these(tiny_editor, tmp_path):
    editor = load_editor(tiny_editor)
    make_cache(open_rows(DATA), DATA, editor, tmp_path / "latents")
    assert len(make_cache(open_rows(DATA), DATA, editor, tmp_path / "latents").ids) == 32
    other = DataConfig("shapes", limit=32, size=32, offset=280)
    with pytest.raises(ValueError, match=r"data\.offset: 0 there, 280 here"):
        make_cache(open_rows(other), other, editor, tmp_path / "latents")


def test_time_steps_are_drawn_alike(tiny_editor, cache, tmp_path):
    tuning = Finetuning(TrainConfig(**FAST | {"batch_size": 4000}), tiny_editor, cache, labels(), tmp_path)
    (micro,) = tuning.micro_batches(0)
    last = tuning.scheduler.config.num_train_timesteps - 1
    counts = torch.histc(micro.times.float(), bins=10, min=0, max=last)
    assert (counts / 4000 - 0.1).abs().max() < 0.02
    assert (micro.times == last).sum() < 20


def test_the_text_encoder_learns_where_asked(tiny_editor, cache, tmp_path):
    def read(folder) -> torch.Tensor:
        pipe = StableDiffusionInstructPix2PixPipeline.from_pretrained(folder)
        return torch.cat([p.detach().flatten() for p in pipe.text_encoder.parameters()])

    frozen = finetune(
        TrainConfig(**FAST), tiny_editor, cache, labels(RewardPrompt.adiee()), tmp_path / "frozen"
    )
    assert torch.equal(read(frozen), read(tiny_editor))
    learned = finetune(
        TrainConfig(**FAST, text_encoder_lr=1e-3),
        tiny_editor,
        cache,
        labels(RewardPrompt.adiee()),
        tmp_path / "learned",
    )
    assert not torch.equal(read(learned), read(tiny_editor))
    assert losses(tmp_path / "learned")[0] == pytest.approx(losses(tmp_path / "frozen")[0], rel=1e-3)
    before, after = (load_editor(str(folder)).pipe for folder in (tiny_editor, learned))
    moved = (
        after.text_encoder.get_input_embeddings().weight - before.text_encoder.get_input_embeddings().weight
    ).norm(dim=1)
    words = before.tokenizer("one two three four five", add_special_tokens=False).input_ids
    assert set(moved.nonzero().flatten().tolist()) <= set(words), "token embeddings of other words have moved"
    assert moved[words].max() > 1e-3
    with pytest.raises(ValueError, match="text_encoder_lr"):
        TrainConfig(text_encoder_lr=1e-3, lora_rank=2)


def test_rows_without_text_may_stay_as_they_are(tiny_editor, cache, tmp_path):
    often = {**FAST, "max_steps": 1, "conditioning_dropout": 1 / 3, "batch_size": 32}
    edited = finetune(TrainConfig(**often), tiny_editor, cache, labels(), tmp_path / "edited")
    source = finetune(
        TrainConfig(**often, null_text_target="source"), tiny_editor, cache, labels(), tmp_path / "source"
    )
    assert edited != source
    assert losses(tmp_path / "edited") != losses(tmp_path / "source")


def test_the_next_step_s_rows_are_read_beside_this_one_s(tiny_editor, cache, tmp_path):
    """In another thread, each step once, and none after the last."""
    tuning = Finetuning(TrainConfig(**FAST), tiny_editor, cache, labels(), tmp_path)
    read: list[tuple[int, str]] = []
    real = tuning._rows_of.read

    def noted(step: int) -> list[MicroBatch]:
        read.append((step, threading.current_thread().name))
        return real(step)

    tuning._rows_of.read = noted
    found = [tuning.micro_batches(step) for step in range(6)]
    tuning._rows_of.close()
    assert [step for step, _ in read] == list(range(6))
    assert [name.startswith("rows") for _, name in read] == [False] + 5 * [True]
    again = [real(step) for step in range(6)]
    for ours, theirs in zip(found, again, strict=True):
        assert [micro.ids for micro in ours] == [micro.ids for micro in theirs]
        torch.testing.assert_close(vars(ours[0].inputs), vars(theirs[0].inputs), rtol=0, atol=0)


def test_a_step_that_is_not_the_next_is_read_for_itself(tiny_editor, cache, tmp_path):
    tuning = Finetuning(TrainConfig(**FAST), tiny_editor, cache, labels(), tmp_path)
    tuning.micro_batches(0)
    assert [micro.ids for micro in tuning.micro_batches(4)] == [micro.ids for micro in tuning._read(4)]


def test_rows_that_cannot_be_read_are_never_drawn(tiny_editor, cache, tmp_path):
    some = replace(cache, unreadable={3: "cut off", 17: "cut off"})
    tuning = Finetuning(TrainConfig(**FAST | {"batch_size": 30}), tiny_editor, some, labels(), tmp_path)
    (micro,) = tuning.micro_batches(0)
    assert sorted(micro.rows.tolist()) == [row for row in range(32) if row not in some.unreadable]
