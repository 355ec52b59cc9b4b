"""`Edits`: what an editor makes of rows, and why some have no edit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.values import NOT_FINITE

WITHHELD = "the pipeline's safety checker withheld the image; change the instruction, or another seed may do"


@dataclass(frozen=True)
class Edits:
    """Edited images of b rows, some of which may have none: one that overflowed, or was withheld."""

    images: Float[Tensor, "b 3 h w"]  # RGB in [0, 1]; NaN in rows without an edit, which no scorer can score
    reason: list[str | None]  # why a row has no edit

    @classmethod
    def of(cls, images: Float[Tensor, "b 3 h w"], reason: Sequence[str | None] | None = None) -> "Edits":
        """Images as an editor made them, in main memory. A row without a reason that is not finite gets
        one.
        """
        images = images.float().cpu()
        finite = images.isfinite().flatten(1).all(1).tolist()
        reasons = [
            text or (None if is_finite else NOT_FINITE)
            for text, is_finite in zip(reason or [None] * len(images), finite, strict=True)
        ]
        lacking = torch.tensor([text is not None for text in reasons], dtype=torch.bool)
        return cls(images.clamp(0, 1).masked_fill(lacking[:, None, None, None], torch.nan), reasons)

    @classmethod
    def of_output(cls, output: Any) -> "Edits":
        """What a pipeline returned, with what its safety checker, where it has one, says of each image."""
        withheld = getattr(output, "nsfw_content_detected", None) or [False] * len(output.images)
        return cls.of(output.images, [WITHHELD if is_withheld else None for is_withheld in withheld])

    def require_all(self) -> Float[Tensor, "b 3 h w"]:
        """The images, where each row has one.

        Raises:
            ValueError: where a row has none, with the reason.
        """
        for row, reason in enumerate(self.reason):
            if reason is not None:
                raise ValueError(reason if len(self.reason) == 1 else f"row {row} has no edit: {reason}")
        return self.images
