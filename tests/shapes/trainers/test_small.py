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
from rewardedit.shapes.trainers import editor as editor_trainer
from rewardedit.shapes.trainers.editor import Config, Leg, leg_config
from rewardedit.shapes.trainers.text_encoder import Tails
from rewardedit.training.small import schedule
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
    assert main(["train", "shapes-autoencoder", *short, "samples=70", "evaluate_n=7"]) == 0
    AutoencoderKL.from_pretrained("runs/shapes-autoencoder/vae")
    assert main(["train", "shapes-clip", *short, "samples=70"]) == 0
    scorer = load_scorer("clip_d", checkpoint="runs/shapes-clip/clip")
    samples = Shapes("val").batch(0, 4)
    assert scorer(EditBatch(samples.source, samples.instruction, samples.target)).valid.all()
    words = ["samples=70", "clip=runs/shapes-clip/clip"]
    assert main(["train", "shapes-text-encoder", *short, *words]) == 0
    read_right = json.loads(Path("runs/shapes-text-encoder/metrics.json").read_text())["read_right"]
    assert set(read_right) == {"instructions", "phrases"}
    both = "legs=[{steps: 2}, {steps: 2, lr_share: 0.5, largest_weight: 5, shares: {right: 1.0}}]"
    legs = [*short[1:], both, "sources=35", "evaluate_n=7"]
    assert main(["train", "shapes-editor", *legs, "draws=2"]) == 0
    first, second = (load_file(f"runs/shapes-editor/leg-{k}/pipeline/unet/{UNET}") for k in (1, 2))
    assert any(not torch.equal(first[name], second[name]) for name in first)
    pipe = StableDiffusionInstructPix2PixPipeline.from_pretrained(
        "runs/shapes-editor/pipeline", safety_checker=None
    )
    assert pipe.unet.config.in_channels == 8
    metrics = json.loads(Path("runs/shapes-editor/metrics.json").read_text())
    assert set(metrics["oracle"]) == {"plain", "textured", "photo"}
    assert len(read_log(Path("runs/shapes-editor/leg-1"))) >= 1
    # A leg can go on from a pipeline, in another folder.
    words = ["start=runs/shapes-editor", "first_leg=2", "--out", "runs/further"]
    assert main(["train", "shapes-editor", *legs, *words]) == 0
    assert not Path("runs/further/leg-1").exists()
    with pytest.raises(ValueError, match="start: expected the pipeline that first_leg is to go on from"):
        editor_trainer.Config(name="x", first_leg=2, legs=(Leg(1), Leg(1)))

    words = ["editor=runs/shapes-editor", "samples=35", "channels=[16, 32]"]
    assert main(["train", "shapes-text-to-image", *short, *words]) == 0
    drawn = load_text_to_image("runs/shapes-text-to-image/pipeline")
    assert not Path("runs/shapes-text-to-image/pipeline/vae").exists()
    image = drawn(["a small red circle at center, on a gray background"], num_inference_steps=2).images[0]
    assert image.size == (64, 64)


def test_random_words_follow_an_instruction_and_leave_it_as_it_is():
    tokenizer = small_tokenizer(model_max_length=32)
    texts = ["remove the star", "replace the large red circle with a small orange diamond"] * 50
    tokens = tokenizer(texts, padding="max_length", return_tensors="pt").input_ids
    tailed = Tails(tokenizer, 0.5)(tokens, torch.Generator().manual_seed(0))
    read = tokenizer.batch_decode(tailed, skip_special_tokens=True)
    longer = [text for text, before in zip(read, texts, strict=True) if text.strip() != before]
    assert 25 < len(longer) < 75
    assert all(
        text.startswith(("remove the star .", "replace the large red circle with a small orange diamond ."))
        for text in longer
    )
    assert (tailed[:, -1] == tokenizer.eos_token_id).all()
    assert torch.equal(Tails(tokenizer, 0.0)(tokens, torch.Generator().manual_seed(0)), tokens)


def test_the_shipped_editor_edits_and_never_saw_reward_text():
    editor = load_editor("shapes-editor")
    assert editor.prompt is None
    samples = Shapes("test").batch(0, 14)
    with torch.autocast("cpu", torch.bfloat16):
        edited = editor(samples.source, samples.instruction, range(14))
    rating = ShapesOracle().rate(samples, edited)
    copied = ShapesOracle().rate(samples, samples.source)
    assert rating.score.mean() > copied.score.mean() + 1


def test_the_shipped_autoencoder_keeps_true_targets():
    vae = load_editor("shapes-editor").pipe.vae
    samples = Shapes("test").batch(0, 70)
    with torch.no_grad():
        made = vae.decode(vae.encode(samples.target * 2 - 1).latent_dist.mode()).sample
    assert ShapesOracle().rate(samples, (made / 2 + 0.5).clamp(0, 1)).score.mean() >= 8.5


def test_rows_come_out_alike_in_any_batch():
    editor = load_editor("shapes-editor")
    samples = Shapes("test").batch(0, 3)
    together = editor(samples.source, samples.instruction, [5, 6, 7])
    alone = editor(samples.source[1:2], samples.instruction[1:2], [6])
    assert (together[1:2] - alone).abs().max() < 1 / 255


def test_a_leg_may_end_before_its_learning_rate_has_fallen():
    """Half of a cosine over 8 steps is left after 4; without a separate schedule, nothing is left."""
    config = Config("x", legs=(Leg(4, 8), Leg(8, 8, 0.5)))
    first, second = (leg_config(config, number) for number in (1, 2))
    assert first.max_steps == 4
    assert schedule(replace(first, lr_warmup_steps=1))(4) == pytest.approx(0.5)
    assert second.lr == pytest.approx(0.5 * first.lr)
    alone = leg_config(Config("x", legs=(Leg(4),)), 1)
    assert schedule(replace(alone, lr_warmup_steps=1))(4) == pytest.approx(0.0)
    with pytest.raises(ValueError, match="expected at least one step"):
        Leg(0)


ALONE = """
import sys
from pathlib import Path

from rewardedit.cli.recipes import load_recipe

for name in sys.argv[2:]:
    trainer, config = load_recipe(name, [])
    try:
        trainer.train(config, Path(sys.argv[1]) / name)
    except ValueError as error:
        assert "start it as one process; got 2" in str(error), f"{name}: {error}"
    else:
        raise AssertionError(name)
"""


def test_a_training_that_does_not_divide_its_work_is_refused_to_several_processes(tmp_path):
    names = ("autoencoder", "clip", "detector", "editor", "segmenter", "text-encoder", "text-to-image", "vlm")
    script = tmp_path / "script.py"
    script.write_text(ALONE)
    launch(script, 2, str(tmp_path), *(f"shapes-{name}" for name in names))
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]  # nothing was begun
