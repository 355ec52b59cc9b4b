"""Images of another size, and blurred ones."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

POLICIES = ("crop", "stretch", "pad")
# factor up to which aspect ratios count as equal: editors round sides to multiples of 8 or 32
ASPECT_TOLERANCE = 1.05
MOST_SHRUNK = 32  # largest factor of one bicubic or bilinear step
Images = Float[Tensor, "b c _ _"] | UInt8[Tensor, "b c _ _"]  # in [0, 1], or bytes


def fit(
    image: Images,
    size: int,
    policy: str = "crop",
    mode: str = "bicubic",
    shorter: int | None = None,
) -> Images:
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
    gray = 128 if image.dtype == torch.uint8 else 0.5
    return F.pad(image, (-left, size - new_w + left, -top, size - new_h + top), value=gray)


def resize(image: Images, size: tuple[int, int], mode: str = "bicubic") -> Images:
    """Resizes by bicubic, bilinear or Lanczos with antialias, clamped to [0, 1]: on average within 0.3/255 of
    PIL's result, and differentiable.

    Bytes, on a CPU and not by Lanczos, are resized as bytes, as PIL does and within 1 of its result: what the
    first direction overshoots at the sharpest edges is cut off before the second.
    """
    if tuple(image.shape[-2:]) == tuple(size):
        return image
    if image.dtype == torch.uint8:
        held = _side_by_side(image)
        resized = F.interpolate(held, size=size, mode=mode, antialias=True, align_corners=False)
        return resized[:, : image.shape[1]]
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


def same_shape(size: Sequence[int], other: Sequence[int]) -> bool:
    """True if two sizes, as height and width, have about the same aspect ratio."""
    h, w = size
    h2, w2 = other
    return max(w * h2, w2 * h) <= ASPECT_TOLERANCE * min(w * h2, w2 * h)


def _side_by_side(image: UInt8[Tensor, "b c h w"]) -> UInt8[Tensor, "b _ h w"]:
    """The image with the channels of a pixel side by side, or resizing takes twice the time.

    RGB in PIL's memory has a fourth byte beside them, which is resized too: leaving it out would be a copy.
    """
    b, c, h, w = image.shape
    if (b, c) == (1, 3) and image.stride()[1:] == (1, 4 * w, 4) and image.storage_offset() % 4 == 0:
        return image.as_strided((1, 4, h, w), (4 * h * w, 1, 4 * w, 4))
    return image.contiguous(memory_format=torch.channels_last)


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

    # All images are the channels of one, since a CPU blurs 8 or 16 channels at a time.
    planes = image.flatten(0, 1)[None]
    c = planes.shape[1]
    weights = (weights / weights.sum()).expand(c, 1, -1)
    sides = F.pad(planes, (radius, radius, 0, 0), mode="replicate")
    planes = F.conv2d(sides, weights[:, :, None, :], groups=c)
    ends = F.pad(planes, (0, 0, radius, radius), mode="replicate")
    return F.conv2d(ends, weights[:, :, :, None], groups=c).view(image.shape)
