"""Editing methods through real diffusers pipelines of tiny models."""

import errno
from dataclasses import replace
from types import SimpleNamespace

import diffusers
import pytest
import torch

from rewardedit.batch_sizes import HELD
from rewardedit.diffusion import replaying
from rewardedit.diffusion.schedulers import set_scheduler
from rewardedit.images import fit, to_pil
from rewardedit.synthesis.candidates import CandidatesConfig
from rewardedit.synthesis.methods import EditRequests, MethodConfig, edit_rows, load_method
from tests.models import tiny_pipeline, tiny_unet
from tests.reruns import Rerun

SIDE = 32
STEPS = {"num_inference_steps": 4, "guidance_scale": 3.0}


@pytest.fixture(scope="module")
def text_to_image(tmp_path_factory) -> str:
    """A tiny Stable Diffusion."""
    folder = tmp_path_factory.mktemp("text-to-image")
    parts = tiny_pipeline().components
    torch.manual_seed(1)
    parts["unet"] = tiny_unet(4, levels=3)
    parts["scheduler"] = diffusers.DDIMScheduler(clip_sample=False)
    diffusers.StableDiffusionPipeline(**parts, requires_safety_checker=False).save_pretrained(folder)
    return str(folder)


def wanted(n: int = 3) -> EditRequests:
    images = torch.rand(n, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    names = ["red circle", "blue star", "green square"][:n]
    return EditRequests(
        [f"a/{i}" for i in range(n)],
        images,
        [f"remove the {name}" for name in names],
        [10 + i for i in range(n)],
        [f"a {name} at the top" for name in names],
        ["an empty scene"] * n,
    )


PROMPTED = ("sdedit", "diffedit", "pix2pix_zero", "cycle_diffusion")


@pytest.mark.parametrize("kind", PROMPTED)
def test_a_row_comes_out_the_same_alone_and_in_a_batch(kind, text_to_image):
    config = MethodConfig(kind, text_to_image, **STEPS)
    method = load_method(config)
    batch = wanted()
    together = edit_rows(method, config, batch)
    alone = edit_rows(method, config, batch[1:2])
    assert all(isinstance(image, torch.Tensor) for image in together), together
    assert together[1].shape == (3, SIDE, SIDE)
    assert together[1].min() >= 0
    assert together[1].max() <= 1
    torch.testing.assert_close(together[1], alone[0], atol=2e-3, rtol=0)
    assert not torch.allclose(together[1], batch.source[1], atol=0.02), "nothing was edited"


@pytest.mark.parametrize("kind", ["diffedit", "pix2pix_zero"])
def test_a_model_that_predicts_the_clean_latents_inverts_too(kind, text_to_image, tmp_path):
    pipe = diffusers.StableDiffusionPipeline.from_pretrained(text_to_image, safety_checker=None)
    own = {"prediction_type": "sample", "timestep_spacing": "trailing", "rescale_betas_zero_snr": True}
    pipe.scheduler = diffusers.DDIMScheduler(clip_sample=False, **own)
    pipe.save_pretrained(tmp_path)
    config = MethodConfig(kind, str(tmp_path), **STEPS)
    made = edit_rows(load_method(config), config, wanted(2))
    assert all(isinstance(image, torch.Tensor) for image in made), made


def test_a_method_samples_with_the_scheduler_that_its_settings_name():
    own = diffusers.DDPMScheduler(num_train_timesteps=10, prediction_type="v_prediction")
    kinds = {"ddim": diffusers.DDIMScheduler, "euler_ancestral": diffusers.EulerAncestralDiscreteScheduler}
    for name, kind in kinds.items():
        pipe = SimpleNamespace(scheduler=own)
        set_scheduler(pipe, name)
        assert type(pipe.scheduler) is kind
        assert pipe.scheduler.config.num_train_timesteps == 10
        assert pipe.scheduler.config.prediction_type == "v_prediction"
    set_scheduler(pipe := SimpleNamespace(scheduler=own), None)
    assert pipe.scheduler is own
    for kind in ("diffedit", "pix2pix_zero", "cycle_diffusion", "folder"):
        with pytest.raises(ValueError, match=f"scheduler.*on kind: {kind}"):
            MethodConfig(kind, "x", scheduler="ddim")


@pytest.mark.parametrize("kind", PROMPTED)
def test_the_target_caption_counts(kind, text_to_image):
    config = MethodConfig(kind, text_to_image, **STEPS)
    method = load_method(config)
    one = wanted(1)
    other = EditRequests(
        one.ids, one.source, one.instruction, one.seeds, one.source_caption, ["nine purple rings"]
    )
    first, second = (edit_rows(method, config, request)[0] for request in (one, other))
    assert not torch.equal(first, second)


def test_the_seed_counts(text_to_image):
    config = MethodConfig("sdedit", text_to_image, **STEPS)
    method = load_method(config)
    one = wanted(1)
    other = EditRequests(one.ids, one.source, one.instruction, [99], one.source_caption, one.target_caption)
    assert not torch.equal(edit_rows(method, config, one)[0], edit_rows(method, config, other)[0])


def test_an_editor_follows_instructions(tmp_path):
    tiny_pipeline().save_pretrained(tmp_path)
    config = MethodConfig("editor", str(tmp_path), num_inference_steps=2)
    one = wanted(2)
    bare = EditRequests(one.ids, one.source, one.instruction, one.seeds)
    made = edit_rows(load_method(config), config, bare)
    assert [image.shape for image in made] == [(3, SIDE, SIDE)] * 2


def test_recorded_steps_of_an_editor_edit_the_same(tmp_path, monkeypatch, capsys):
    tiny_pipeline().save_pretrained(tmp_path)
    config = MethodConfig(model=str(tmp_path), **STEPS, image_guidance_scale=1.2)
    plain = edit_rows(load_method(config), config, wanted(2))
    recorded = replace(config, graphs=True)
    without_a_gpu = load_method(recorded)
    assert capsys.readouterr().out == "graphs: not recorded (no GPU)\n"
    monkeypatch.setattr(replaying, "Replay", Rerun)
    for method in (without_a_gpu, load_method(recorded)):
        found = edit_rows(method, recorded, wanted(2))
        assert all(torch.equal(*pair) for pair in zip(plain, found, strict=True))
    assert sum(replay.calls for replay in HELD if isinstance(replay, Rerun)) == STEPS["num_inference_steps"]
    assert CandidatesConfig(("x",), graphs=True).method("x").graphs
    with pytest.raises(ValueError, match="graphs: has no effect on kind: sdedit"):
        MethodConfig("sdedit", "x", graphs=True)
    with pytest.raises(ValueError, match="graphs: has no effect without editors"):
        CandidatesConfig(graphs=True)


def test_outputs_from_elsewhere_are_found_by_the_row_s_id(tmp_path):
    for i in (0, 2):
        to_pil(torch.full((3, SIDE, SIDE), i / 4)).save(tmp_path / f"a_{i}.png")
    config = MethodConfig("folder", str(tmp_path))
    made = edit_rows(load_method(config), config, wanted())
    assert made[0].max() == 0
    assert float(made[2].mean()) == pytest.approx(128 / 255)
    assert "no output a_1.png for row a/1" in made[1]


@pytest.mark.parametrize("policy", ["crop", "pad", "stretch"])
def test_outputs_made_elsewhere_are_brought_to_the_size_as_sources_are(policy, tmp_path):
    image = torch.linspace(0, 1, 2 * SIDE).expand(3, SIDE, 2 * SIDE)
    to_pil(image).save(tmp_path / "a_0.png")
    made = load_method(MethodConfig("folder", str(tmp_path)), policy)(wanted(1))
    torch.testing.assert_close(made, fit(image[None], SIDE, policy), rtol=0, atol=0.01)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        torch.AcceleratorError("an illegal address"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ],
)
def test_a_full_disk_or_a_broken_gpu_is_no_row_s_fault(error):
    def method(request: EditRequests) -> torch.Tensor:
        raise error

    with pytest.raises(type(error)):
        edit_rows(method, MethodConfig("editor", "x"), wanted(1))


