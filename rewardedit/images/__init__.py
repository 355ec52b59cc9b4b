"""Files and PIL images to tensors and back; `Preprocess`, the differentiable input of a vision model."""

from rewardedit.images.labels import to_labels
from rewardedit.images.preprocess import MODES, Preprocess, clamp_straight_through
from rewardedit.images.reading import (
    ImagesLike,
    as_pil,
    load_image,
    load_mask,
    load_pil,
    read_images,
    stack,
    to_bytes,
    to_float,
    to_pil,
    to_pixels,
    to_tensor,
    view_pixels,
)
from rewardedit.images.resizing import POLICIES, fit, gaussian_blur, lanczos, resize, same_shape

__all__ = [
    "MODES",
    "POLICIES",
    "ImagesLike",
    "Preprocess",
    "as_pil",
    "clamp_straight_through",
    "fit",
    "gaussian_blur",
    "lanczos",
    "load_image",
    "load_mask",
    "load_pil",
    "read_images",
    "resize",
    "same_shape",
    "stack",
    "to_bytes",
    "to_float",
    "to_labels",
    "to_pil",
    "to_pixels",
    "to_tensor",
    "view_pixels",
]
