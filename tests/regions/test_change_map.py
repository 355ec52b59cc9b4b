"""The change mask: where images differ, and not where a codec or a camera drifts."""

import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from skimage import data

from rewardedit import change_mask, load_editor
from rewardedit.images import resize, to_pil, to_tensor
from rewardedit.regions import change_map
from rewardedit.regions.change_map import dilated, eroded
from rewardedit.shapes import Shapes


@pytest.mark.parametrize("radius", [0, 1, 2, 3, 6, 40])
def test_the_largest_value_around_is_that_of_pooling(radius):
    mask = torch.rand(2, 1, 17, 30) - 0.5
    pooled = F.max_pool2d(F.pad(mask, [radius] * 4, value=float("-inf")), 2 * radius + 1, stride=1)
    assert torch.equal(dilated(mask, radius), pooled)
    assert torch.equal(eroded(mask, radius), 1 - dilated(1 - mask, radius))


@pytest.fixture(scope="module")
def photo() -> torch.Tensor:
    return resize(to_tensor(Image.fromarray(data.astronaut()), 3)[None], (256, 256))


def jpeg(image: torch.Tensor, quality: int) -> torch.Tensor:
    file = io.BytesIO()
    to_pil(image[0]).save(file, "JPEG", quality=quality)
    return to_tensor(Image.open(file), 3)[None]


def test_nothing_changed(photo):
    assert change_mask(photo, photo).sum() == 0


def test_half_precision_finds_what_full_precision_finds(photo):
    edited = photo.clone()
    edited[..., 90:150, 60:130] = 0.9
    whole = change_mask(photo.bfloat16().float(), edited.bfloat16().float())
    assert torch.equal(change_mask(photo.bfloat16(), edited.bfloat16()), whole)


def test_an_image_of_more_pixels_than_a_quantile_takes_has_a_mask(photo, monkeypatch):
    edited = photo.clone()
    edited[..., 90:150, 60:130] = 0.9
    whole = change_mask(photo, edited)
    monkeypatch.setattr(change_map, "LARGEST", 20_000)  # of 65,536 pixels
    real = torch.Tensor.quantile

    def bounded(own: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        assert own.shape[-1] <= 20_000
        return real(own, *args, **options)

    monkeypatch.setattr(torch.Tensor, "quantile", bounded)
    assert (change_mask(photo, edited) - whole).abs().mean() < 0.01


@pytest.mark.parametrize("quality", [50, 75, 95])
def test_jpeg_noise_is_no_change(photo, quality):
    assert change_mask(photo, jpeg(photo, quality)).mean() < 0.01


@pytest.mark.parametrize("gain", [0.95, 1.05])
def test_a_small_exposure_shift_is_no_change(photo, gain):
    assert change_mask(photo, (photo * gain).clamp(0, 1)).mean() < 0.01


def test_a_picture_that_is_brighter_throughout_has_changed_only_where_it_was_edited():
    """0.5 and 0.54 are 0.034 apart in OKLab's lightness, (54/50)^(2.3/3): above what counts as a change,
    below a drift.
    """
    grey = torch.full((1, 3, 64, 64), 0.5)
    brighter = torch.full((1, 3, 64, 64), 0.54)
    assert change_mask(grey, brighter).max() == 0
    brighter[:, 0, 20:40, 20:40] = 0.9
    mask = change_mask(grey, brighter)
    assert mask[..., 22:38, 22:38].min() == 1
    outside = torch.ones_like(mask)
    outside[..., 16:44, 16:44] = 0
    assert mask[outside == 1].max() == 0


def test_reconstruction_noise_is_no_change():
    pipe = load_editor("shapes/editor").pipe
    source = Shapes("val").batch(0, 70).source
    with torch.no_grad():
        made = (
            pipe.vae.decode(pipe.vae.encode(source * 2 - 1).latent_dist.mode())
            .sample.div(2)
            .add(0.5)
            .clamp(0, 1)
        )
    assert change_mask(source, made).mean() < 0.01


def test_an_edit_is_found_under_jpeg_noise_and_exposure_shift(photo):
    edited = photo.clone()
    edited[..., 80:140, 100:180] = torch.tensor([0.1, 0.6, 0.2])[:, None, None]
    edited = jpeg((edited * 1.03).clamp(0, 1), 75)
    mask = change_mask(photo, edited)
    inside = torch.zeros_like(mask)
    inside[..., 80:140, 100:180] = 1
    assert mask[inside == 1].mean() > 0.85
    grown = torch.nn.functional.max_pool2d(inside, 33, 1, 16)
    assert mask[grown == 0].mean() < 0.01


def test_true_edits_of_the_shapes_world_are_found():
    samples = Shapes("val").batch(0, 140)
    mask = change_mask(samples.source, samples.target)
    moved = ((samples.source - samples.target).abs().amax(1, keepdim=True) > 0.2).float()
    found = (mask * moved).sum((1, 2, 3)) / moved.sum((1, 2, 3)).clamp_min(1)
    assert found.mean() > 0.95
    far = torch.nn.functional.max_pool2d(moved, 11, 1, 5) == 0
    assert mask[far].mean() < 0.01


def test_each_row_for_itself(photo):
    other = 1 - photo
    both = change_mask(torch.cat([photo, photo]), torch.cat([photo, other]))
    assert torch.equal(both[:1], change_mask(photo, photo))
    assert torch.allclose(both[1:], change_mask(photo, other))


def test_an_edit_of_another_size_is_told_the_remedy():
    with pytest.raises(ValueError, match=r"to fit source; got \(1, 3, 8, 4\); give rewardedit.images.resize"):
        change_mask(torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 4))
