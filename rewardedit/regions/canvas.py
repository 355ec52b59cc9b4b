"""`Canvas`: converts images to a detector's or segmenter's input, and boxes between the two, as tensors.

The models' own processors work on PIL images, or need torchvision; their settings are read from their files.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from rewardedit.images import MODES, resize


@dataclass(frozen=True)
class Canvas:
    """Preprocessing of images in [0, 1] for a model: resizing, normalisation, and padding to a square."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    size: tuple[int, int] | None = None  # height and width that images are stretched to
    # with the aspect ratio kept: length of the shorter side, as far as `longer` allows; with `longer` alone
    # that of the longer side
    shorter: int | None = None
    longer: int | None = None
    square: bool = False  # padded to a square at the right and at the bottom
    fill: float | None = None  # padding value before normalisation; None: padded with 0 after it
    mode: str = "bilinear"

    @classmethod
    def from_pretrained(cls, path: str) -> "Canvas":
        """Reads the image processor of a checkpoint (a hub name or a path): OWL-ViT's, OWLv2's, Grounding
        DINO's, SAM's, SAM 2's or SAM 3's.

        Raises:
            OSError: if there is none.
            ValueError: if it is of another kind.
        """
        from transformers import ImageProcessingMixin

        config, _ = ImageProcessingMixin.get_image_processor_dict(path)
        return cls.from_config(config)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Canvas":
        """Reads an image processor's configuration."""
        kind = str(config.get("image_processor_type") or config.get("feature_extractor_type"))
        size = config.get("size") or {}
        if isinstance(size, int):
            size = {"height": size, "width": size}
        elif isinstance(size, list | tuple):
            size = {"height": size[0], "width": size[1]}

        size = {key: value for key, value in size.items() if value is not None}
        mode = MODES.get(config.get("resample", 2))
        if mode is None or not size or config.get("do_center_crop"):
            raise ValueError(f"{kind}: expected one that resizes by {MODES} and does not crop; got {config}")

        more: dict[str, Any] = {"mean": tuple(config["image_mean"]), "std": tuple(config["image_std"])}
        if kind.startswith("Owlv2"):
            return cls(**more, longer=size["height"], square=True, fill=0.0, mode=mode)
        if "height" in size:
            return cls(**more, size=(size["height"], size["width"]), mode=mode)
        if "shortest_edge" in size:
            return cls(**more, shorter=size["shortest_edge"], longer=size.get("longest_edge"), mode=mode)
        return cls(**more, longer=size["longest_edge"], square=True, mode=mode)

    def inner(self, h: int, w: int) -> tuple[int, int]:
        """Height and width that an image of h × w is resized to."""
        if self.size is not None:
            return self.size
        if self.shorter is None:
            scale = (self.longer or 1) / max(h, w)
            return max(1, int(h * scale + 0.5)), max(1, int(w * scale + 0.5))
        # As in Grounding DINO's processor: the shorter side is rounded, the longer one truncated.
        side = float(self.shorter)
        if self.longer is not None and side * max(h, w) / min(h, w) > self.longer:
            side = self.longer * min(h, w) / max(h, w)
        other = max(1, int(side * max(h, w) / min(h, w) + 1e-6))
        side = max(1, round(side))
        return (side, other) if h <= w else (other, side)

    def outer(self, h: int, w: int) -> tuple[int, int]:
        """Height and width of the input that an image of h × w becomes."""
        if self.square and self.longer is not None:
            return self.longer, self.longer
        return self.inner(h, w)

    def __call__(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h2 w2"]:
        h, w = image.shape[-2:]
        inner = self.inner(h, w)
        outer = self.outer(h, w)
        image = resize(image, inner, self.mode)
        padding = (0, outer[1] - inner[1], 0, outer[0] - inner[0])
        if self.fill is not None:
            image = F.pad(image, padding, value=self.fill)
        mean = torch.tensor(self.mean, device=image.device, dtype=image.dtype)
        std = torch.tensor(self.std, device=image.device, dtype=image.dtype)
        image = (image - mean[:, None, None]) / std[:, None, None]
        return image if self.fill is not None else F.pad(image, padding)

    def to_input(self, boxes: Float[Tensor, "n 4"], h: int, w: int) -> Float[Tensor, "n 4"]:
        """Converts boxes from pixels of an image of h × w to pixels of the input."""
        return boxes * self._scale(boxes, h, w)

    def to_image(self, boxes: Float[Tensor, "n 4"], h: int, w: int) -> Float[Tensor, "n 4"]:
        """Converts boxes from pixels of the input to pixels of an image of h × w, clipped to it."""
        boxes = boxes / self._scale(boxes, h, w)
        return boxes.clamp_min(0).minimum(boxes.new_tensor([w, h, w, h]))

    def masks_to_image(self, logits: Float[Tensor, "n h2 w2"], h: int, w: int) -> Float[Tensor, "n h w"]:
        """Resizes mask logits of any resolution that cover the input to an image of h × w."""
        inner = self.inner(h, w)
        large = F.interpolate(logits[:, None], self.outer(h, w), mode="bilinear", align_corners=False)
        cut = large[..., : inner[0], : inner[1]]
        return F.interpolate(cut, (h, w), mode="bilinear", align_corners=False)[:, 0]

    def _scale(self, boxes: Tensor, h: int, w: int) -> Tensor:
        inner = self.inner(h, w)
        return boxes.new_tensor([inner[1] / w, inner[0] / h, inner[1] / w, inner[0] / h])