def test_one_bad_row_does_not_take_others_with_it():
    def method(request: EditRequests) -> torch.Tensor:
        if "a/1" in request.ids:
            raise RuntimeError("the sampler broke\nat length")
        return request.source

    made = edit_rows(method, MethodConfig("editor", "x"), wanted())
    assert made[1] == "the sampler broke"
    assert torch.equal(made[0], wanted().source[0])
    assert torch.equal(made[2], wanted().source[2])


def test_an_error_without_a_text_is_a_reason_by_its_name():
    def method(request: EditRequests) -> torch.Tensor:
        raise NotImplementedError

    assert edit_rows(method, MethodConfig("editor", "x"), wanted(1)) == ["NotImplementedError"]


def test_an_output_that_is_not_finite_is_none():
    def method(request: EditRequests) -> torch.Tensor:
        images = request.source.clone()
        images[0, 0, 0, 0] = torch.nan
        return images

    made = edit_rows(method, MethodConfig("editor", "x"), wanted(2))
    assert "not finite" in made[0]
    assert isinstance(made[1], torch.Tensor)


def test_a_full_gpu_is_no_row_s_fault():
    def method(request: EditRequests) -> torch.Tensor:
        raise torch.OutOfMemoryError("too much")

    with pytest.raises(torch.OutOfMemoryError):
        edit_rows(method, MethodConfig("editor", "x"), wanted())


