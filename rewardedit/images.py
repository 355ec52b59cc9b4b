"""Files and PIL pictures to tensors and back; `Preprocess`, the differentiable way into a vision model."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import Image, ImageOps
from torch import Tensor

POLICIES = ("crop", "stretch", "pad")


def load_image(path: str | Path) -> Float[Tensor, "3 h w"]:
    """A picture file as RGB in [0, 1], turned upright by its EXIF tag.

    Raises:
        ValueError: where there is no such file, or it is not a picture.
    """
    try:
        with Image.open(path) as picture:
            return to_tensor(ImageOps.exif_transpose(picture), channels=3)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{path}: not a picture that can be read ({error})") from None


def to_tensor(picture: Image.Image | Tensor, channels: int) -> Float[Tensor, "c h w"]:
    """A PIL picture (or tensor, passed through) as float in [0, 1] with 3 channels (RGB) or 1 (a mask).

    A mask with transparency is 1 where the picture is transparent: MagicBrush and HumanEdit brush the region away.
    """
    if isinstance(picture, Tensor):
        if picture.ndim != 3 or picture.shape[0] != channels:
            raise ValueError(f"expected a tensor ({channels}, h, w); got {tuple(picture.shape)}")
        return picture.float()
    if channels == 1 and picture.mode in ("RGBA", "LA"):
        return 1 - to_tensor(picture.getchannel("A"), 1)
    array = np.asarray(picture.convert("L" if channels == 1 else "RGB"), dtype=np.float32) / 255
    return torch.from_numpy(array).reshape(picture.height, picture.width, channels).permute(2, 0, 1).contiguous()


def to_pil(picture: Float[Tensor, "3 h w"]) -> Image.Image:
    """RGB in [0, 1], clamped, to a PIL picture."""
    array = picture.detach().float().clamp(0, 1).mul(255).round().byte().cpu().permute(1, 2, 0).numpy()
    return Image.fromarray(array)


def fit(image: Float[Tensor, "b c h w"], size: int, policy: str = "crop") -> Float[Tensor, "b c size size"]:
    """Brings pictures to `size` × `size`; exact where they already are.

    Policies: "crop" scales the shorter side to `size` and cuts the middle out; "stretch" ignores the aspect ratio (what
    MagicBrush's and ADIEE's code do); "pad" scales the longer side and fills up with gray.

    Raises:
        ValueError: on an unknown policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy: expected one of {', '.join(POLICIES)}; got {policy!r}")
    h, w = image.shape[-2:]
    if (h, w) == (size, size):
        return image
    if policy == "stretch":
        return resize(image, (size, size))
    scale = size / (min(h, w) if policy == "crop" else max(h, w))
    new_h, new_w = (max(1, int(side * scale + 1e-6)) for side in (h, w))  # cut, as CLIP's own processor does
    image = resize(image, (new_h, new_w))
    top, left = (new_h - size) // 2, (new_w - size) // 2
    if policy == "crop":
        return image[..., top : top + size, left : left + size]
    return F.pad(image, (-left, size - new_w + left, -top, size - new_h + top), value=0.5)


def resize(image: Float[Tensor, "b c h w"], size: tuple[int, int]) -> Float[Tensor, "b c h2 w2"]:
    """Bicubic with antialias, clamped to [0, 1]: within 0.3/255 on average of PIL's, and differentiable."""
    if tuple(image.shape[-2:]) == tuple(size):
        return image
    return F.interpolate(image, size=size, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)


def gaussian_blur(image: Float[Tensor, "b c h w"], sigma: float) -> Float[Tensor, "b c h w"]:
    """A Gaussian blur with replicated rims."""
    radius = max(1, math.ceil(3 * sigma))
    weights = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, device=image.device, dtype=image.dtype) / sigma) ** 2)
    weights, c = (weights / weights.sum()).expand(image.shape[1], 1, -1), image.shape[1]
    image = F.conv2d(F.pad(image, (radius, radius, 0, 0), mode="replicate"), weights[:, :, None, :], groups=c)
    return F.conv2d(F.pad(image, (0, 0, radius, radius), mode="replicate"), weights[:, :, :, None], groups=c)


@dataclass(frozen=True)
class Preprocess:
    """Pictures in [0, 1] to a vision model's input, differentiably: resize, centre-crop, normalise.

    Equal to the model's own image processor (mean error below 1/255 before normalisation), which works on PIL pictures
    and so has no gradient.
    """

    size: int  # the shorter side after resizing, and the side of the square that is cut out
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @classmethod
    def from_processor(cls, processor: Any) -> "Preprocess":
        """Reads size, mean and std from a transformers image processor.

        Raises:
            ValueError: where its output is not square.
        """
        sizes = processor.crop_size if getattr(processor, "do_center_crop", False) else processor.size
        sizes = {key: value for key, value in dict(sizes).items() if value is not None}
        sides = {sizes.get("shortest_edge", sizes.get("height")), sizes.get("shortest_edge", sizes.get("width"))}
        if len(sides) != 1 or None in sides:
            raise ValueError(f"expected an image processor with a square output; got {sizes}")
        return cls(int(sides.pop()), tuple(processor.image_mean), tuple(processor.image_std))

    def __call__(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 size size"]:
        image = fit(image, self.size, "crop")
        mean, std = (torch.tensor(v, device=image.device, dtype=image.dtype)[:, None, None] for v in (self.mean, self.std))
        return (image - mean) / std
