"""Settings of pairs of images with the differences between them.

Thresholds are those of the paper and its code as far as they are known; the overlap of an EDIT, the sizes of
objects and the shares of the commands are ours.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rewardedit.config import require_counts
from rewardedit.models import DINO
from rewardedit.synthesis.methods import MethodConfig


@dataclass(frozen=True)
class SimilarConfig:
    """Choice of pairs of similar images: DINOv2 features, classes and boxes."""

    encoder: str = DINO  # hub name or folder of the DINO whose features are compared
    min_similarity: float = 0.6  # least cosine of the two images' features
    min_shared: int = 1  # least number of classes that both images have
    max_other: int = 14  # largest number of classes that only one of the two has
    edit_iou: float = 0.5  # least IoU of two objects of other classes that are one EDIT
    boxes: Literal["union", "edited"] = "union"  # box of an EDIT: around both objects, or the second image's
    neighbours: int = 50  # most similar images that are tried for each image
    batch_size: int = 64  # images encoded at a time

    def __post_init__(self) -> None:
        require_counts(self)
        if not -1 <= self.min_similarity <= 1:
            raise ValueError(f"min_similarity: expected a cosine from -1 to 1; got {self.min_similarity}")
        if not 0 < self.edit_iou <= 1:
            raise ValueError(
                f"edit_iou: expected above 0 and at most 1, so that the objects overlap; got {self.edit_iou}"
            )


@dataclass(frozen=True)
class InpaintedConfig:
    """Choice of objects and of what becomes of them."""

    method: MethodConfig | None = None  # inpainting pipeline (kind: inpainting); None: filled without a model
    edit_share: float = 0.34  # share of EDIT; the rest is half REMOVE and half ADD
    colour_share: float = 0.3  # share of recoloured objects among EDIT; the others are replaced
    min_area: float = 0.01  # smallest box of an object, as a share of the image
    max_area: float = 0.4  # largest box of an object, as a share of the image
    seed: int = 0  # seed of the choices

    def __post_init__(self) -> None:
        if self.method is not None and self.method.kind != "inpainting":
            raise ValueError(f"method.kind: expected inpainting; got {self.method.kind}")
        for name in ("edit_share", "colour_share", "min_area", "max_area"):
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise ValueError(f"{name}: expected a share from 0 to 1; got {share}")
        if self.min_area > self.max_area:
            raise ValueError(
                f"min_area: expected at most max_area, {self.max_area}; got {self.min_area}; lower it, or "
                "raise max_area"
            )


@dataclass(frozen=True)
class DifferencePairsConfig:
    """Images with boxes, and how pairs are made of them: `similar` or `inpainted`."""

    annotations: str  # JSON file in the format of COCO or LVIS
    root: str | None = None  # folder of the images; None: that of the annotations
    limit: int | None = None  # number of images, the first of the file; None: all
    similar: SimilarConfig | None = None  # pairs of similar images
    inpainted: InpaintedConfig | None = None  # pairs of an image and its inpainted copy

    def __post_init__(self) -> None:
        if (self.similar is None) == (self.inpainted is None):
            raise ValueError("pairs: expected either similar or inpainted; set one, e.g. pairs.similar={}")

    @property
    def folder(self) -> Path:
        """Folder of the images."""
        return Path(self.annotations).parent if self.root is None else Path(self.root)
