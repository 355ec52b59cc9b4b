"""Limits on content that others made: images, JSON, bodies of answers, names and paths.

Everything that reads such content goes through this module, so that a bad image, row or answer is a
`ValueError` with a reason, never another exception, a hang, a file outside its folder or a full memory.
"""

import contextlib
import errno
import hashlib
import importlib
import io
import json
import math
import os
import pickle
import re
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from PIL import Image
from upath import UPath

# Formats of images that are read, all decoded in this process, and how their files' names end. PIL hands EPS,
# for one, to Ghostscript. HEIF needs pillow-heif.
IMAGE_SUFFIXES = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "MPO": (".mpo",),
    "WEBP": (".webp",),
    "AVIF": (".avif",),
    "HEIF": (".heic", ".heif", ".hif"),
    "TIFF": (".tif", ".tiff"),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "JPEG2000": (".jp2", ".j2k", ".jpx"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
IMAGE_FORMATS = tuple(IMAGE_SUFFIXES)
MAX_PIXELS = 8192 * 6144  # of an image: photographs of 48 and 50 megapixels pass
MAX_PIXELS_JPEG2000 = 2**25  # whose decoder takes three times the memory of others
MAX_IMAGE_BYTES = 2**28  # of an image file
MAX_ASPECT_RATIO = 100  # of an image, longer side to shorter
MAX_BODY_BYTES = 2**24  # of an answer of an endpoint
TILE_WIDTH = 322  # tags of TIFF
TILE_HEIGHT = 323
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx")
MAX_NAME_BYTES = 255  # of one component of a path, as file systems have it

# Exceptions that readers raise on content that is cut off, too large to be meant, or made up.
CONTENT_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,  # RecursionError and NotImplementedError among them
    struct.error,
    zlib.error,
    tarfile.TarError,
    pickle.UnpicklingError,
    Image.DecompressionBombError,
)

# Numbers of the system's errors that are a file's own; others, as of a disk that is away, are the machine's.
FILE_ERRORS = (
    None,
    errno.ENOENT,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EINVAL,
    errno.ELOOP,
)

# What torch's RuntimeErrors say where memory or a GPU is at fault.
MEMORY_FAULT = re.compile(r"out of memory|allocate memory|not enough memory")  # also the CPU's allocator
MACHINE_FAULT = re.compile(rf"{MEMORY_FAULT.pattern}|(?:CUDA|HIP|cuDNN) error|CUBLAS_STATUS|CUDNN_STATUS")
GPU_ERRORS = ("AcceleratorError", "OutOfMemoryError")  # torch's, by name: reading files waits for no torch


@runtime_checkable
class Readable(Protocol):
    """Anything that is read in pieces, such as an HTTP response."""

    def read(self, size: int, /) -> bytes: ...


def is_system_error(error: BaseException) -> bool:
    """True for a fault that says nothing of the content that was read: reading it again may go well."""
    if isinstance(error, RuntimeError):
        return type(error).__name__ in GPU_ERRORS or MACHINE_FAULT.search(str(error)) is not None
    return isinstance(error, OSError) and error.errno not in FILE_ERRORS


def open_image(file: str | Path | io.BytesIO) -> Image.Image:
    """Opens an image of one of `IMAGE_FORMATS`, a file or its bytes; pixels are decoded when they are needed.

    Raises:
        ValueError: where there is no such file, it is no such image, or it has no pixels, more than
            `MAX_PIXELS`, more than `MAX_IMAGE_BYTES`, or a longer shape than `MAX_ASPECT_RATIO`.
    """
    try:
        _require_moderate(file)
        image = Image.open(file, formats=_formats())
        _require_shape(image, "the image" if isinstance(file, io.BytesIO) else str(file))
    except FileNotFoundError:
        raise ValueError(f"{file}: no such file") from None
    except TooLarge:
        raise
    except CONTENT_ERRORS as error:
        if is_system_error(error):
            raise
        raise ValueError(unreadable(file, error)) from None
    return image


def decode(image: Image.Image) -> None:
    """Decodes the pixels of an opened image; what the decoders of WebP and AVIF hold beside them goes."""
    image.load()
    vars(image).pop("_decoder", None)


class TooLarge(ValueError):
    """An image of a size or shape that is not read."""


def _require_moderate(file: str | Path | io.BytesIO) -> None:
    """Raises TooLarge for more bytes than an image has, or a file that may never end."""
    if isinstance(file, io.BytesIO):
        size = file.getbuffer().nbytes
    else:
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode):
            raise TooLarge(f"{file}: expected an image file; got a folder, a device or a pipe")
        size = status.st_size
    if size > MAX_IMAGE_BYTES:
        name = "the image" if isinstance(file, io.BytesIO) else file
        raise TooLarge(f"{name}: expected at most {MAX_IMAGE_BYTES // 2**20} MiB; got {size // 2**20} MiB")


def _require_shape(image: Image.Image, name: str) -> None:
    """Raises TooLarge for an image that has no pixels, too many, or too long a shape."""
    width, height = image.size
    most = MAX_PIXELS_JPEG2000 if image.format == "JPEG2000" else MAX_PIXELS
    tags = getattr(image, "tag_v2", {})  # of TIFF: what is decoded at once may be larger than the image
    tile = (tags.get(TILE_WIDTH, 0), tags.get(TILE_HEIGHT, 0))
    for what, (w, h) in {"": (width, height), " in a tile": tile}.items():
        if w * h > most:
            raise TooLarge(f"{name}: expected at most {most} pixels; got {w} x {h}{what}; make it smaller")
    if not width or not height:
        raise TooLarge(f"{name}: expected an image; got {width} x {height} pixels")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise TooLarge(
            f"{name}: expected sides that differ at most {MAX_ASPECT_RATIO}-fold; got {width} x {height}"
        )


