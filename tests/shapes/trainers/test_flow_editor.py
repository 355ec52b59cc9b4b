"""The small flow-matching editor, trained for a few steps as a person would."""

import json
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline, Flux2Transformer2DModel
from safetensors.torch import load_file
from torch import nn
from transformers import Qwen3ForCausalLM

from rewardedit import load_editor
from rewardedit.cli import main
from rewardedit.diffusion.families import family_of
from rewardedit.images import to_pil
from rewardedit.shapes import Shapes
from rewardedit.shapes.flow_architecture import TOKENS, make_pipeline
from rewardedit.shapes.maps_head import TokenMapHead
from rewardedit.shapes.trainers.flow_editor import Config, make_edits, shifted
from rewardedit.shapes.trainers.flow_text import hidden_states, read_words

pytestmark = pytest.mark.world

WEIGHTS = "pipeline/transformer/diffusion_pytorch_model.safetensors"
SMALL = ["width=48", "blocks=[1, 1]", "text_width=16", "sources=14", "draws=1", "num_inference_steps=2"]
SHORT = ["text.max_steps=2", "text.batch_size=4", "train.batch_size=4", "train.mixed_precision=no"]
LITTLE = ["choose_n=2", "evaluate_n=2", "guidance_scales=[1, 2]", "train.checkpoint_every=2"]
STEPS = "train.schedule_steps=4"


@pytest.fixture(scope="module")
def known():
    return load_editor("shapes/editor").pipe


@pytest.fixture(scope="module")
def pipe(known):
    torch.manual_seed(0)
    return make_pipeline(known, width=48, blocks=(1, 1), text_width=16, shift=2.0)


@pytest.fixture(scope="module")
def edits(pipe):
    return make_edits(Config("x", sources=14, draws=2), pipe)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "flow"
    words = [*SMALL, *SHORT, *LITTLE, STEPS, "train.max_steps=4", "--out", str(folder)]
    assert main(["train", "shapes/flow-editor", *words]) == 0
    return folder


def test_a_short_training_makes_a_stock_pipeline(trained):
    pipe = Flux2KleinPipeline.from_pretrained(trained / "pipeline")
    kinds = [type(part) for part in (pipe.vae, pipe.text_encoder, pipe.transformer)]
    assert kinds == [AutoencoderKLFlux2, Qwen3ForCausalLM, Flux2Transformer2DModel]
    assert not pipe.config.is_distilled
    metrics = json.loads((trained / "metrics.json").read_text())
    assert {"oracle", "untouched", "shapes/editor", "guidance_scale", "read_right"} <= set(metrics)
    sampling = json.loads((trained / "pipeline" / "sampling.json").read_text())
    assert sampling["guidance_scale"] == metrics["guidance_scale"]


def test_an_edit_is_the_stock_pipeline_s(trained):
    editor = load_editor(str(trained), device="cpu")
    samples = Shapes("test").batch(0, 1)
    pipe = Flux2KleinPipeline.from_pretrained(trained / "pipeline")
    options = {"num_inference_steps": 2, "guidance_scale": 2.0, "output_type": "pt"}
    stock = pipe(
        image=to_pil(samples.source[0]),
        prompt=samples.instruction,
        max_sequence_length=TOKENS,
        generator=torch.Generator().manual_seed(3),
        **options,
    ).images
    encoded = editor.encode(samples.source, samples.instruction)
    made = editor.sample(encoded, [3], num_inference_steps=2, guidance_scale=2.0).require_all()
    assert torch.equal(made, stock)


@pytest.mark.slow
def test_a_resumed_training_equals_an_unbroken_one(trained, tmp_path):
    words = [*SMALL, *SHORT, *LITTLE, STEPS, "--out", str(tmp_path / "flow")]
    assert main(["train", "shapes/flow-editor", *words, "train.max_steps=2"]) == 0
    assert main(["train", "shapes/flow-editor", *words, "train.max_steps=4", "--resume"]) == 0
    resumed = load_file(tmp_path / "flow" / WEIGHTS)
    for name, value in load_file(trained / WEIGHTS).items():
        assert torch.equal(value, resumed[name]), name


def test_instructions_are_read_as_the_pipeline_reads_them(pipe):
    texts = ["make the white square larger", ""]
    stock, _ = pipe.encode_prompt(texts, device="cpu", max_sequence_length=TOKENS)
    with torch.no_grad():
        assert torch.equal(hidden_states(pipe.text_encoder.model, read_words(pipe.tokenizer, texts)), stock)
    assert torch.equal(family_of(pipe).encode_texts(pipe, texts)["embeds"], stock)


def test_latents_are_the_family_s_with_unit_variance(pipe, edits):
    source = Shapes(backdrops=Config("x").backdrops).batch(0, 14).source
    made = family_of(pipe).encode_sources(pipe, source)
    torch.testing.assert_close(made, edits.source, atol=0.1, rtol=0.05)  # by autocast and bytes
    torch.testing.assert_close(edits.source.mean((0, 2, 3)), torch.zeros(16), atol=1e-3, rtol=0)
    torch.testing.assert_close(edits.source.std((0, 2, 3)), torch.ones(16), atol=0.01, rtol=0)


def test_the_autoencoder_is_that_of_the_other_editor(pipe, known):
    image = Shapes("val").batch(0, 2).target
    with torch.no_grad():
        old = known.vae.decode(known.vae.encode(image * 2 - 1).latent_dist.mode()).sample
        new = pipe.vae.decode(pipe.vae.encode(image * 2 - 1).latent_dist.mode()).sample
    assert torch.equal(old, new)


def test_without_text_the_target_is_the_source(edits):
    rows = torch.tensor([3, 20])  # 20 is the second edit of source 6
    embeds = torch.arange(len(edits.words.ids)).float()[:, None, None]
    taken = edits.take(rows, torch.tensor([False, True]), embeds)
    assert torch.equal(taken.source, edits.source[[3, 6]])
    assert torch.equal(taken.target, torch.stack([edits.target[3], edits.source[6]]))
    assert torch.equal(taken.target_maps, torch.stack([edits.target_maps[3], edits.source_maps[6]]))
    assert taken.text.flatten().tolist() == [float(edits.text[3]), len(embeds) - 1]
    assert edits.words.mask[-1].sum() == 2  # the empty text: its start and its end


def test_times_are_spread_as_the_steps_of_sampling(pipe):
    pipe.scheduler.set_timesteps(sigmas=[0.75, 0.5, 0.25])
    expected = pipe.scheduler.sigmas[:3]
    torch.testing.assert_close(shifted(torch.tensor([0.75, 0.5, 0.25]), 2.0), expected)


def test_the_head_reads_target_then_source():
    block = nn.Identity()
    head = TokenMapHead(block, width=3, channels=3)
    head.layers = nn.Identity()
    target, source = (torch.rand(2, 3, 2, 2).round() for _ in range(2))
    maps = torch.cat([target.flatten(2), source.flatten(2)], 2).transpose(1, 2)
    block(torch.cat([torch.zeros(2, 5, 3), 40 * maps - 20], 1))
    assert head.loss(target, source) < 1e-6
    assert head.loss(source, target) > 1
