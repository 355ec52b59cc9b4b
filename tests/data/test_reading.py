"""Images are bytes from their files to the device, and as good as floating-point."""

import io
import json
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, features
from skimage import data
from torch.utils._python_dispatch import TorchDispatchMode

from rewardedit import EditSample, collate, load_scorer
from rewardedit.batch import PixelBatch, collate_pixels, collating
from rewardedit.data import DataConfig, open_rows, read_batches
from rewardedit.images import (
    fit,
    load_image,
    load_mask,
    load_pil,
    resize,
    to_bytes,
    to_float,
    to_pixels,
    to_tensor,
    view_pixels,
)
from rewardedit.scoring import score_rows

EXIF = Image.Exif()
EXIF[0x0112] = 6  # a quarter turn clockwise


def photograph(name: str, size=(400, 300)) -> Image.Image:
    return Image.fromarray(getattr(data, name)()).resize(size, Image.Resampling.LANCZOS)


def with_a_hole(image: Image.Image) -> Image.Image:
    alpha = Image.linear_gradient("L").resize(image.size)
    image.putalpha(alpha)
    return image


KINDS = {
    "JPEG": lambda: (photograph("coffee"), {"format": "JPEG", "quality": 92}),
    "a rotated JPEG": lambda: (photograph("chelsea"), {"format": "JPEG", "exif": EXIF}),
    "a gray JPEG": lambda: (photograph("astronaut").convert("L"), {"format": "JPEG"}),
    "PNG": lambda: (photograph("astronaut"), {"format": "PNG"}),
    "a palette": lambda: (photograph("coffee").quantize(), {"format": "PNG"}),
    "alpha": lambda: (with_a_hole(photograph("chelsea")), {"format": "PNG"}),
    "WEBP": lambda: (photograph("rocket"), {"format": "WEBP", "quality": 92}),
}


def away(pixels: torch.Tensor, floats: torch.Tensor, size: int, policy: str = "crop") -> torch.Tensor:
    """Difference of images that are resized as bytes and as floating-point, in levels of 255."""
    found = fit(pixels[None], size, policy)
    assert found.dtype == torch.uint8
    return (found - 255 * fit(floats[None], size, policy)).abs()


@pytest.mark.parametrize("policy", ["crop", "stretch", "pad"])
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_resized_as_floating_point_is(kind, policy):
    """But for a few pixels at the sharpest edges, where bytes cut off what one direction overshoots."""
    image, options = KINDS[kind]()
    file = io.BytesIO()
    image.save(file, **options)
    for size in (64, 150, 320):
        found = away(to_pixels(load_pil(file), 3), load_image(file), size, policy)
        assert found.shape == (1, 3, size, size)
        assert found.mean() <= 0.36
        assert (found > 3).float().mean() <= 0.002


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_photographs_of_512_pixels_are_within_three_levels_at_256(kind):
    for name in ("astronaut", "chelsea"):
        file = io.BytesIO()
        photograph(name, (512, 512)).save(file, kind)
        found = away(to_pixels(load_pil(file), 3), load_image(file), 256)
        assert found.max() <= 3
        assert found.mean() <= 0.31


