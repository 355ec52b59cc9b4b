import json
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from transformers import AutoImageProcessor, AutoModel

from rewardedit import EditBatch, load_scorer
from rewardedit.images import Preprocess, to_pil
from rewardedit.scorers import preservation
from rewardedit.scorers.lpips import NETS, load_lpips
from rewardedit.scorers.preservation import region_mean, ssim_map
from tests.scorers.golden.make_golden import GOLDEN, pairs, photo, write_random_weights

NAMES = ["l1", "l2", "psnr", "ssim", "lpips", "dino_i", "clip_i"]
REAL_WEIGHTS = os.environ.get("REWARDEDIT_LPIPS")
golden = json.loads(GOLDEN.read_text())


def load(name, random_lpips, tiny_dino, **options):
    weights = {
        "lpips": {"weights": random_lpips},
        "dino_i": {"checkpoint": tiny_dino},
        "clip_i": {"checkpoint": "shapes/clip"},
    }
    return load_scorer(name, **options, **weights.get(name, {}))


def batch_of(edited, source, **more) -> EditBatch:
    return EditBatch(source, [""] * len(source), edited, **more)


def half_mask(b: int) -> torch.Tensor:
    """The left half of 64 × 64 pixels."""
    return (torch.arange(64) < 32).float().expand(b, 1, 64, 64)


@pytest.fixture
def pictures():
    noise = torch.Generator().manual_seed(0)
    source, edited, target = (
        torch.rand(3, 2, 3, 8, 8, generator=noise).repeat_interleave(8, -1).repeat_interleave(8, -2)
    )
    return source, edited, target


@pytest.mark.parametrize("pair", range(4))
def test_psnr_and_ssim_equal_scikit_image(pair):
    edited, source = pairs()[pair]
    a, b = (p[0].permute(1, 2, 0).double().numpy() for p in (edited, source))
    psnr = peak_signal_noise_ratio(b, a, data_range=1)
    window = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    ssim = structural_similarity(a, b, data_range=1, channel_axis=2, **window)
    assert load_scorer("psnr")(batch_of(edited, source)).score.item() == pytest.approx(psnr, abs=1e-4)
    assert load_scorer("ssim")(batch_of(edited, source)).score.item() == pytest.approx(ssim, abs=1e-5)


def test_pixel_errors_by_hand():
    source = torch.zeros(1, 3, 16, 16)
    edited = torch.zeros(1, 3, 16, 16)
    edited[..., :8, :] = 0.5  # half the image is off by a half
    scores = {name: load_scorer(name)(batch_of(edited, source)).score.item() for name in ("l1", "l2", "psnr")}
    assert scores == pytest.approx({"l1": 0.75, "l2": 0.875, "psnr": 10 * np.log10(8)})


def test_psnr_ends_at_a_hundred_decibels():
    """An error of 1e-4 everywhere is a squared one of 1e-8: 80 dB. What is nearer than 1e-5 is 100 dB,
    as is the source.
    """
    source = torch.zeros(1, 3, 16, 16)
    scorer = load_scorer("psnr")
    scores = [scorer(batch_of(source + error, source)).score.item() for error in (1e-4, 1e-6, 0.0)]
    assert scores == pytest.approx([80, 100, 100], abs=1e-3)
    assert scorer.range == (0, 100)


@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_lpips_equals_the_official_one_on_random_weights(net, tmp_path):
    write_random_weights(tmp_path, net)
    scorer = load_scorer("lpips", net=net, weights=str(tmp_path))
    scores = [scorer(batch_of(*pair)).score.item() for pair in pairs()]
    assert scores == pytest.approx([-value for value in golden[f"{net} random"]], rel=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not REAL_WEIGHTS, reason="REWARDEDIT_LPIPS names no folder with the published weights")
@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_lpips_equals_the_official_one(net):
    scorer = load_scorer("lpips", net=net, weights=REAL_WEIGHTS)
    scores = [scorer(batch_of(*pair)).score.item() for pair in pairs()]
    assert scores == pytest.approx([-value for value in golden[net]], rel=1e-4)


