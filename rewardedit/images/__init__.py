"""Files and PIL images to tensors and back; `Preprocess`, the differentiable input of a vision model."""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import ExifTags, Image
from torch import Tensor

from rewardedit.images.labels import label_reader, to_labels
from rewardedit.images.values import require_unit_range
from rewardedit.models import pretrained
from rewardedit.untrusted import CONTENT_ERRORS, decode, is_system_error, open_image, unreadable

POLICIES = ("crop", "stretch", "pad")
MODES = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # PIL's numbers of the ways to resize


def load_image(path: str | Path | io.BytesIO) -> Float[Tensor, "3 h w"]:
    """An image file, or its bytes, as RGB in [0, 1], turned upright by its EXIF tag.

    Transparent areas become white, 16 bits are scaled to the same range, and of several frames the first
    is used.

    Raises:
        ValueError: if there is no such file, or it is not an image.
    """
    return _read(path, channels=3)


def load_mask(path: str | Path | io.BytesIO) -> Float[Tensor, "1 h w"]:
    """A mask file, or its bytes, as [0, 1], 1 where change is wanted.

    Raises:
        ValueError: if there is no such file, or it is not an image.
    """
    return _read(path, channels=1)


def _read(path: str | Path | io.BytesIO, channels: int) -> Float[Tensor, "c h w"]:
    image = open_image(path)
    try:
        with image:
            decode(image)
    except CONTENT_ERRORS as error:
        if is_system_error(error):
            raise
        raise ValueError(unreadable(path, error)) from None
    return to_tensor(image, channels)


MOST_SHRUNK = 32  # largest factor of one bicubic or bilinear step
PART = 2**20  # pixels of an image that are converted to floating point at once: they take 12 bytes each
# By EXIF orientation, the pixels of an upright image (c, h, w) in the order of its file.
LYING: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda upright: upright[:, :, ::-1],
    3: lambda upright: upright[:, ::-1, ::-1],
    4: lambda upright: upright[:, ::-1],
    5: lambda upright: upright.swapaxes(1, 2),
    6: lambda upright: upright.swapaxes(1, 2)[:, ::-1],
    7: lambda upright: upright.swapaxes(1, 2)[:, ::-1, ::-1],
    8: lambda upright: upright.swapaxes(1, 2)[:, :, ::-1],
}


def _orientation(image: Image.Image) -> int:
    """The number in the EXIF tag for an image's orientation; 1: upright."""
    try:
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except CONTENT_ERRORS:  # its EXIF tags make no sense: it is used as it is
        return 1
    return found if isinstance(found, int) else 1


def _parts(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """An image in strips of some rows, from its top, each with the number of its first row."""
    rows = max(1, PART // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(image.height, top + rows)))


def _floats(image: Image.Image, channels: int) -> np.ndarray:
    """The pixels (h, w, c) in [0, 1], over white where they are transparent."""
    if image.mode.startswith("I"):  # 16 bits a pixel, which PIL would cut off at 255
        gray = np.asarray(image, dtype=np.float32) / 65535
        return gray.clip(0, 1)[:, :, None]
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    array = np.asarray(image.convert("L" if channels == 1 else "RGB"), dtype=np.float32) / 255
    return array.reshape(image.height, image.width, channels)


def _brushed(image: Image.Image, channels: int = 1) -> np.ndarray:
    """The share of each pixel (h, w, 1) that is transparent."""
    return 1 - np.asarray(image.convert("RGBA").getchannel("A"), dtype=np.float32)[:, :, None] / 255


def to_tensor(image: Image.Image | np.ndarray | Tensor, channels: int) -> Float[Tensor, "c h w"]:
    """A PIL image, a NumPy array (h, w) or (h, w, c), or a tensor (c, h, w), as float in [0, 1] with 3
    channels (RGB) or 1 (a mask).

    An image is white where it is transparent. A mask is 1 where the image is transparent, as MagicBrush and
    HumanEdit erase the region; without transparency it has the image's brightness, or holds labels, see
    `to_labels`. An image with a coloured palette holds labels: its colours stand for classes.

    Raises:
        ValueError: if a tensor or array has another shape, type or range, or an image's pixels cannot be
            read or have an unknown range.
    """
    name = "mask" if channels == 1 else "image"
    if isinstance(image, np.ndarray):
        image = _from_array(image, channels, name)
    if isinstance(image, Tensor):
        return _from_tensor(image, channels, name)
    if not isinstance(image, Image.Image):
        raise ValueError(
            f"{name}: expected a PIL image, an array or a tensor; got {type(image).__name__}; "
            "load_image reads files"
        )
    _require_pixels(image, name)
    return _from_pil(image, channels)


def _from_array(array: np.ndarray, channels: int, name: str) -> Image.Image | Tensor:
    """An array for `to_tensor`: 8-bit and gray 16-bit integers as a PIL image, other numbers as a tensor."""
    array = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    is_gray = array.ndim == 2
    if not is_gray and (array.ndim != 3 or array.shape[2] != channels):
        wanted = "(h, w)" if channels == 1 else "(h, w) or (h, w, 3)"
        raise ValueError(f"{name}: expected an array {wanted}; got {array.shape}")
    if not array.size:
        raise ValueError(f"{name}: expected an image with pixels; got none, {array.shape}")
    if array.dtype in (np.uint8, np.uint16) and (is_gray or array.dtype == np.uint8):
        return Image.fromarray(np.ascontiguousarray(array))
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name}: expected an array of numbers in [0, 1] or 0…255; got {array.dtype}")
    numbers = torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))
    return numbers.expand(channels, -1, -1) if is_gray else numbers.permute(2, 0, 1)


