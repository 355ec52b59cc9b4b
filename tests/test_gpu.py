"""Tests that need a GPU, through the public interface: python -m pytest -m gpu"""

import json

import pytest
import torch
from PIL import Image
from skimage import data

from rewardedit import EditBatch, load_editor, load_scorer, mask_guidance, reward_guidance
from rewardedit.cli import main
from rewardedit.diffusion.attention import set_attention
from rewardedit.diffusion.families.instruct_pix2pix import InstructPix2Pix
from rewardedit.diffusion.reward_guidance import ascent_direction
from rewardedit.shapes import Shapes
from tests.models import small, tiny_unet

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
SMALL = ["--world", "shapes"]  # published models are not there offline
STEPS = [
    "train.max_steps=2",
    "train.batch_size=4",
    "train.lr_warmup_steps=1",
    "train.log_every=1",
    "train.tracker=none",
]


def run(recipe: str, folder, *words: str) -> None:
    assert main(["--debug", "train", recipe, *STEPS, *words, "--out", str(folder)]) == 0


def test_edit_and_score(tmp_path, capsys):
    image = tmp_path / "cat.png"
    Image.fromarray(data.chelsea()).resize((64, 64)).save(image)
    words = [
        "make it red",
        "--out",
        str(tmp_path / "out"),
        "--steps",
        "2",
        "--best-of",
        "2",
        "--mask",
        "auto",
        *SMALL,
    ]
    assert main(["--debug", "edit", str(image), *words]) == 0
    assert "attention:" in capsys.readouterr().out
    edited = str(tmp_path / "out" / "cat.png")
    scorers = ["clip_d", "vifi_clip", "l1", "clip_d:0.7,l1:0.3"]
    words = [edited, "make it red", "--json", *SMALL, "--scorer", *scorers]
    assert main(["--debug", "score", str(image), *words]) == 0
    assert all(record["valid"] for record in json.loads(capsys.readouterr().out))


def test_mask_guidance_in_fp16_keeps_what_lies_outside():
    samples = Shapes("val", kinds=("recolour",)).batch(0, 8)
    editor = load_editor("shapes/editor", device=DEVICE, dtype=torch.float16)
    half = torch.zeros(1, 1, 64, 64)
    half[..., :32, :] = 1
    plain = editor(samples.source, samples.instruction, range(8))
    with mask_guidance(editor.pipe, half):
        guided = editor(samples.source, samples.instruction, range(8))
    with mask_guidance(editor.pipe, torch.ones_like(half)):
        torch.testing.assert_close(
            editor(samples.source, samples.instruction, range(8)), plain, rtol=0, atol=0.02
        )
    outside = slice(40, None)
    changes = [(edited - samples.source)[..., outside, :].abs().mean() for edited in (plain, guided)]
    assert changes[1] <= changes[0]


@pytest.mark.parametrize("name", ["l1", "clip_d"])
def test_reward_guidance_in_fp16_has_the_gradient_of_fp32(name):
    samples = Shapes("val").batch(0, 4)
    source = samples.source.to(DEVICE)
    scorer = load_scorer(small(name), device=DEVICE)
    editor = load_editor("shapes/editor", device=DEVICE, dtype=torch.float32)
    large = torch.nn.Upsample((256, 256))(samples.target).to(DEVICE)
    with torch.no_grad():
        clean = (
            editor.pipe.vae.encode(large * 2 - 1).latent_dist.mode() * editor.pipe.vae.config.scaling_factor
        )
    wide = torch.nn.Upsample((256, 256))(source)

    def score(edited: torch.Tensor) -> torch.Tensor:
        return scorer(EditBatch(wide, samples.instruction, edited)).mean() * len(edited)

    latents = clean.clone().requires_grad_(True)
    (wanted,) = torch.autograd.grad(score(InstructPix2Pix().decode(editor.pipe.vae, latents)), latents)
    found = ascent_direction(InstructPix2Pix(), editor.pipe.vae.half(), score, clean.half())
    assert (torch.cosine_similarity(found.flatten(1), wanted.flatten(1)) > 0.95).all()


