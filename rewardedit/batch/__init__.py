"""The values that all modules exchange: `EditSample` (a row), `EditBatch` (rows as tensors) and `Scores`."""

from rewardedit.batch.collating import (
    OPTIONAL,
    PixelBatch,
    PixelSample,
    collate,
    collate_pixels,
    common_fields,
    split_by_fields,
)
from rewardedit.batch.values import EditBatch, EditPair, EditSample, ImageLike, Scores, text_or_none

__all__ = [
    "OPTIONAL",
    "EditBatch",
    "EditPair",
    "EditSample",
    "ImageLike",
    "PixelBatch",
    "PixelSample",
    "Scores",
    "collate",
    "collate_pixels",
    "common_fields",
    "split_by_fields",
    "text_or_none",
]
