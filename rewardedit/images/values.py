"""Values that the images and texts of an edit may have, checked once, where they enter."""

import math
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor

# How far values may lie outside of [0, 1]: bicubic resizing overshoots at edges by about as much.
SLACK = 0.1
NOT_FINITE = "the edited image is not finite (NaN or infinite); an editor in float16 may need --dtype float32"


def finite_rows(given: Mapping[str, Tensor], edited: Tensor) -> tuple[bool, ...]:
    """Tells which edited images are finite, after a check of all images; a GPU is waited for once.

    A generated image that overflowed affects only its own row; any other fault is an error.

    Args:
        given: the other images of the same rows, by the names that errors tell.

    Raises:
        ValueError: where an image is not floating-point, or has finite values outside of [0, 1]; where one of
            `given` is not finite.
    """
    for name, images in {**given, "edited": edited}.items():
        if not images.is_floating_point():
            raise ValueError(_integers(name, images))
    if edited.is_meta:  # without values
        return (True,) * len(edited)

    with torch.no_grad():
        low, high = edited.detach().flatten(1).aminmax(dim=1)
        ends = [low, high, *(torch.stack(images.detach().aminmax()) for images in given.values())]
        numbers = torch.cat([end.to(edited.device, torch.float32) for end in ends]).tolist()

    b = len(edited)
    for k, name in enumerate(given):
        low, high = numbers[2 * b + 2 * k : 2 * b + 2 * k + 2]
        _require_range(name, low, high)

    lowest = numbers[:b]
    highest = numbers[b : 2 * b]
    bounds = zip(lowest, highest, strict=True)
    is_finite = tuple(math.isfinite(low) and math.isfinite(high) for low, high in bounds)
    if any(is_finite):
        _require_range("edited", min(compress(lowest, is_finite)), max(compress(highest, is_finite)))
    return is_finite


def require_unit_range(name: str, image: Tensor) -> None:
    """Raises ValueError where an image is empty, not floating-point, not finite or outside of [0, 1]."""
    if not image.numel():
        raise ValueError(f"{name}: expected an image with pixels; got none, {tuple(image.shape)}")
    if not image.is_floating_point():
        raise ValueError(_integers(name, image))
    low, high = map(float, image.detach().aminmax())
    _require_range(name, low, high)


def _integers(name: str, images: Tensor) -> str:
    kind = str(images.dtype).removeprefix("torch.")
    if images.dtype == torch.bool or images.is_complex() or images.is_meta:
        return f"{name}: expected floating-point values in [0, 1]; got {kind}; convert it by .float()"
    low, high = map(int, images.aminmax()) if images.numel() else (0, 0)
    remedy = "convert it by .float()" if low >= 0 and high <= 1 else "divide by 255"
    if low < 0:
        remedy = "bring them to this range"
    return f"{name}: expected floating-point values in [0, 1]; got {kind} {_range(low, high)}; {remedy}"


def _require_range(name: str, low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(
            f"{name}: expected finite values in [0, 1]; got NaN or infinity; leave such images out"
        )
    if low >= -SLACK and high <= 1 + SLACK:
        return
    if low >= -SLACK and high <= 256:
        remedy = "divide by 255"
    elif low >= -1 - SLACK and high <= 1 + SLACK:
        remedy = "map them by (x + 1) / 2"
    else:
        remedy = "bring them to this range"
    raise ValueError(f"{name}: expected floating-point values in [0, 1]; got {_range(low, high)}; {remedy}")


def _range(low: float, high: float) -> str:
    return f"{low:.4g}…{high:.4g}".replace("-", "−")


def require_fit(name: str, images: Tensor, expected: tuple[int, ...]) -> None:
    """Raises ValueError where images do not have the shape (b, c, h, w) that fits their sources."""
    got = tuple(images.shape)
    if got == expected:
        return
    size = f"; give rewardedit.images.resize({name}, source.shape[-2:])"
    remedy = size if len(got) == 4 and got[:2] == expected[:2] else ""
    raise ValueError(f"{name}: expected {expected} to fit source; got {got}{remedy}")


def require_texts(name: str, texts: Sequence[Any]) -> None:
    """Raises ValueError where one of the rows' texts is none; see `require_text`."""
    for row, text in enumerate(texts):
        require_text(f"{name} of row {row}" if len(texts) > 1 else name, text)


def require_text(name: str, text: Any) -> None:
    """Raises ValueError for what is no text, or holds half of a surrogate pair, which no file can hold."""
    if not isinstance(text, str):
        raise ValueError(f"{name}: expected text; got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{name}: holds half of a surrogate pair, which is not a character; remove it"
        ) from None