def _from_tensor(image: Tensor, channels: int, name: str) -> Float[Tensor, "c h w"]:
    if image.ndim != 3 or image.shape[0] != channels:
        raise ValueError(f"expected a tensor ({channels}, h, w); got {tuple(image.shape)}")
    if channels == 1:
        image = to_labels(image)
    require_unit_range(name, image)
    return image.float()


def _require_pixels(image: Image.Image, name: str) -> None:
    """Raises ValueError where an image is damaged, empty, or of numbers whose range is unknown."""
    try:
        decode(image)
    except CONTENT_ERRORS as error:  # opened by the caller, and damaged further on
        if is_system_error(error):
            raise
        raise ValueError(f"not an image that can be read ({error})") from error
    if not image.width or not image.height:
        raise ValueError(f"{name}: expected pixels; got {image.width} x {image.height} of them")
    if image.mode in ("F", "I"):
        kind = "floating-point numbers" if image.mode == "F" else "32-bit integers"
        raise ValueError(f"its pixels are {kind}, whose range is unknown; save it in 8 or 16 bits")


def _from_pil(image: Image.Image, channels: int) -> Float[Tensor, "c h w"]:
    """The pixels of an image that is decoded, upright."""
    read = _mask_reader(image) if channels == 1 else _floats
    orientation = _orientation(image)
    size = (image.height, image.width) if orientation < 5 else (image.width, image.height)

    found = np.empty((channels, *size), dtype=np.float32)
    lying = LYING[orientation](found) if orientation in LYING else found
    for top, part in _parts(image):  # few rows at a time: the whole is held only as the result
        lying[:, top : top + part.height] = read(part, channels).transpose(2, 0, 1)
    return torch.from_numpy(found)


def _mask_reader(image: Image.Image) -> Callable[[Image.Image, int], np.ndarray]:
    """Returns the function that reads parts of a mask: their transparency, labels or brightness."""
    if image.has_transparency_data and any(_brushed(part).any() for _, part in _parts(image)):
        return _brushed
    return label_reader(image) or _floats


ImagesLike = str | Path | Image.Image | np.ndarray | Tensor | Sequence[Any]  # one image or several


def read_images(images: ImagesLike, channels: int = 3) -> Float[Tensor, "b c h w"]:
    """Reads images in [0, 1] from a path, a PIL image, an array (h, w, c), a tensor (c, h, w), or several of
    these, of one size; with one channel they are masks.

    For a user's own images: file names in data sets are read by code that knows their folder.

    Raises:
        ValueError: if there is none, one cannot be read, or they differ in size.
    """
    if isinstance(images, Tensor) and images.ndim == 4:
        if images.shape[1] != channels:
            raise ValueError(f"expected a tensor (b, {channels}, h, w); got {tuple(images.shape)}")
        images = to_labels(images) if channels == 1 else images
        require_unit_range("mask" if channels == 1 else "image", images)
        return images.float()
    is_one = isinstance(images, str | Path | Image.Image | Tensor) or (
        isinstance(images, np.ndarray) and images.ndim < 4
    )
    several: Any = [images] if is_one else images
    if not isinstance(several, Sequence | np.ndarray):
        raise ValueError(f"expected an image or several; got {type(images).__name__}")
    tensors = []
    for image in several:
        is_file = isinstance(image, str | Path)
        tensors.append(_read(image, channels) if is_file else to_tensor(image, channels))
    if not tensors:
        raise ValueError("expected at least one image; got none")
    sizes = {tuple(tensor.shape[1:]) for tensor in tensors}
    if len(sizes) > 1:
        raise ValueError(f"expected images of one size; got {sorted(sizes)}; bring them to one by images.fit")
    return torch.stack(tensors)


