"""`Preprocess`, the differentiable input of a vision model."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.images.resizing import fit
from rewardedit.models import pretrained

MODES = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # PIL's numbers of the ways to resize


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
    policy: str = "crop"  # policy of `fit`: CLIP and DINOv2 crop, SigLIP and DINOv3 stretch
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