def test_lpips_fetches_what_is_missing_and_refuses_other_files(random_lpips, tmp_path, monkeypatch):
    published = [
        replace(file, url=path.as_uri(), sha256=sha256(path.read_bytes()).hexdigest())
        for file in NETS["alex"]
        for path in [Path(random_lpips, file.name)]
    ]
    monkeypatch.setitem(NETS, "alex", tuple(published))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    fetched = load_lpips("alex")
    given = load_lpips("alex", random_lpips)
    assert all(
        torch.equal(a, b)
        for a, b in zip(fetched.state_dict().values(), given.state_dict().values(), strict=True)
    )
    (tmp_path / "checkpoints" / published[1].name).unlink()
    monkeypatch.setitem(NETS, "alex", (published[0], replace(published[1], sha256="0123")))
    with pytest.raises(ValueError, match=r"lpips: expected .* fetching failed: invalid hash value"):
        load_lpips("alex")
    assert not (tmp_path / "checkpoints" / published[1].name).exists()


def test_missing_lpips_weights_and_unknown_networks_are_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"expected vgg16-397923af.pth .* and lpips-vgg.pth .*v0.1/vgg.pth"):
        load_lpips("vgg", tmp_path)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError,
        match=r"lpips: expected alexnet-owt-7be5be79.pth .* HF_HUB_OFFLINE is set; fetch them there",
    ):
        load_scorer("lpips")
    with pytest.raises(ValueError, match="net: expected one of alex, vgg; got 'squeeze'"):
        load_scorer("lpips", net="squeeze")


def test_dino_equals_transformers_with_its_own_processor(tiny_dino):
    source, edited = (
        torch.from_numpy(p / np.float32(255)).permute(2, 0, 1)[None]
        for p in (photo(), photo()[:, ::-1].copy())
    )
    model = AutoModel.from_pretrained(tiny_dino)
    processor = AutoImageProcessor.from_pretrained(tiny_dino, backend="pil")
    pixels = [processor(to_pil(p[0]), return_tensors="pt").pixel_values for p in (edited, source)]
    own = Preprocess.from_pretrained(tiny_dino)
    assert ((own(edited) - pixels[0]) * torch.tensor(own.std)[:, None, None]).abs().mean() < 1 / 255
    with torch.no_grad():
        wanted = torch.cosine_similarity(*(model(p).pooler_output for p in pixels))
    score = load_scorer("dino_i", checkpoint=tiny_dino)(batch_of(edited, source)).score
    torch.testing.assert_close(score, wanted, rtol=0, atol=5e-3)


def test_dinov3_is_preprocessed_as_its_own_processor_does(tmp_path):
    config = {
        "image_processor_type": "DINOv3ViTImageProcessor",
        "size": {"height": 224, "width": 224},
        "resample": 2,
    }
    config |= {
        "crop_size": None,
        "do_center_crop": None,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    own = Preprocess.from_pretrained(str(tmp_path))
    made = own(torch.from_numpy(photo() / np.float32(255)).permute(2, 0, 1)[None])[0, :, 8::16, 8::16]
    difference = (made - torch.tensor(golden["dinov3"]).reshape(made.shape)) * torch.tensor(own.std)[
        :, None, None
    ]
    assert difference.abs().mean() < 1 / 255


def test_a_dino_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="no DINO model can be loaded"):
        load_scorer("dino_i", checkpoint=str(tmp_path / "nothing"))


@pytest.mark.parametrize("name", NAMES)
def test_a_region_sees_its_own_side_of_the_mask_alone(name, pictures, random_lpips, tiny_dino):
    source, edited, _ = pictures
    mask = half_mask(2)
    inside, outside = (
        load(name, random_lpips, tiny_dino, region=r, against="source") for r in ("inside", "outside")
    )
    left = batch_of(torch.lerp(source, edited, mask), source, mask=mask)
    both = batch_of(edited, source, mask=mask)
    untouched = inside(batch_of(source, source, mask=mask)).score
    torch.testing.assert_close(outside(left).score, untouched)
    torch.testing.assert_close(inside(left).score, inside(both).score)
    assert (inside(left).score < untouched).all()
    assert (outside(both).score < untouched).all()
    everywhere = load(name, random_lpips, tiny_dino, region="all", against="source")(both).score
    whole = inside(batch_of(edited, source, mask=torch.ones_like(mask))).score
    torch.testing.assert_close(whole, everywhere)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_region_is_invalid_and_leaves_the_others_their_gradient(
    name, pictures, random_lpips, tiny_dino
):
    source, edited, _ = pictures
    edited = edited.clone().requires_grad_(True)
    scorer = load(name, random_lpips, tiny_dino, region="inside", against="source")
    mask = torch.cat([torch.zeros(1, 1, 64, 64), half_mask(1)])
    scores = scorer(batch_of(edited, source, mask=mask))
    assert scores.valid.tolist() == [False, True]
    assert scores.reason == ["nothing lies inside the mask", None]
    scores.mean().backward()
    assert edited.grad is not None
    assert edited.grad.isfinite().all()
    assert edited.grad[0].abs().sum() == 0
    assert edited.grad[1, ..., :32].abs().sum() > 0
    assert edited.grad[1, ..., 32:].abs().sum() == 0


