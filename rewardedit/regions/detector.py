"""Objects by their names: OWL-ViT, OWLv2 and Grounding DINO, with tensors as input."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rewardedit.language.texts import tokenize
from rewardedit.models import DETECTOR, pretrained, resolve_model
from rewardedit.regions.boxes import areas, corners, suppress
from rewardedit.regions.canvas import Canvas
from rewardedit.untrusted import read_settings_file

# Boxes of lower confidence are left out. Grounding DINO's is that of BPM's code; OWL-ViT's is its own.
THRESHOLDS = {"owlvit": 0.1, "owlv2": 0.1, "grounding-dino": 0.3, "mm-grounding-dino": 0.3}
OVERLAP = 0.5  # IoU above which two boxes are taken for the same object


class Detector(nn.Module):
    """Finds the boxes of named objects.

    A folder may hold a threshold of its own, chosen when the model was trained, in `SETTINGS`.

    Args:
        model: an `AutoModelForZeroShotObjectDetection` of a kind in `THRESHOLDS`.
        tokenizer: the model's tokenizer.
        canvas: the preprocessing of its image processor.
        threshold: the least confidence of a box, in [0, 1]; by default that of the model's kind.
        prompt: words around a name; OWL-ViT's authors use "a photo of a {}".
        single: only the most confident box of an image counts.
    """

    SETTINGS = "detector.json"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        canvas: Canvas,
        threshold: float | None = None,
        prompt: str = "{}",
        single: bool = False,
    ) -> None:
        super().__init__()
        kind = model.config.model_type
        if kind not in THRESHOLDS:
            raise ValueError(f"detector: expected one of {', '.join(THRESHOLDS)}; got a {kind}")
        if threshold is not None and not 0 <= threshold <= 1:
            raise ValueError(f"threshold: expected a number from 0 to 1; got {threshold}")
        if "{}" not in prompt:
            raise ValueError(f'prompt: expected words around "{{}}", the place of the name; got {prompt!r}')
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.canvas = canvas
        self.threshold = THRESHOLDS[kind] if threshold is None else threshold
        self.prompt = prompt
        self.single = single

    @classmethod
    def from_pretrained(
        cls, checkpoint: str = DETECTOR, dtype: torch.dtype = torch.float32, **options: Any
    ) -> "Detector":
        """Loads a detector by hub name or folder; "shapes/detector" is for drawn shapes.

        Raises:
            ValueError: if there is no such model, or it is of another kind.
        """
        from transformers import AutoModelForZeroShotObjectDetection, AutoTokenizer

        path = resolve_model(checkpoint)
        try:
            model = pretrained.load(AutoModelForZeroShotObjectDetection, path, dtype=dtype)
            tokenizer = pretrained.load(AutoTokenizer, path)
            canvas = Canvas.from_pretrained(path)
        except (OSError, KeyError, ValueError) as error:
            raise ValueError(
                f"detector {checkpoint!r}: cannot be loaded ({str(error).splitlines()[0]})"
            ) from error

        settings = Path(path) / cls.SETTINGS
        saved = read_settings_file(settings) if settings.is_file() else {}
        if options.get("threshold") is None:
            options["threshold"] = saved.get("threshold")
        return cls(model, tokenizer, canvas, **options)

    @torch.no_grad()
    def forward(
        self, images: Float[Tensor, "b 3 h w"], names: Sequence[str]
    ) -> list[tuple[Float[Tensor, "_ 4"], Float[Tensor, " _"]]]:
        """Boxes (xyxy in pixels) of the named objects in each image, RGB in [0, 1], and their confidences, in
        falling order.
        """
        h, w = images.shape[-2:]
        pixels = self.canvas(images)
        out = self.model(**self._inputs(pixels, [self.prompt.format(name.lower()) for name in names]))
        # Padded tokens of a text have −∞ as their logits.
        confidence = out.logits.float().sigmoid().amax(-1)
        size = pixels.new_tensor([pixels.shape[-1], pixels.shape[-2]]).repeat(2)
        boxes = corners(out.pred_boxes.float()) * size
        return [self._kept(self.canvas.to_image(boxes[i], h, w), confidence[i]) for i in range(len(images))]

    def _inputs(self, pixels: Tensor, texts: list[str]) -> dict[str, Tensor]:
        dtype = self.model.dtype
        device = pixels.device
        if self.model.config.model_type.startswith("owl"):
            length = self.model.config.text_config.max_position_embeddings
            tokens = tokenize(self.tokenizer, texts, length, "the detector", padding="max_length").to(device)
            return {
                "input_ids": tokens.input_ids,
                "attention_mask": tokens.attention_mask,
                "pixel_values": pixels.to(dtype),
            }
        # Grounding DINO reads phrases that end in full stops.
        texts = [f"{text.rstrip('.')}." for text in texts]
        tokens = tokenize(self.tokenizer, texts, self.model.config.max_text_len, "the detector", padding=True)
        seen = torch.ones(len(pixels), *pixels.shape[-2:], dtype=torch.long, device=device)
        return {**tokens.to(device), "pixel_values": pixels.to(dtype), "pixel_mask": seen}

    def _kept(self, boxes: Tensor, confidence: Tensor) -> tuple[Tensor, Tensor]:
        # Boxes in the padding of an OWLv2 image are no objects.
        sure = (confidence >= self.threshold) & (areas(boxes) > 0)
        boxes = boxes[sure]
        confidence = confidence[sure]
        order = suppress(boxes, confidence, OVERLAP)
        order = order[:1] if self.single else order
        return boxes[order], confidence[order]