def test_reward_guidance_in_fp16_raises_the_score():
    samples = Shapes("val").batch(0, 14)
    scorer = load_scorer("clip_d", checkpoint="shapes/clip").to(DEVICE)
    editor = load_editor("shapes/editor", device=DEVICE, dtype=torch.float16)
    plain = editor(samples.source, samples.instruction, range(14))
    with reward_guidance(editor.pipe, scorer, samples.source, samples.instruction, scale=0.1):
        guided = editor(samples.source, samples.instruction, range(14))
    edits = [EditBatch(samples.source, samples.instruction, edited).to(DEVICE) for edited in (plain, guided)]
    assert scorer(edits[1]).mean() > scorer(edits[0]).mean()


@pytest.mark.parametrize("training", [False, True])
def test_auto_says_which_kernel_is_the_faster_here(training):
    unet = tiny_unet().to(DEVICE).train(training)
    choice = set_attention(unet, "auto", torch.float16)
    print(choice)
    assert ("xformers" in choice.reason) or ("CUDA" in choice.reason)
    assert set_attention(unet, "auto", torch.float16) == choice


# Those below train: they take longer.


def test_quickstart_trains_and_is_evaluated(tmp_path):
    words = [
        "data.limit=32",
        "evaluate.n=14",
        "evaluate.val_n=14",
        "evaluate.num_inference_steps=[1]",
        "evaluate.guidance_scale=[1.0]",
    ]
    run("quickstart", tmp_path / "run", *words)
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["oracle"]["n"] == 14


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("lora", ["null", "4"])
def test_reward_conditioning(precision, lora, narrow_sd15, tmp_path):
    words = [
        f"base={narrow_sd15}",
        "evaluate=null",
        "variants=[conditioned]",
        "data.limit=8",
        "train.optimizer=adamw",
    ]
    words += [f"train.lora_rank={lora}", "train.text_encoder_lr=null", f"train.mixed_precision={precision}"]
    run(
        "shapes/reward-conditioned",
        tmp_path / "run",
        *words,
        "train.gradient_checkpointing=true",
        "train.validate_every=1",
    )
    editor = load_editor(str(tmp_path / "run"), device=DEVICE)
    edited = editor(Shapes("val").batch(0, 2).source, ["make it red"] * 2, range(2))
    assert edited.isfinite().all()


def test_reward_feedback_learning(tmp_path):
    words = [
        "evaluate=null",
        "variants=[refl, draft_1]",
        "data.limit=8",
        "reward.num_inference_steps=[2]",
        "reward.stop_before_end=[0,1]",
        "monitor.n=4",
    ]
    run("shapes/refl", tmp_path / "run", *words, "train.mixed_precision=fp16", "train.validate_every=1")
    assert load_editor(str(tmp_path / "run"), device=DEVICE).attention is not None


def test_a_resumed_run_goes_on(tmp_path):
    words = ["data.limit=32", "evaluate=null", "train.checkpoint_every=1"]
    run("quickstart", tmp_path / "run", *words)
    left = {path.name: path for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert len(left) == 2
    assert (
        main(["--debug", "train", "quickstart", *STEPS, *words, "--resume", "--out", str(tmp_path / "run")])
        == 0
    )


def test_vifi_clip(tmp_path):
    run("shapes/vifi-clip", tmp_path / "run", "data.limit=16", "held_out.limit=7")
    assert load_scorer("vifi_clip", checkpoint=str(tmp_path / "run" / "scorer"))


def test_the_small_models_are_trained_from_scratch(tmp_path):
    few = ["train.batch_size=10", "samples=70"]
    run("shapes/autoencoder", tmp_path / "vae", *few, "evaluate_n=7")
    run("shapes/clip", tmp_path / "clip", *few)
    run("shapes/text-encoder", tmp_path / "text", *few, f"clip={tmp_path}/clip/clip")
    words = ["evaluate_n=7"]
    words += [f"vae={tmp_path}/vae/vae", f"text_encoder={tmp_path}/text", "sources=35"]
    run("shapes/editor", tmp_path / "editor", *words)  # all phases
    run("shapes/text-to-image", tmp_path / "drawing", *few, f"editor={tmp_path}/editor")
    editor = load_editor(str(tmp_path / "editor"))
    edited = editor(torch.rand(1, 3, 64, 64), ["remove the star"], [0])
    assert edited.shape == (1, 3, 64, 64)
    assert edited.isfinite().all()