@pytest.mark.parametrize("name", NAMES)
def test_against_the_target_the_source_does_not_count(name, pictures, random_lpips, tiny_dino):
    source, edited, target = pictures
    scorer = load(name, random_lpips, tiny_dino, against="target")
    batch, swapped = (
        batch_of(edited, first, target=second) for first, second in ((source, target), (target, source))
    )
    torch.testing.assert_close(
        scorer(batch).score, load(name, random_lpips, tiny_dino, against="source")(swapped).score
    )
    with pytest.raises(ValueError, match="needs target; set that field of the EditBatch"):
        scorer(batch_of(edited, source))


def test_bad_options_and_small_pictures_are_refused(random_lpips):
    with pytest.raises(ValueError, match="region: expected one of all, inside, outside; got 'left'"):
        load_scorer("l1", region="left")
    with pytest.raises(ValueError, match="against: expected one of source, target; got 'mask'"):
        load_scorer("psnr", against="mask")
    with pytest.raises(ValueError, match="Ssim needs mask"):
        load_scorer("ssim", region="inside")(batch_of(torch.rand(1, 3, 16, 16), torch.rand(1, 3, 16, 16)))
    with pytest.raises(
        ValueError, match=r"ssim: expected images of at least 11 pixels a side; got \(10, 20\)"
    ):
        load_scorer("ssim")(batch_of(torch.rand(1, 3, 10, 20), torch.rand(1, 3, 10, 20)))
    with pytest.raises(
        ValueError, match=r"lpips: expected images of at least 32 pixels a side; got \(16, 40\)"
    ):
        load_scorer("lpips", weights=random_lpips)(
            batch_of(torch.rand(1, 3, 16, 40), torch.rand(1, 3, 16, 40))
        )


@pytest.mark.parametrize("name", ["l1", "l2", "psnr"])
def test_the_gradients_of_pixel_scores_are_right(name):
    torch.manual_seed(0)
    source = torch.rand(2, 3, 5, 6).double()
    edited = torch.rand(2, 3, 5, 6).double()
    mask = torch.rand(2, 1, 5, 6).double()
    scorer = load_scorer(name, region="inside")
    assert torch.autograd.gradcheck(
        lambda x: scorer(batch_of(x, source, mask=mask)).score, edited.requires_grad_(True)
    )


def test_ssim_is_torchmetrics_inside_the_rim():
    """Golden: the mean over windows inside the image of the map that torchmetrics 1.9.0 returns in float64,
    structural_similarity_index_measure(b, a, data_range=1.0, return_full_image=True)[1][..., 5:-5, 5:-5]; its
    own value, 0.661685860, counts windows across the rim too.
    """
    h, w = torch.meshgrid(torch.arange(24.0), torch.arange(20.0), indexing="ij")
    a = torch.stack([h / 23, w / 19, (h + w) / 42])[None]
    score = load_scorer("ssim")(EditBatch(a, ["darker"], a.square())).score
    assert score.item() == pytest.approx(0.747985251, abs=1e-5)


def test_the_gradients_of_ssim_and_of_region_means_are_right():
    torch.manual_seed(0)
    x = torch.rand(1, 2, 12, 12).double()
    y = torch.rand(1, 2, 12, 12).double()
    weight = torch.rand(1, 1, 24, 24).double()
    assert torch.autograd.gradcheck(lambda x: region_mean(ssim_map(x, y), weight), x.requires_grad_(True))


def test_ssim_blurs_once_what_could_be_blurred_five_times(pictures, monkeypatch):
    source, edited, _ = pictures
    shapes = []
    blur = preservation.gaussian_blur
    monkeypatch.setattr(
        preservation, "gaussian_blur", lambda image, sigma: shapes.append(image.shape) or blur(image, sigma)
    )
    assert ssim_map(source, edited).shape == source.shape
    assert shapes == [(10, 3, 64, 64)]