def unreadable(file: str | Path | io.BytesIO, error: BaseException) -> str:
    """The reason why an image file, or its bytes, cannot be read."""
    if "HEIF" not in _formats() and _is_heic(file):
        name = "the image" if isinstance(file, io.BytesIO) else file
        return f"{name}: HEIC images need pillow-heif; pip install pillow-heif"
    if isinstance(file, str | Path):
        return f"{file}: not an image that can be read ({error})"
    return "the bytes are not an image that can be read"


def _is_heic(file: str | Path | io.BytesIO) -> bool:
    """True for a name of HEIC files, or bytes that begin as they do."""
    if isinstance(file, str | Path):
        return Path(file).suffix.lower() in IMAGE_SUFFIXES["HEIF"]
    head = bytes(file.getbuffer()[:40])
    return head[4:8] == b"ftyp" and any(brand in head for brand in HEIC_BRANDS)


@cache
def _formats() -> list[str]:
    """Those of `IMAGE_FORMATS` that this installation can read."""
    Image.init()
    with contextlib.suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()
    return [name for name in IMAGE_FORMATS if name in Image.OPEN]


def readable_suffixes() -> frozenset[str]:
    """Endings, in small letters, of the names of images that this installation can read."""
    return frozenset(chain.from_iterable(map(IMAGE_SUFFIXES.__getitem__, _formats())))


def read_json(text: str | bytes, objects: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """JSON of others as plain values.

    Args:
        objects: makes a value of the pairs of each object; by default a dict, which keeps the last of a name.

    Raises:
        ValueError: where it is not JSON, is nested too deeply, or holds a number that is not finite.
    """
    try:
        return json.loads(
            text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=objects
        )
    except RecursionError:
        raise ValueError("JSON is nested too deeply to be read") from None


def read_json_file(path: Path | UPath) -> Any:
    """JSON of a file as plain values.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: where it is no regular file, or its content is no JSON; names the file.
    """
    if path.exists() and not path.is_file():  # a device or a pipe may never end
        raise ValueError(f"{path}: expected a JSON file; got a folder, a device or a pipe")
    content = path.read_bytes()
    try:
        return read_json(content)
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON; got an unreadable file ({error})") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON: expected finite numbers; got {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"JSON: expected finite numbers; got {text[:20]}")
    return value


def read_settings_file(path: Path | UPath) -> dict[str, Any]:
    """The settings of a JSON file, by their names.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: where its content is something else; names the file.
    """
    values = read_json_file(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected settings by name, an object of JSON; got another value")
    return values


def whole_text(text: str) -> str:
    """Returns the text as it stands; halves of a surrogate pair, which no file can hold, become "�"."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def read_body(response: Readable, limit: int = MAX_BODY_BYTES) -> bytes:
    """All bytes of an answer.

    Raises:
        ValueError: where it is longer than `limit` bytes.
    """
    body = response.read(limit + 1)
    if len(body) > limit:
        raise ValueError(f"the answer is longer than {limit // 2**20} MiB")
    return body


def require_component(name: str, what: str) -> str:
    """Returns a name that is one component of a path: it can neither leave its folder nor be hidden.

    Args:
        what: the setting or column that the name stands in, for the error.

    Raises:
        ValueError: where it is empty, begins with a dot, or holds a slash or an unprintable character.
    """
    is_plain = bool(name) and name.isprintable() and not set("/\\:") & set(name) and name == name.strip()
    if not is_plain or name.startswith(".") or len(name.encode(errors="replace")) > MAX_NAME_BYTES - 55:
        raise ValueError(f"{what}: expected a plain name of one folder or file; got {name[:80]!r}")
    return name


def file_name(text: str) -> str:
    """Returns a name of a file for any id, the same each time: the id itself where it can be one, else what
    can be kept of it and a digest of the whole.
    """
    try:
        return require_component(text, "id")
    except ValueError:
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
        kept = "".join(c if c.isalnum() and c.isascii() else "_" for c in text[:60]).strip("_")
        return f"{kept}-{digest}" if kept else digest


def file_inside(folder: Path, name: str) -> Path:
    """Returns the regular file that `name` says, inside of `folder` when all links are resolved.

    In a folder of the hub's cache, whose files are links, the repository's own contents count as inside.

    Raises:
        ValueError: where it lies elsewhere, or is a folder, a device or a pipe.
        FileNotFoundError: where there is no such file.
    """
    shown = printable(name)
    try:
        file = Path(os.path.realpath(folder / name, strict=True))
        allowed = _folders_of(os.path.abspath(folder))
    except FileNotFoundError:
        raise
    except CONTENT_ERRORS as error:  # a name that no file can have, or links that go round
        if is_system_error(error):
            raise
        raise ValueError(f"expected a name of a file; got {shown}") from error
    if not any(map(file.is_relative_to, allowed)):
        raise ValueError(f"expected a file inside of {folder}; got {shown}, which lies outside")
    if not file.is_file():
        raise ValueError(f"expected a regular file; got {shown}, a folder, a device or a pipe")
    return file


@lru_cache(maxsize=64)
def _folders_of(folder: str) -> tuple[str, ...]:
    """The folder without links, and the hub's `blobs` where it is a snapshot or lies in one."""
    root = os.path.realpath(folder, strict=True)
    inside = [Path(root), *Path(root).parents]
    repositories = [path.parents[1] for path in inside if path.parent.name == "snapshots"]
    return (root, *(str(path / "blobs") for path in repositories))


def printable(text: str, most: int = 80) -> str:
    """A text of others as it may stand in a message: short, and without what a terminal would act on."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[: most + 1])
    return plain if len(plain) <= most else plain[:most] + "…"