def to_pil(image: Float[Tensor, "3 h w"]) -> Image.Image:
    """Converts RGB in [0, 1], clamped, to a PIL image.

    Raises:
        ValueError: if it is not finite: NaN would be black.
    """
    if not bool(image.isfinite().all()):
        raise ValueError("expected a finite image; got NaN or infinity, which no file can hold")
    array = image.detach().float().clamp(0, 1).mul(255).round().byte().cpu().permute(1, 2, 0).numpy()
    return Image.fromarray(array)


def fit(
    image: Float[Tensor, "b c h w"],
    size: int,
    policy: str = "crop",
    mode: str = "bicubic",
    shorter: int | None = None,
) -> Float[Tensor, "b c size size"]:
    """Brings images to `size` × `size`; exact where they already are.

    Policies: "crop" scales the shorter side to `shorter` (by default `size`) and crops the centre;
    "stretch" ignores the aspect ratio (as MagicBrush's and ADIEE's code do);
    "pad" scales the longer side and pads with gray.

    Raises:
        ValueError: on an unknown policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy: expected one of {', '.join(POLICIES)}; got {policy!r}")
    h, w = image.shape[-2:]
    if policy == "stretch":
        return resize(image, (size, size), mode)
    scale = (shorter or size) / min(h, w) if policy == "crop" else size / max(h, w)
    new_h = max(1, int(h * scale + 1e-6))  # cut off, as CLIP's processor does
    new_w = max(1, int(w * scale + 1e-6))
    image = resize(image, (new_h, new_w), mode)
    if (new_h, new_w) == (size, size):
        return image
    top = (new_h - size) // 2
    left = (new_w - size) // 2
    if policy == "crop":
        return image[..., top : top + size, left : left + size]
    return F.pad(image, (-left, size - new_w + left, -top, size - new_h + top), value=0.5)


def resize(
    image: Float[Tensor, "b c h w"], size: tuple[int, int], mode: str = "bicubic"
) -> Float[Tensor, "b c h2 w2"]:
    """Resizes by bicubic, bilinear or Lanczos with antialias, clamped to [0, 1]: on average within 0.3/255 of
    PIL's result, and differentiable.
    """
    if tuple(image.shape[-2:]) == tuple(size):
        return image
    if mode == "lanczos":  # which torch lacks
        rows = lanczos(image.shape[-2], size[0]).to(image)
        columns = lanczos(image.shape[-1], size[1]).to(image)
        return (rows @ image @ columns.T).clamp(0, 1)
    if image.dtype in (torch.float16, torch.bfloat16) and image.device.type == "cpu":  # torch has no kernel
        return resize(image.float(), size, mode).to(image.dtype)
    # CUDA's kernel needs shared memory for a few times the scale, and fails from some 47-fold on.
    within = (min(image.shape[-2], MOST_SHRUNK * size[0]), min(image.shape[-1], MOST_SHRUNK * size[1]))
    if within != tuple(image.shape[-2:]):
        image = F.interpolate(image, within, mode="area")
    return F.interpolate(image, size=size, mode=mode, antialias=True, align_corners=False).clamp(0, 1)


def lanczos(old: int, new: int) -> Float[Tensor, "new old"]:
    """Weights of `old` samples in each of `new` ones: sinc(x) · sinc(x / 3) within three lobes, each as wide
    as a sample of the coarser of the two.
    """
    scale = old / new
    centre = (torch.arange(new, dtype=torch.float64) + 0.5) * scale
    x = (torch.arange(old, dtype=torch.float64) + 0.5 - centre[:, None]) / max(scale, 1.0)
    weight = torch.where(x.abs() < 3, torch.sinc(x) * torch.sinc(x / 3), 0.0)
    return weight / weight.sum(1, keepdim=True)


def gaussian_blur(image: Float[Tensor, "b c h w"], sigma: float) -> Float[Tensor, "b c h w"]:
    """A Gaussian blur with replicated borders."""
    radius = max(1, math.ceil(3 * sigma))
    weights = torch.exp(
        -0.5 * (torch.arange(-radius, radius + 1, device=image.device, dtype=image.dtype) / sigma) ** 2
    )
    weights = (weights / weights.sum()).expand(image.shape[1], 1, -1)
    c = image.shape[1]
    image = F.conv2d(F.pad(image, (radius, radius, 0, 0), mode="replicate"), weights[:, :, None, :], groups=c)
    return F.conv2d(F.pad(image, (0, 0, radius, radius), mode="replicate"), weights[:, :, :, None], groups=c)


def clamp_straight_through(image: Tensor) -> Tensor:
    """clamp(0, 1) forward; the identity backward."""
    return image.detach().clamp(0, 1) + (image - image.detach())


@dataclass(frozen=True)
class Preprocess:
    """Converts images in [0, 1] to a vision model's input, differentiably: resize, crop, normalise.

    Equal to the model's own image processor (mean error below 1/255 before normalisation), which works on PIL
    images and so has no gradient.
    """

    size: int  # side of the square output, in pixels
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    policy: str = "crop"  # of `fit`: CLIP and DINOv2 crop, SigLIP and DINOv3 stretch
    shorter: int | None = None  # length of the shorter side before cropping; by default `size`
    mode: str = "bicubic"

    @classmethod
    def from_pretrained(cls, path: str) -> "Preprocess":
        """Reads the settings of a checkpoint's image processor, by hub name or path.

        Raises:
            OSError: if there is none.
            ValueError: if its output is not square, or it resizes in another way.
        """
        from transformers import AutoImageProcessor, ImageProcessingMixin

        config, _ = ImageProcessingMixin.get_image_processor_dict(path)
        # it needs torchvision; its file has all settings
        if str(config.get("image_processor_type")).startswith("DINOv3"):
            return cls._from_config(config)
        return cls.from_processor(pretrained.load(AutoImageProcessor, path, backend="pil"))

    @classmethod
    def from_processor(cls, processor: Any) -> "Preprocess":
        """Reads the settings of a transformers image processor.

        Raises:
            ValueError: if its output is not square, or it resizes in a way that is not in `MODES`.
        """
        return cls._from_config(processor.to_dict())

    @classmethod
    def _from_config(cls, config: dict[str, Any]) -> "Preprocess":
        scaled = _given(config.get("size"))
        crop = _given(config.get("crop_size"))
        shorter = scaled.get("shortest_edge")
        cuts = shorter is not None and config.get("do_center_crop")
        square = crop if cuts else scaled
        if (shorter is None) != (not config.get("do_center_crop")) or square.get("height", 0) != square.get(
            "width"
        ):
            raise ValueError(
                f"expected an image processor with a square output; got size {scaled}, crop_size {crop}"
            )
        if config.get("resample") not in MODES:
            raise ValueError(f"expected an image processor that resizes by {MODES}; got {config['resample']}")
        policy = "crop" if cuts else "stretch"
        mode = MODES[config["resample"]]
        return cls(
            square["height"], tuple(config["image_mean"]), tuple(config["image_std"]), policy, shorter, mode
        )

    def resized(self, size: int) -> "Preprocess":
        """The same for squares of another size, without a margin around the crop."""
        return replace(self, size=size, shorter=None)

    def __call__(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 size size"]:
        image = image.to(torch.promote_types(image.dtype, torch.float32))  # no CPU resizes half precision
        image = fit(image, self.size, self.policy, self.mode, self.shorter)
        mean = torch.tensor(self.mean, device=image.device, dtype=image.dtype)
        std = torch.tensor(self.std, device=image.device, dtype=image.dtype)
        return (image - mean[:, None, None]) / std[:, None, None]


def _given(size: Any) -> dict[str, Any]:
    """The sides of a processor's size that have a value."""
    return {side: pixels for side, pixels in dict(size or {}).items() if pixels is not None}
