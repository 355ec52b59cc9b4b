"""Files, PIL images, arrays and tensors to pixels, and back.

Pixels are bytes (c, h, w) as the image stores them, a quarter of the memory of floating-point: data sets are
read, resized and moved as bytes, and become floating-point on the device that works with them.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import ExifTags, Image
from torch import Tensor

from rewardedit.images.labels import label_reader, to_labels
from rewardedit.images.values import require_unit_range
from rewardedit.untrusted import CONTENT_ERRORS, decode, is_system_error, open_image, unreadable

PART = 2**20  # pixels of an image that are converted at once
# By EXIF orientation, the pixels of an upright image (h, w, c) in the order of its file.
LYING: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: upright.swapaxes(0, 1)[::-1],
    7: lambda upright: upright.swapaxes(0, 1)[::-1, ::-1],
    8: lambda upright: upright.swapaxes(0, 1)[:, ::-1],
}

Pixels = UInt8[Tensor, "c h w"] | Float[Tensor, "c h w"]
ImageLike = Image.Image | np.ndarray | Tensor


def load_image(path: str | Path | io.BytesIO) -> Float[Tensor, "3 h w"]:
    """An image file, or its bytes, as RGB in [0, 1], turned upright by its EXIF tag.

    Transparent areas become white, 16 bits are scaled to the same range, and of several frames the first
    is used.

    Raises:
        ValueError: if there is no such file, or it is not an image.
    """
    return to_float(_view_of_pil(load_pil(path), channels=3))


def load_mask(path: str | Path | io.BytesIO) -> Float[Tensor, "1 h w"]:
    """A mask file, or its bytes, as [0, 1], 1 where change is wanted.

    Raises:
        ValueError: if there is no such file, or it is not an image.
    """
    return to_float(_from_pil(load_pil(path, "mask"), channels=1))


def load_pil(path: str | Path | io.BytesIO, name: str = "image") -> Image.Image:
    """An image file, or its bytes, decoded: `to_pixels` reads it.

    Args:
        name: what it is, for errors.

    Raises:
        ValueError: if there is no such file, it is not an image, or its pixels have an unknown range.
    """
    image = open_image(path)
    try:
        with image:
            decode(image)
    except CONTENT_ERRORS as error:
        if is_system_error(error):
            raise
        raise ValueError(unreadable(path, error)) from None
    _require_pixels(image, name)
    return image


def to_float(pixels: Tensor) -> Tensor:
    """Bytes as floating-point in [0, 1], on the device that they are on; floating-point as it is."""
    if pixels.dtype != torch.uint8:
        return pixels
    floats = pixels.to(torch.float32, memory_format=torch.contiguous_format)
    # By a tensor: CUDA multiplies by the inverse of a plain number, which rounds otherwise than a CPU.
    return floats.div_(torch.full((), 255.0, device=pixels.device))


def to_bytes(pixels: Tensor) -> Tensor:
    """Floating-point in [0, 1] as bytes, rounded; bytes as they are."""
    return pixels if pixels.dtype == torch.uint8 else (pixels * 255).round().byte()


def stack(pixels: Sequence[Tensor]) -> Tensor:
    """Pixels of images of one size as a batch: bytes, or floating-point if those of one image are."""
    if len({image.dtype for image in pixels}) > 1:
        pixels = list(map(to_float, pixels))
    return torch.stack(list(pixels))


def _orientation(image: Image.Image) -> int:
    """The number in the EXIF tag for an image's orientation; 1: upright."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except CONTENT_ERRORS:  # its EXIF tags make no sense: it is used as it is
        return 1
    return orientation if isinstance(orientation, int) else 1


def _parts(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """An image in strips of some rows, from its top, each with the number of its first row."""
    rows = max(1, PART // image.width)
    if rows >= image.height:
        yield 0, image
        return
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(image.height, top + rows)))


def _colours(image: Image.Image, channels: int) -> np.ndarray:
    """The pixels (h, w, c) over white where they are transparent: bytes, or [0, 1] if they have 16 bits."""
    if image.mode.startswith("I"):  # which PIL would cut off at 255
        gray = np.asarray(image, dtype=np.float32) / 65535
        return gray.clip(0, 1)[:, :, None]
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    mode = "L" if channels == 1 else "RGB"
    image = image if image.mode == mode else image.convert(mode)
    return np.asarray(image).reshape(image.height, image.width, channels)


