import errno
import io
import struct

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from skimage import data
from transformers import CLIPImageProcessorPil

from rewardedit import images, untrusted
from rewardedit.images import Preprocess, fit, load_image, load_mask, resize, to_pil, to_tensor


def test_preprocess_equals_the_model_s_own_processor_and_has_a_gradient():
    processor = CLIPImageProcessorPil()  # CLIP ViT's defaults: 224, centre crop
    photo = Image.fromarray(data.astronaut()).resize((400, 300))
    own = Preprocess.from_processor(processor)
    image = to_tensor(photo, 3)[None].requires_grad_(True)
    made = own(image)
    wanted = processor(photo, return_tensors="pt").pixel_values
    std = torch.tensor(processor.image_std)[:, None, None]
    assert ((made - wanted) * std).abs().mean() < 1 / 255
    made.sum().backward()
    assert image.grad is not None
    assert image.grad.abs().sum() > 0


@pytest.mark.parametrize("policy", ["crop", "stretch", "pad"])
@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (7, 100), (64, 64)])
def test_fit_gives_the_size_asked_for(policy, shape):
    assert fit(torch.rand(2, 3, *shape), 16, policy).shape == (2, 3, 16, 16)


def test_fit_leaves_the_right_size_alone_and_knows_its_policies():
    image = torch.rand(1, 3, 16, 16)
    assert fit(image, 16) is image
    with pytest.raises(ValueError, match="policy: expected one of crop, stretch, pad; got 'zoom'"):
        fit(image, 8, "zoom")


def test_files_go_there_and_back(tmp_path):
    image = torch.from_numpy(data.coffee()[:40, :50].astype(np.float32) / 255).permute(2, 0, 1)
    to_pil(image).save(tmp_path / "a.png")
    assert torch.equal(load_image(tmp_path / "a.png"), image)
    with pytest.raises(ValueError, match="no such file"):
        load_image(tmp_path / "b.png")
    (tmp_path / "c.png").write_text("no image")
    with pytest.raises(ValueError, match="not an image that can be read"):
        load_image(tmp_path / "c.png")


def test_a_transparent_mask_marks_what_was_brushed_away():
    mask = Image.new("RGBA", (4, 4), (9, 9, 9, 255))
    mask.putpixel((1, 2), (0, 0, 0, 0))
    tensor = to_tensor(mask, 1)
    assert tensor.sum() == 1
    assert tensor[0, 2, 1] == 1


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_a_mask_file_is_read_by_its_transparency(mode, tmp_path):
    """Bright where it is kept: read by brightness it would be 1 nearly everywhere."""
    mask = Image.new("RGBA", (10, 10), (230, 230, 230, 255))
    mask.paste((0, 0, 0, 0), (2, 3, 4, 6))
    mask.convert(mode).save(tmp_path / "mask.png")
    found = load_mask(tmp_path / "mask.png")
    assert found.sum() == 6
    assert found[0, 3:6, 2:4].min() == 1


@pytest.mark.parametrize("mode", ["RGBA", "RGB", "L", "1"])
def test_a_mask_file_without_a_transparent_place_is_read_by_its_brightness(mode, tmp_path):
    mask = Image.new("RGBA", (10, 10), (0, 0, 0, 255))
    mask.paste((255, 255, 255, 255), (2, 3, 4, 6))
    mask.convert(mode).save(tmp_path / "mask.png")
    assert load_mask(tmp_path / "mask.png").sum() == 6
    assert to_tensor(mask.convert(mode), 1).sum() == 6  # as rows from the hub bring it


def stripes() -> Image.Image:
    """Red above, blue below, larger than wide."""
    image = Image.new("RGB", (20, 32), (255, 0, 0))
    image.paste((0, 0, 255), (0, 16, 20, 32))
    return image


def test_an_image_that_lies_on_its_side_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn clockwise
    stripes().save(tmp_path / "turned.png", exif=exif)
    image = load_image(tmp_path / "turned.png")
    assert image.shape == (3, 20, 32)
    assert image[:, 10, 2].tolist() == [0, 0, 1]
    assert image[:, 10, 29].tolist() == [1, 0, 0]


