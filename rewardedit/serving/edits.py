"""Edits as clients send them, decoded within limits: PNG, JPEG and WebP, never an address or a path."""

import base64
import binascii
import io
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from rewardedit.batch import PixelSample
from rewardedit.images import resize, view_pixels
from rewardedit.serving.budget import Reservation
from rewardedit.untrusted import TooLarge, open_image, printable

FORMATS = ("PNG", "JPEG", "MPO", "WEBP")  # MPO: JPEG files of phones
MAX_IMAGE_BYTES = 2**25  # of an encoded image
MAX_TEXT = 10_000  # characters of a text
CHANNELS = {"source": 3, "edited": 3, "mask": 1}


@dataclass(frozen=True)
class RawEdit:
    """An edit as it was sent: images as bytes of a file, or as their base64."""

    source: bytes | str
    edited: bytes | str
    instruction: str
    mask: bytes | str | None = None
    source_caption: str | None = None
    target_caption: str | None = None
    id: str = ""


@dataclass(frozen=True)
class BadEdit:
    """An edit that cannot be scored, and why."""

    reason: str
    too_large: bool = False


def decode_edit(edit: RawEdit, max_pixels: int, reservation: Reservation) -> PixelSample | BadEdit:
    """Decodes an edit; its images are brought to the size of its source, as `rewardedit score` does.

    Args:
        max_pixels: of one image.
        reservation: from which the bytes of the decoded images are taken, before they are decoded.

    Raises:
        Refusal: if these bytes are not left.
    """
    images = {"source": edit.source, "edited": edit.edited, "mask": edit.mask}
    pixels: dict[str, Tensor] = {}
    name = "instruction"
    try:
        for name in ("instruction", "source_caption", "target_caption"):
            _require_short(getattr(edit, name))
        opened = {}
        for name, content in images.items():
            if content is not None:
                opened[name] = open_sent(content, max_pixels)
        # at once: edits that each hold a part would keep one another from the rest
        reservation.take(_decoded_size(opened))
        for name, image in opened.items():
            pixels[name] = view_pixels(image, CHANNELS[name])
        name = ""
        size = (pixels["source"].shape[-2], pixels["source"].shape[-1])
        return PixelSample(
            id=edit.id or "0",
            instruction=edit.instruction,
            source_caption=edit.source_caption,
            target_caption=edit.target_caption,
            **{name: resize(image[None], size)[0] for name, image in pixels.items()},
        )
    except ValueError as error:
        return BadEdit(f"{name}: {error}" if name else str(error), isinstance(error, TooLarge))


def _require_short(text: str | None) -> None:
    if text is not None and len(text) > MAX_TEXT:
        raise TooLarge(f"expected at most {MAX_TEXT} characters; got {len(text)}")


def open_sent(content: bytes | str, max_pixels: int) -> Image.Image:
    """An image that a client sent, as bytes of a file or their base64; its pixels are not decoded yet.

    Raises:
        ValueError: for anything but a PNG, JPEG or WebP file within the limits.
    """
    data = content if isinstance(content, bytes) else _from_base64(content)
    if len(data) > MAX_IMAGE_BYTES:
        raise TooLarge(f"expected at most {MAX_IMAGE_BYTES // 2**20} MiB; got {len(data) // 2**20} MiB")

    image = open_image(io.BytesIO(data))
    if image.format not in FORMATS:
        raise ValueError(f"expected PNG, JPEG or WebP; got {image.format}")
    width, height = image.size
    if width * height > max_pixels:
        raise TooLarge(f"expected at most {max_pixels} pixels; got {width} x {height}; make it smaller")
    return image


def _decoded_size(images: dict[str, Image.Image]) -> int:
    """Most bytes of the decoded images, by name; those of another size than the source are held in both."""
    source = images["source"]
    total = 0
    for name, image in images.items():
        pixels = image.width * image.height
        may_lie = "exif" in image.info or "exif" in source.info  # on its side: it is turned upright
        if image is not source and (may_lie or image.size != source.size):
            pixels += source.width * source.height
        total += CHANNELS[name] * _item_size(image) * pixels
    return total


def _item_size(image: Image.Image) -> int:
    """Bytes of a decoded value: images of 16 bits a channel become float32."""
    return 4 if image.mode.startswith("I") else 1


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(
            f"expected an image's bytes in base64, without data: before them; got {printable(text, 40)!r}; "
            "addresses and paths are not read"
        ) from None