def _shared(image: Image.Image) -> UInt8[Tensor, "3 h w"] | None:
    """The pixels of an upright, opaque RGB image in PIL's own memory, where each has four bytes, and so
    without a copy; None for any other image, and for a large one, which is not in one block.
    """
    if image.mode != "RGB" or image.has_transparency_data or _orientation(image) != 1:
        return None
    import pyarrow as pa  # slow to import

    try:
        held = pa.array(image).flatten()
    except ValueError:  # in several blocks
        return None
    return torch.from_dlpack(held).view(image.height, image.width, 4).permute(2, 0, 1)[:3]


def _brushed(image: Image.Image, channels: int = 1) -> np.ndarray:
    """Transparency of each pixel (h, w, 1), in bytes."""
    return 255 - np.asarray(image.convert("RGBA").getchannel("A"))[:, :, None]


def to_tensor(image: ImageLike, channels: int) -> Float[Tensor, "c h w"]:
    """An image as floating-point in [0, 1]; see `to_pixels`."""
    return to_float(view_pixels(image, channels))


def to_pixels(image: ImageLike, channels: int) -> Pixels:
    """A PIL image, a NumPy array (h, w) or (h, w, c), or a tensor (c, h, w), with 3 channels (RGB) or 1 (a
    mask): bytes if it has 8 bits, else floating-point in [0, 1].

    An image is white where it is transparent. A mask is 1 where the image is transparent, as MagicBrush and
    HumanEdit erase the region; without transparency it has the image's brightness, or holds labels, see
    `to_labels`. An image with a coloured palette holds labels: its colours stand for classes.

    Raises:
        ValueError: if a tensor or array has another shape, type or range, or an image's pixels cannot be
            read or have an unknown range.
    """
    image = _as_image(image, channels)
    return image if isinstance(image, Tensor) else _from_pil(image, channels)


def view_pixels(image: ImageLike, channels: int) -> Pixels:
    """As `to_pixels`, for code that only reads: those of an RGB image may be the memory that it holds itself,
    and a tensor written into would change the image.
    """
    image = _as_image(image, channels)
    return image if isinstance(image, Tensor) else _view_of_pil(image, channels)


def _as_image(image: ImageLike, channels: int) -> Image.Image | Tensor:
    """An image as a decoded PIL image, or as floating-point in [0, 1] where that is what was given."""
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
    return image


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


def _from_pil(image: Image.Image, channels: int) -> Pixels:
    """The pixels of an image that is decoded, upright.

    In memory a pixel's channels are side by side, which is what resizing bytes is fast with.
    """
    read = _mask_reader(image) if channels == 1 else _colours
    is_deep = image.mode.startswith("I") and read is _colours
    orientation = _orientation(image)
    size = (image.height, image.width) if orientation < 5 else (image.width, image.height)

    array = np.empty((*size, channels), dtype=np.float32 if is_deep else np.uint8)
    lying = LYING[orientation](array) if orientation in LYING else array
    for top, strip in _parts(image):  # few rows at a time: the whole is held only as the result
        lying[top : top + strip.height] = read(strip, channels)
    pixels = torch.from_numpy(array).permute(2, 0, 1)
    return pixels.contiguous() if is_deep else pixels


def _view_of_pil(image: Image.Image, channels: int) -> Pixels:
    """As `_from_pil`, without a copy where that can be."""
    shared = _shared(image) if channels == 3 else None
    return _from_pil(image, channels) if shared is None else shared


def _mask_reader(image: Image.Image) -> Callable[[Image.Image, int], np.ndarray]:
    """Returns the function that reads parts of a mask: their transparency, labels or brightness."""
    if image.has_transparency_data and any(_brushed(strip).any() for _, strip in _parts(image)):
        return _brushed
    return label_reader(image) or _colours


ImagesLike = str | Path | ImageLike | Sequence[Any]  # one image or several


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
        read = (load_mask if channels == 1 else load_image) if is_file else None
        tensors.append(to_tensor(image, channels) if read is None else read(image))
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


def as_pil(image: ImageLike) -> Image.Image:
    """An image of any kind that `to_pixels` reads, as RGB."""
    pixels = view_pixels(image, channels=3)
    if pixels.dtype != torch.uint8:
        return to_pil(pixels.float())
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())
