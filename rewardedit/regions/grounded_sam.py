"""Objects by a detector and a segmenter (Grounded SAM, Ren et al. 2024), the locator of BPM."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rewardedit.models import DETECTOR, SEGMENTER
from rewardedit.regions.base import Instances
from rewardedit.regions.boxes import filled
from rewardedit.regions.detector import Detector
from rewardedit.regions.segmenter import Segmenter


class GroundedSam(nn.Module):
    """Finds boxes by a detector and masks in them by a segmenter; each gets all images at once.

    Without a segmenter the boxes are the masks.
    """

    def __init__(self, detector: Detector, segmenter: Segmenter | None) -> None:
        super().__init__()
        self.detector = detector
        self.segmenter = segmenter

    @classmethod
    def from_pretrained(
        cls,
        detector: str = DETECTOR,
        segmenter: str | None = SEGMENTER,
        dtype: torch.dtype = torch.float32,
        threshold: float | None = None,
        prompt: str = "{}",
        single: bool = False,
    ) -> "GroundedSam":
        """Loads both by hub name or folder: "IDEA-Research/grounding-dino-tiny", "facebook/sam-vit-huge" etc.

        Raises:
            ValueError: as for `Detector` and `Segmenter`.
        """
        loaded = Detector.from_pretrained(detector, dtype, threshold=threshold, prompt=prompt, single=single)
        return cls(loaded, None if segmenter is None else Segmenter.from_pretrained(segmenter, dtype))

    def find(self, images: Float[Tensor, "b 3 h w"], names: Sequence[str]) -> list[Instances]:
        """Finds in each image the objects of its name."""
        detected = self.detector(images, names)
        if not detected:
            return []
        boxes, confidence = zip(*detected, strict=True)
        size = (images.shape[-2], images.shape[-1])
        if self.segmenter is None:
            masks = [filled(of_image, size) for of_image in boxes]
        else:
            masks = self.segmenter(images, boxes)
        return list(map(Instances, boxes, masks, confidence))
