"""The page's field for an image, and the reading of what was uploaded."""

from pathlib import Path
from typing import Any

import gradio as gr
from jaxtyping import Float
from torch import Tensor

from rewardedit.images import to_tensor
from rewardedit.serving.edits import open_sent


def photo_field(**options: Any) -> gr.Image:
    """A field for an image, whose value is the path of the upload.

    gradio's own reading of it hands files of all formats to PIL. A subclass is no remedy: gradio writes a
    file of types beside the module of each one.
    """
    field = gr.Image(type="filepath", **options)
    field.preprocess = path_of_upload  # type: ignore[method-assign]
    return field


def path_of_upload(payload: Any) -> str | None:
    """The path of an upload, in which `OwnRoutes` has seen no other; None if there is none."""
    return None if payload is None else payload.path


def read_photo(path: str, max_pixels: int) -> Float[Tensor, "3 h w"]:
    """An upload as RGB in [0, 1], within the limits of `rewardedit serve`.

    Raises:
        ValueError: for anything but a PNG, JPEG or WebP image within the limits.
    """
    try:
        return to_tensor(open_sent(Path(path).read_bytes(), max_pixels), 3)
    except ValueError as error:
        raise ValueError(f"image: {error}") from None