@pytest.mark.parametrize("mode", ["RGB", "L", "LA", "P", "I;16", "CMYK", "1"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pixels_are_the_same_in_parts_and_as_pil_turns_them(mode, orientation, monkeypatch):
    colours = np.random.default_rng(0).integers(0, 256, (13, 7, 4), dtype=np.uint8)
    if mode == "I;16":
        image = Image.fromarray(colours[..., 0].astype(np.uint16) * 200)
    else:
        image = Image.fromarray(colours).convert("LA" if mode == "LA" else "RGB").convert(mode)
    image.getexif()[0x0112] = orientation
    upright = ImageOps.exif_transpose(image)
    monkeypatch.setattr(images.reading, "PART", 30)  # four rows
    found = to_tensor(image, 3)
    monkeypatch.undo()
    if mode == "I;16":
        expected = np.repeat(np.asarray(upright, dtype=np.float32)[None] / 65535, 3, 0)
    else:
        rgba = upright.convert("RGBA")
        rgb = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
        expected = (np.asarray(rgb, dtype=np.float32) / 255).transpose(2, 0, 1)
    assert np.array_equal(found.numpy(), expected)
    if mode == "LA":  # a mask: what was brushed away
        brushed = (255 - np.asarray(upright.getchannel("A"), dtype=np.float32)[None]) / 255
        assert np.array_equal(to_tensor(image, 1).numpy(), brushed)


def test_images_without_pixels_or_with_too_much_of_anything_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="expected pixels; got 0 x 5"):
        to_tensor(Image.new("RGB", (0, 5)), 3)
    (tmp_path / "none.ppm").write_bytes(b"P6 0 4 255 ")
    with pytest.raises(ValueError, match=r"none\.ppm"):
        load_image(tmp_path / "none.ppm")
    for size, reason in {
        (300, 2): "sides that differ at most 100-fold; got 300 x 2",
        (8200, 8200): "at most 50331648 pixels; got 8200 x 8200",
    }.items():
        Image.new("1", size).save(tmp_path / "bomb.png")
        with pytest.raises(ValueError, match=rf"bomb\.png: expected .*{reason}"):
            load_image(tmp_path / "bomb.png")
    tags = {256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 277: 1, 322: 16384, 323: 16384, 324: 8, 325: 64}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    content = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
    (tmp_path / "tiles.tif").write_bytes(content)
    with pytest.raises(ValueError, match=r"tiles\.tif: expected .* got 16384 x 16384 in a tile"):
        load_image(tmp_path / "tiles.tif")
    monkeypatch.setattr(untrusted, "MAX_IMAGE_BYTES", 20)
    stripes().save(tmp_path / "a.png")
    for file in (tmp_path / "a.png", io.BytesIO((tmp_path / "a.png").read_bytes())):
        with pytest.raises(ValueError, match=r"expected at most 0 MiB"):
            load_image(file)


@pytest.mark.parametrize("size", [(8064, 6048), (6120, 8160)])
def test_photographs_of_phones_are_not_too_large(size, tmp_path):
    Image.new("1", size).save(tmp_path / "photo.png")
    assert untrusted.open_image(tmp_path / "photo.png").size == size


def test_sixteen_bits_are_brought_to_the_same_range(tmp_path):
    values = np.array([[0, 257 * 100], [257 * 200, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    found = load_image(tmp_path / "deep.png")
    assert found.shape == (3, 2, 2)
    assert (found[1] * 255).flatten().tolist() == pytest.approx([0, 100, 200, 255], abs=0.01)


def test_printers_colours_are_brought_to_the_screen_s(tmp_path):
    stripes().convert("CMYK").save(tmp_path / "print.tif")
    assert torch.equal(load_image(tmp_path / "print.tif"), to_tensor(stripes(), 3))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode, tmp_path):
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 255))
    image.paste((0, 0, 0, 0), (0, 0, 2, 4))
    image.convert(mode).save(tmp_path / "hole.png")
    found = load_image(tmp_path / "hole.png")
    assert found[:, :, :2].min() == 1
    assert found[:, :, 2:].max() == 0


def test_of_several_frames_the_first_is_taken(tmp_path):
    frames = [stripes(), Image.new("RGB", (20, 32), (0, 255, 0))]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    assert load_image(tmp_path / "film.gif")[:, 2, 10].tolist() == [1, 0, 0]


def test_a_bomb_and_what_is_cut_off_are_refused_also_when_others_opened_them(tmp_path, monkeypatch):
    noise = Image.effect_noise((64, 64), 50)
    noise.save(tmp_path / "whole.png")
    content = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "half.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"half.png: not an image that can be read"):
        load_image(tmp_path / "half.png")
    with pytest.raises(ValueError, match="not an image that can be read"):
        to_tensor(Image.open(tmp_path / "half.png"), 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 64 // 2 - 1)
    with pytest.raises(ValueError, match=r"whole.png: not an image that can be read .*bomb"):
        load_image(tmp_path / "whole.png")


def test_a_disk_that_fails_is_no_fault_of_the_image():
    image = Image.new("RGB", (4, 4))
    image.load = lambda: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error"))  # type: ignore[method-assign]
    with pytest.raises(OSError, match="Input/output"):
        to_tensor(image, 3)


def test_senseless_tags_do_not_keep_an_image_from_being_read(tmp_path):
    stripes().save(tmp_path / "tags.jpg", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x7f")
    assert load_image(tmp_path / "tags.jpg").shape == (3, 32, 20)


def test_a_tall_image_is_cut_in_its_middle_and_a_wide_one_padded_evenly():
    bands = torch.arange(3.0).repeat_interleave(8)[:, None].expand(24, 8) / 2
    assert torch.equal(fit(bands.expand(1, 3, 24, 8), 8, "crop"), torch.full((1, 3, 8, 8), 0.5))
    padded = fit(torch.ones(1, 3, 4, 8), 8, "pad")[0, 0]
    assert torch.equal(padded, padded.flip(0))
    assert not torch.equal(padded[0], padded[4])


def test_floating_point_pixels_are_refused(tmp_path):
    """Their range is not known: taken for 0 to 255 they would be black."""
    Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match="its pixels are floating-point numbers"):
        load_image(tmp_path / "a.tif")


def test_a_large_image_is_made_small_in_two_steps(monkeypatch):
    """CUDA's kernel refuses to do it in one."""
    photo = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    large = F.interpolate(photo, (8 * 50, 8 * 50), mode="bilinear")
    once = F.interpolate(large, (8, 8), mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
    steps = []
    step = F.interpolate
    monkeypatch.setattr(F, "interpolate", lambda *a, **k: steps.append(k["mode"]) or step(*a, **k))
    torch.testing.assert_close(resize(large, (8, 8)), once, rtol=0, atol=0.01)
    assert steps == ["area", "bicubic"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_resized_on_a_cpu_too(dtype):
    image = torch.rand(1, 3, 17, 11, generator=torch.Generator().manual_seed(0)).to(dtype)
    made = images.resize(image, (40, 24))
    assert made.dtype == dtype
    torch.testing.assert_close(made.float(), images.resize(image.float(), (40, 24)), rtol=0, atol=1e-2)
