"""Objects by SAM 3, which finds and segments named objects in one model (Carion et al. 2025)."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rewardedit.language.texts import tokenize
from rewardedit.models import pretrained
from rewardedit.regions.base import Instances
from rewardedit.regions.boxes import areas, filled
from rewardedit.regions.canvas import Canvas

THRESHOLD = 0.3  # default of SAM 3's own processor


class Sam3(nn.Module):
    """Finds objects with a `Sam3Model`, whose own image processor needs torchvision.

    Args:
        threshold: the least confidence of an object, in [0, 1]: the query's probability times that of the
            image holding any such object.
    """

    def __init__(self, model: Any, tokenizer: Any, canvas: Canvas, threshold: float = THRESHOLD) -> None:
        super().__init__()
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold: expected a number from 0 to 1; got {threshold}")
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.canvas = canvas
        self.threshold = threshold

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str = "facebook/sam3",
        dtype: torch.dtype = torch.float32,
        threshold: float = THRESHOLD,
    ) -> "Sam3":
        """Loads SAM 3 by hub name or folder.

        Raises:
            ValueError: if there is no such model.
        """
        from transformers import AutoTokenizer, Sam3Model

        try:
            model = pretrained.load(Sam3Model, checkpoint, dtype=dtype)
            tokenizer = pretrained.load(AutoTokenizer, checkpoint)
            canvas = Canvas.from_pretrained(checkpoint)
        except OSError as error:
            raise ValueError(
                f"sam3 {checkpoint!r}: cannot be loaded ({str(error).splitlines()[0]})"
            ) from error
        return cls(model, tokenizer, canvas, threshold)

    @torch.no_grad()
    def find(self, images: Float[Tensor, "b 3 h w"], names: Sequence[str]) -> list[Instances]:
        """Finds in each image the objects of its name."""
        h, w = images.shape[-2:]
        pixels = self.canvas(images)
        length = self.model.config.text_config.max_position_embeddings
        tokens = tokenize(self.tokenizer, names, length, "SAM 3", padding="max_length").to(pixels.device)
        out = self.model(
            pixel_values=pixels.to(self.model.dtype),
            input_ids=tokens.input_ids,
            attention_mask=tokens.attention_mask,
        )
        confidence = out.pred_logits.float().sigmoid() * out.presence_logits.float().sigmoid()
        size = pixels.new_tensor([pixels.shape[-1], pixels.shape[-2]]).repeat(2)

        instances: list[Instances] = []
        for i in range(len(images)):
            order = confidence[i].argsort(descending=True)
            order = order[confidence[i][order] >= self.threshold]
            boxes = self.canvas.to_image(out.pred_boxes[i][order].float() * size, h, w)
            order = order[areas(boxes) > 0]
            boxes = self.canvas.to_image(out.pred_boxes[i][order].float() * size, h, w)
            masks = self.canvas.masks_to_image(out.pred_masks[i][order].float(), h, w) > 0
            empty = ~masks.flatten(1).any(1)[:, None, None]
            masks = torch.where(empty, filled(boxes, (h, w)), masks)
            instances.append(Instances(boxes, masks, confidence[i][order]))
        return instances
