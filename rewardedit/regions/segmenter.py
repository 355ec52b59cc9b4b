"""Masks of the objects in boxes: SAM and SAM 2, with tensors as input."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rewardedit.models import SEGMENTER, pretrained, resolve_model
from rewardedit.regions.boxes import filled
from rewardedit.regions.canvas import Canvas

KINDS = ("sam", "sam2")


class Segmenter(nn.Module):
    """Segments the objects in boxes.

    Args:
        model: a `SamModel` or `Sam2Model`.
        canvas: the preprocessing of its image processor.
    """

    def __init__(self, model: Any, canvas: Canvas) -> None:
        super().__init__()
        kind = model.config.model_type
        if kind not in KINDS:
            raise ValueError(f"segmenter: expected one of {', '.join(KINDS)}; got a {kind}")
        self.model = model.eval().requires_grad_(False)
        self.canvas = canvas

    @classmethod
    def from_pretrained(cls, checkpoint: str = SEGMENTER, dtype: torch.dtype = torch.float32) -> "Segmenter":
        """Loads a segmenter by hub name or folder; "shapes/segmenter" is for drawn shapes.

        Raises:
            ValueError: if there is no such model, or it is of another kind.
        """
        from transformers import AutoConfig, Sam2Model, SamModel

        path = resolve_model(checkpoint)
        try:
            kind = pretrained.load(AutoConfig, path).model_type
            # A SAM 2 checkpoint names its class for videos; only the part for images is loaded here.
            loader = {"sam": SamModel, "sam2": Sam2Model, "sam2_video": Sam2Model}.get(kind)
            if loader is None:
                raise ValueError(f"expected one of {', '.join(KINDS)}; got a {kind}")
            return cls(pretrained.load(loader, path, dtype=dtype), Canvas.from_pretrained(path))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"segmenter {checkpoint!r}: cannot be loaded ({str(error).splitlines()[0]})"
            ) from error

    @torch.no_grad()
    def forward(
        self, images: Float[Tensor, "b 3 h w"], boxes: Sequence[Float[Tensor, "_ 4"]]
    ) -> list[Bool[Tensor, "_ h w"]]:
        """Masks for every box (xyxy in pixels) of each image, RGB in [0, 1].

        If the model marks nothing in a box, the whole box is the mask: there is an object in it.
        """
        h, w = images.shape[-2:]
        most = max(map(len, boxes), default=0)
        if most == 0:
            return [torch.zeros(0, h, w, dtype=torch.bool, device=images.device)] * len(boxes)

        prompts = images.new_zeros(len(images), most, 4)
        for row, of_image in zip(prompts, boxes, strict=True):
            row[:] = images.new_tensor([0, 0, w, h])  # a padding box; its mask is left out
            row[: len(of_image)] = of_image

        out = self.model(
            pixel_values=self.canvas(images).to(self.model.dtype),
            input_boxes=self.canvas.to_input(prompts.flatten(0, 1), h, w).unflatten(0, prompts.shape[:2]),
            multimask_output=False,
        )

        masks: list[Tensor] = []
        for row, of_image in zip(out.pred_masks.float(), boxes, strict=True):
            positive = self.canvas.masks_to_image(row[: len(of_image), 0], h, w) > 0
            empty = ~positive.flatten(1).any(1)[:, None, None]
            masks.append(torch.where(empty, filled(of_image, (h, w)), positive))
        return masks