class Operations(TorchDispatchMode):
    """Names of the operations that torch carries out within the block."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_a_photograph_is_resized_without_a_copy_of_it():
    image = photograph("coffee")
    pixels = view_pixels(image, 3)
    assert pixels.data_ptr() == view_pixels(image, 3).data_ptr()
    expected = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    del image
    assert torch.equal(pixels, expected)
    for size in ((64, 64), (150, 90), (320, 400)):
        one = pixels[None]
        with Operations() as done:
            found = resize(one, size)
        assert done.names == {"as_strided", "_upsample_bicubic2d_aa", "slice"}
        assert torch.equal(found, resize(expected[None], size))


def test_pixels_that_are_written_into_leave_their_image():
    for image in (photograph("coffee"), np.array(photograph("coffee"))):
        before = np.array(image)
        for pixels in (to_pixels(image, 3), to_tensor(image, 3)):
            pixels.zero_()
            assert np.array_equal(np.array(image), before)


def test_a_photograph_in_several_blocks_is_copied():
    image = Image.linear_gradient("L").resize((2300, 2000)).convert("RGB")
    pixels = view_pixels(image, 3)
    assert pixels.stride() == (1, 3 * 2300, 3)
    assert torch.equal(pixels, torch.from_numpy(np.array(image)).permute(2, 0, 1))


def test_bytes_are_resized_as_pil_resizes_them():
    for name in ("astronaut", "coffee", "camera"):
        image = Image.fromarray(getattr(data, name)()).convert("RGB")
        for size in (64, 256):
            wanted = to_pixels(image.resize((size, size), Image.Resampling.BICUBIC), 3)
            found = fit(to_pixels(image, 3)[None], size, "stretch")[0]
            assert (found.int() - wanted.int()).abs().max() <= 1


def test_masks_are_resized_as_floating_point_is():
    brightness = photograph("astronaut").convert("L")
    brushed = with_a_hole(photograph("chelsea"))
    labels = photograph("coffee").convert("L").point(lambda level: 3 * (level > 99))
    for mask in (brightness, brushed, labels):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that labels are read as such
            pixels = to_pixels(mask, 1)
            floats = to_tensor(mask, 1)
        assert away(pixels, floats, 64).mean() <= 0.5
    assert floats.unique().tolist() == [0, 1]


def test_a_great_shrink_is_as_good():
    image = photograph("astronaut", (2000, 1500))
    assert away(to_pixels(image, 3), to_tensor(image, 3), 16).max() <= 3


def test_every_byte_becomes_the_number_that_numpy_makes_of_it():
    levels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    floats = to_float(torch.from_numpy(levels))
    assert np.array_equal(floats.numpy(), levels.astype(np.float32) / 255)
    assert torch.equal(to_bytes(floats), torch.from_numpy(levels))


def test_floating_point_pixels_lie_in_memory_as_they_always_did():
    """Channels last would go on through a model, whose results round otherwise there."""
    image = to_tensor(photograph("coffee"), 3)
    batch = collate([EditSample("0", photograph("coffee"), "x", photograph("chelsea"))], 32)
    assert image.is_contiguous()
    assert batch.source.is_contiguous()


@pytest.fixture
def table(tmp_path) -> DataConfig:
    """Four rows of photographs and masks, of which the last is of the size that it is brought to."""
    records = []
    for i, (name, kind) in enumerate(
        {"coffee": "jpg", "chelsea": "png", "rocket": "webp", "cat": "png"}.items()
    ):
        size = (32, 32) if i == 3 else (60, 48)
        photograph(name, size).save(tmp_path / f"{i}.{kind}")
        photograph("astronaut", size).save(tmp_path / f"{i}-edited.{kind}")
        photograph(name, size).convert("L").save(tmp_path / f"{i}-mask.png")
        record = {"source": f"{i}.{kind}", "edited": f"{i}-edited.{kind}", "mask": f"{i}-mask.png"}
        records.append(json.dumps(record | {"instruction": "make it new"}))
    (tmp_path / "rows.jsonl").write_text("\n".join(records))
    return DataConfig("table", str(tmp_path), size=32)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_reader_s_rows_are_bytes_until_the_device(table, workers):
    (part,) = read_batches(open_rows(table), table.size, table.resize, 4, workers=workers)
    assert {name: pixels.dtype for name, pixels in part.pixels.images.items()} == {
        "source": torch.uint8,
        "edited": torch.uint8,
        "mask": torch.uint8,
    }
    batch = part.pixels.to("cpu")
    assert batch.source.dtype == batch.mask.dtype == torch.float32
    assert torch.equal(part.batch.edited, batch.edited)
    for name, load in (("source", load_image), ("mask", load_mask)):
        file = f"{table.path}/3{'-mask' if name == 'mask' else ''}.png"
        assert torch.equal(getattr(batch, name)[3], load(file)), "of the right size: as it is"


def test_a_batch_is_converted_once_and_in_one_piece(table, monkeypatch):
    shapes = []
    monkeypatch.setattr(
        collating, "to_float", lambda pixels: shapes.append(tuple(pixels.shape)) or to_float(pixels)
    )
    scorers = {"l1": load_scorer("l1"), "ssim": load_scorer("ssim")}
    (records,) = score_rows(open_rows(table), scorers, 32, batch=4)
    assert all(record["valid"] for record in records)
    assert sorted(shapes) == [(4, 1, 32, 32), (4, 3, 32, 32), (4, 3, 32, 32)]


def test_a_resize_runs_on_bytes_with_the_channels_of_a_pixel_side_by_side(table, monkeypatch):
    given = []
    resize = F.interpolate
    monkeypatch.setattr(
        F, "interpolate", lambda image, *a, **k: given.append(image) or resize(image, *a, **k)
    )
    list(read_batches(open_rows(table), table.size, table.resize, 4))
    assert len(given) == 9  # three images of three rows: the fourth is of the right size
    for image in given:
        assert image.dtype == torch.uint8
        assert image.is_contiguous(memory_format=torch.channels_last)


def test_what_is_no_byte_stays_floating_point_and_so_does_its_batch():
    deep = Image.fromarray((np.arange(256, dtype=np.uint16) * 257).reshape(16, 16))
    plain = photograph("coffee", (16, 16))
    assert to_pixels(deep, 3).dtype == torch.float32
    rows = [EditSample("0", deep, "x", plain), EditSample("1", plain, "x", plain)]
    pixels = collate_pixels(rows)
    assert pixels.images["source"].dtype == torch.float32
    assert pixels.images["edited"].dtype == torch.uint8
    assert torch.equal(pixels.to().source, torch.stack([to_tensor(deep, 3), to_tensor(plain, 3)]))


def test_a_gradient_goes_through_a_batch_of_tensors():
    edited = torch.rand(3, 8, 8, requires_grad=True)
    batch = collate([EditSample("0", torch.rand(3, 8, 8), "x", edited)], 4)
    batch.edited.sum().backward()
    assert edited.grad.abs().sum() > 0


def test_pixels_of_other_sizes_are_no_batch():
    source = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    with pytest.raises(
        ValueError, match=r"edited: expected \(1, 3, 4, 4\) to fit source; got \(1, 3, 4, 5\)"
    ):
        PixelBatch({"source": source, "edited": torch.zeros(1, 3, 4, 5, dtype=torch.uint8)}, ["x"])


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "BMP", "WEBP", "AVIF", "JPEG2000", "PPM", "MPO"])
def test_an_image_that_is_decoded_needs_its_file_no_more(kind, tmp_path):
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    photograph("coffee").save(tmp_path / "a", kind)
    image = load_pil(tmp_path / "a")
    (tmp_path / "a").unlink()
    assert to_pixels(image, 3).shape == (3, 300, 400)