def test_rows_without_captions_are_left_out_where_captions_are_needed():
    seen = []

    def method(request: EditRequests) -> torch.Tensor:
        seen.extend(request.ids)
        return request.source

    batch = wanted()
    batch.target_caption[1] = ""
    made = edit_rows(method, MethodConfig("sdedit", "x"), batch)
    assert made[1] == "it has no captions"
    assert seen == ["a/0", "a/2"]
    assert torch.equal(made[2], batch.source[2])
    none = EditRequests(batch.ids, batch.source, batch.instruction, batch.seeds)
    assert edit_rows(method, MethodConfig("sdedit", "x"), none) == ["it has no captions"] * 3
    assert isinstance(edit_rows(method, MethodConfig("editor", "x"), none)[0], torch.Tensor)


def test_a_pipeline_that_diffusers_has_no_more_is_refused_by_name(text_to_image, monkeypatch):
    monkeypatch.delattr(diffusers, "StableDiffusionDiffEditPipeline", raising=False)
    monkeypatch.setitem(diffusers._class_to_module, "StableDiffusionDiffEditPipeline", "nowhere")
    with pytest.raises(
        ValueError,
        match=r"diffedit: diffusers .* no longer has StableDiffusionDiffEditPipeline.*kind=folder",
    ):
        load_method(MethodConfig("diffedit", text_to_image))


def test_cycle_diffusion_refuses_a_model_that_does_not_predict_the_noise(text_to_image, tmp_path):
    pipe = diffusers.StableDiffusionPipeline.from_pretrained(text_to_image, safety_checker=None)
    pipe.scheduler = diffusers.DDIMScheduler(clip_sample=False, prediction_type="sample")
    pipe.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"expected a model that predicts the noise; .* predicts sample"):
        load_method(MethodConfig("cycle_diffusion", str(tmp_path)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"model": ""}, "model"), ({"strength": 0.0}, "strength"), ({"num_inference_steps": 0}, "at least 1")],
)
def test_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        MethodConfig(**{"model": "x", **wrong})


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected a folder of edited images"):
        load_method(MethodConfig("folder", str(tmp_path / "nowhere")))
