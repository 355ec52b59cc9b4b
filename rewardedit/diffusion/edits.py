"""`Edits`: the edited images of some rows, and the reasons why others have none."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.images.values import NOT_FINITE

WITHHELD = "the pipeline's safety checker withheld the image; change the instruction, or another seed may do"


@dataclass(frozen=True)
class Edits:
    """Edited images of b rows; a row has none if its image overflowed, or was withheld."""

    images: Float[Tensor, "b 3 h w"]  # RGB in [0, 1]; NaN in rows without an edit, which no scorer can score
    reason: list[str | None]  # why a row has no edit

    @classmethod
    def of(cls, images: Float[Tensor, "b 3 h w"], reason: Sequence[str | None] | None = None) -> "Edits":
        """Wraps images as an editor made them, on their device. A row without a reason gets one if its image
        is not finite.
        """
        images = images.float()
        finite = images.isfinite().flatten(1).all(1).tolist()
        reasons = []
        for text, is_finite in zip(reason or [None] * len(images), finite, strict=True):
            reasons.append(text or (None if is_finite else NOT_FINITE))
        images = images.clamp(0, 1)
        lacking = [row for row, text in enumerate(reasons) if text is not None]
        if lacking:
            images[lacking] = torch.nan
        return cls(images, reasons)

    @classmethod
    def of_output(cls, output: Any) -> "Edits":
        """Wraps the output of a pipeline, with the verdicts of its safety checker, if it has one."""
        withheld = getattr(output, "nsfw_content_detected", None) or [False] * len(output.images)
        return cls.of(output.images, [WITHHELD if is_withheld else None for is_withheld in withheld])

    @classmethod
    def join(cls, edits: Sequence["Edits"]) -> "Edits":
        """The rows of several calls, in order."""
        if len(edits) == 1:
            return edits[0]
        reasons = list(chain.from_iterable(batch.reason for batch in edits))
        return cls(torch.cat([batch.images for batch in edits]), reasons)

    def __len__(self) -> int:
        return len(self.reason)

    def __getitem__(self, rows: slice) -> "Edits":
        """The rows of a slice, as views."""
        return Edits(self.images[rows], self.reason[rows])

    def to(self, device: torch.device | str) -> "Edits":
        """The same edits with their images on `device`."""
        return Edits(self.images.to(device), self.reason)

    def require_all(self) -> Float[Tensor, "b 3 h w"]:
        """The images of all rows.

        Raises:
            ValueError: if a row has none, with the reason.
        """
        for row, reason in enumerate(self.reason):
            if reason is not None:
                raise ValueError(reason if len(self.reason) == 1 else f"row {row} has no edit: {reason}")
        return self.images
