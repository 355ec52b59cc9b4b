"""The recipes of the small models, shortened to a few steps, one after another as a person would run them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL, StableDiffusionInstructPix2PixPipeline
from safetensors.torch import load_file

from rewardedit import EditBatch, load_editor, load_scorer
from rewardedit.cli import main
from rewardedit.diffusion.text_to_image import load_text_to_image
from rewardedit.files import read_log
from rewardedit.shapes import Shapes, ShapesOracle
from rewardedit.shapes.trainers.editor import Config, phase_config
from rewardedit.shapes.trainers.text_encoder import RandomSuffix
from rewardedit.training.fit import SmallTrainConfig, schedule
from tests.forks import launch
from tests.models import small_tokenizer

pytestmark = pytest.mark.world

UNET = "diffusion_pytorch_model.safetensors"


# The same commands run in the suite on a device that stands in for a GPU: tests/test_standin_device.py.
@pytest.mark.slow
def test_the_small_models_are_made_from_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A CPU without bf16 units computes in it several times as long.
    short = [
        "train.max_steps=2",
        "train.batch_size=10",
        "train.lr_warmup_steps=1",
        "train.mixed_precision=no",
    ]
    assert main(["train", "shapes/autoencoder", *short, "samples=70", "evaluate_n=7"]) == 0
    AutoencoderKL.from_pretrained("runs/shapes-autoencoder/vae")
    assert main(["train", "shapes/clip", *short, "samples=70"]) == 0
    scorer = load_scorer("clip_d", checkpoint="runs/shapes-clip/clip")
    samples = Shapes("val").batch(0, 4)
    assert scorer(EditBatch(samples.source, samples.instruction, samples.target)).valid.all()
    words = ["samples=70", "clip=runs/shapes-clip/clip"]
    assert main(["train", "shapes/text-encoder", *short, *words]) == 0
    read_right = json.loads(Path("runs/shapes-text-encoder/metrics.json").read_text())["read_right"]
    assert set(read_right) == {"instructions", "phrases"}
    few = [*short, "sources=35", "evaluate_n=7", "draws=2"]
    assert main(["train", "shapes/editor", *few]) == 0
    phases = [f"runs/shapes-editor/phase-{number}" for number in range(1, 6)]
    first, second = (load_file(f"{phase}/pipeline/unet/{UNET}") for phase in phases[:2])
    assert any(not torch.equal(first[name], second[name]) for name in first)
    pipe = StableDiffusionInstructPix2PixPipeline.from_pretrained(
        f"{phases[4]}/pipeline", safety_checker=None
    )
    assert pipe.unet.config.in_channels == 8
    metrics = json.loads(Path("runs/shapes-editor/metrics.json").read_text())
    assert set(metrics["phase-5"]["oracle"]) == {"plain", "textured", "photo"}
    assert len(read_log(Path(phases[0]))) >= 1
    # A phase can start from another pipeline, in another folder.
    words = ["first_phase=5", f"phase-5.init_from={phases[0]}", "--out", "runs/further"]
    assert main(["train", "shapes/editor", *few, *words]) == 0
    assert [path.name for path in Path("runs/further").glob("phase-*")] == ["phase-5"]

    words = ["editor=runs/shapes-editor", "samples=35", "channels=[16, 32]"]
    assert main(["train", "shapes/text-to-image", *short, *words]) == 0
    drawn = load_text_to_image("runs/shapes-text-to-image/pipeline")
    assert not Path("runs/shapes-text-to-image/pipeline/vae").exists()
    image = drawn(["a small red circle at center, on a gray background"], num_inference_steps=2).images[0]
    assert image.size == (64, 64)


def test_random_words_follow_an_instruction_and_leave_it_as_it_is():
    tokenizer = small_tokenizer(model_max_length=32)
    texts = ["remove the star", "replace the large red circle with a small orange diamond"] * 50
    tokens = tokenizer(texts, padding="max_length", return_tensors="pt").input_ids
    tailed = RandomSuffix(tokenizer, 0.5)(tokens, torch.Generator().manual_seed(0))
    read = tokenizer.batch_decode(tailed, skip_special_tokens=True)
    longer = [text for text, before in zip(read, texts, strict=True) if text.strip() != before]
    assert 25 < len(longer) < 75
    assert all(
        text.startswith(("remove the star .", "replace the large red circle with a small orange diamond ."))
        for text in longer
    )
    assert (tailed[:, -1] == tokenizer.eos_token_id).all()
    assert torch.equal(RandomSuffix(tokenizer, 0.0)(tokens, torch.Generator().manual_seed(0)), tokens)


def test_the_shipped_editor_edits_and_never_saw_reward_text():
    editor = load_editor("shapes/editor")
    assert editor.prompt is None
    samples = Shapes("test").batch(0, 14)
    with torch.autocast("cpu", torch.bfloat16):
        edited = editor(samples.source, samples.instruction, range(14))
    rating = ShapesOracle().rate(samples, edited)
    copied = ShapesOracle().rate(samples, samples.source)
    assert rating.score.mean() > copied.score.mean() + 1


def test_the_shipped_autoencoder_keeps_true_targets():
    vae = load_editor("shapes/editor").pipe.vae
    samples = Shapes("test").batch(0, 70)
    with torch.no_grad():
        made = vae.decode(vae.encode(samples.target * 2 - 1).latent_dist.mode()).sample
    assert ShapesOracle().rate(samples, (made / 2 + 0.5).clamp(0, 1)).score.mean() >= 8.5


def test_rows_come_out_alike_in_any_batch():
    editor = load_editor("shapes/editor")
    samples = Shapes("test").batch(0, 3)
    together = editor(samples.source, samples.instruction, [5, 6, 7])
    alone = editor(samples.source[1:2], samples.instruction[1:2], [6])
    assert (together[1:2] - alone).abs().max() < 1 / 255


def test_a_phase_may_end_before_its_learning_rate_has_fallen():
    """Half of a cosine over 8 steps is left after 4; without a separate schedule, nothing is left."""
    train = SmallTrainConfig(max_steps=4, schedule_steps=8, lr=0.1, lr_warmup_steps=1, seed=3)
    first = phase_config(Config("x", train=train))
    second = phase_config(Config("x", block=2, lr_share=0.5, train=replace(train, muon_lr=0.2)))
    assert schedule(first)(4) == pytest.approx(0.5)
    assert schedule(replace(first, schedule_steps=None))(4) == pytest.approx(0.0)
    assert (first.lr, first.muon_lr, first.seed) == (0.1, None, 3)
    assert (second.lr, second.muon_lr, second.seed) == (0.05, 0.1, 4)
    with pytest.raises(ValueError, match="largest_weight: expected at least 1"):
        Config("x", largest_weight=0.5)


ALONE = """
import sys
from pathlib import Path

from rewardedit.cli.recipes import load_recipe

for name in sys.argv[2:]:
    trainer, config = load_recipe(name, [])
    try:
        trainer.train(config, Path(sys.argv[1]) / config.name)
    except ValueError as error:
        assert "start it as one process; got 2" in str(error), f"{name}: {error}"
    else:
        raise AssertionError(name)
"""


def test_a_training_that_does_not_divide_its_work_is_refused_to_several_processes(tmp_path):
    names = (
        "autoencoder",
        "clip",
        "detector",
        "editor",
        "flow-editor",
        "segmenter",
        "text-encoder",
        "text-to-image",
        "vlm",
    )
    script = tmp_path / "script.py"
    script.write_text(ALONE)
    launch(script, 2, str(tmp_path), *(f"shapes/{name}" for name in names))
    begun = [path.parent for path in tmp_path.rglob("config.yaml")]
    assert {path.name for path in begun} == {"shapes-editor", "shapes-vlm"}  # no phase of theirs
